package wan

import (
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/nettest"

	"github.com/nusa-scheduler/nusa/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func onHost(t *testing.T, table *topology.Table) *WAN {
	t.Helper()
	w := New(Config{Table: table})
	t.Cleanup(w.Close)
	return w
}

// machineSlack is granted to the median on a machine that is busy with other
// tests; the best of the samples shows what the emulation itself does.
const machineSlack = 2 * time.Millisecond

// check compares real delays.
func check(t *testing.T, what string, got []time.Duration, want time.Duration) {
	t.Helper()
	slices.Sort(got)
	tolerance := max(300*time.Microsecond, want/100)
	best, median := got[0], got[len(got)/2]
	t.Logf("%s: min %v, median %v, max %v; want %v", what, best, median, got[len(got)-1], want)
	if (best - want).Abs() > tolerance {
		t.Errorf("%s: best %v, want %v ± %v", what, best, want, tolerance)
	}
	if median > want+tolerance+machineSlack {
		t.Errorf("%s: median %v, want %v ± %v", what, median, want, tolerance)
	}
}

func TestHostDelays(t *testing.T) {
	w := onHost(t, Azure())
	for _, tc := range []struct {
		from, to string
		rounds   int
	}{
		{"southeastasia", "malaysiawest", 15}, {"southeastasia", "japaneast", 9}, {"japaneast", "westeurope", 5},
	} {
		want, err := w.RTT(tc.from, tc.to)
		if err != nil {
			t.Fatal(err)
		}
		server := openPacket(t, w, tc.to, "127.0.0.1:0")
		go echo(server)
		client := openPacket(t, w, tc.from, "127.0.0.1:0")
		near, far := connect(t, w, tc.from, tc.to)
		go io.Copy(far, far)

		var datagrams, streams []time.Duration
		buf := make([]byte, 4)
		for range tc.rounds {
			datagrams = append(datagrams, ping(t, client, server.LocalAddr()))
			start := time.Now()
			near.Write([]byte("ping"))
			if _, err := io.ReadFull(near, buf); err != nil {
				t.Fatal(err)
			}
			streams = append(streams, time.Since(start))
		}
		check(t, tc.from+" to "+tc.to+" datagrams", datagrams, want)
		check(t, tc.from+" to "+tc.to+" stream", streams, want)
	}
}

func TestHalfCloseOnHost(t *testing.T) {
	w := onHost(t, lab(t))
	near, far := connect(t, w, "a", "b")
	go func() {
		all, _ := io.ReadAll(far)
		far.Write(append([]byte("got "), all...))
		far.Close()
	}()
	near.Write([]byte("question"))
	if err := near.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := near.Write([]byte("x")); err == nil {
		t.Error("wrote after CloseWrite")
	}
	answer, err := io.ReadAll(near)
	if err != nil || string(answer) != "got question" {
		t.Errorf("answer %q, %v", answer, err)
	}
}

// The Go project's own conformance suite for connections.
func TestConnConforms(t *testing.T) {
	w := onHost(t, lab(t))
	w.SetRTT("a", "b", 2*msec)
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		near, far := connect(t, w, "a", "b")
		return near, far, func() { near.Close(); far.Close() }, nil
	})
}
