package probe

import (
	"context"
	"encoding/binary"
	"syscall"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/network"
)

// The wait of a datagram in the socket is reported.
func TestWaitingInTheSocketIsKnown(t *testing.T) {
	c, err := network.Host().ListenPacket(context.Background(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	read, stamped := receiver(c)
	if !stamped {
		t.Fatal("the kernel makes no stamps")
	}
	const least = 20 * time.Millisecond
	// The kernel begins to report arrival times a little after the request.
	for tries := 0; ; tries++ {
		before := time.Now()
		if _, err := c.WriteTo([]byte("x"), c.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		<-time.After(least) // at least this long, however busy the machine is
		n, from, waited, err := read(make([]byte, 10))
		if err != nil || n != 1 || from.String() != c.LocalAddr().String() {
			t.Fatalf("read %d bytes from %v, %v", n, from, err)
		}
		if most := time.Since(before); waited > most || waited < least && tries == 50 {
			t.Fatalf("it waited %v, at least %v and at most %v are right", waited, least, most)
		}
		if waited >= least {
			return
		}
	}
}

func TestImpossibleStampsAreIgnored(t *testing.T) {
	now := time.Unix(1000, 500)
	message := func(kind int32, data ...byte) []byte {
		b := binary.NativeEndian.AppendUint64(nil, uint64(syscall.CmsgLen(len(data))))
		b = binary.NativeEndian.AppendUint32(b, syscall.SOL_SOCKET)
		return append(binary.NativeEndian.AppendUint32(b, uint32(kind)), data...)
	}
	at := func(s int64, ns uint64) []byte {
		return binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(nil, uint64(s)), ns)
	}
	for name, tc := range map[string]struct {
		oob  []byte
		want time.Duration
	}{
		"right":           {message(syscall.SCM_TIMESTAMPNS, at(999, 500)...), time.Second},
		"none":            {nil, 0},
		"noise":           {[]byte{1, 2, 3}, 0},
		"of another kind": {message(syscall.SCM_RIGHTS, at(999, 500)...), 0},
		"short":           {message(syscall.SCM_TIMESTAMPNS, 1, 2, 3), 0},
		"in the future":   {message(syscall.SCM_TIMESTAMPNS, at(1001, 0)...), 0},
		"too long ago":    {message(syscall.SCM_TIMESTAMPNS, at(900, 0)...), 0},
	} {
		if got := waited(tc.oob, now); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
