package failover

import (
	"context"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

const ms = time.Millisecond

func TestTimeline(t *testing.T) {
	now := 20_000 * ms
	runs := []run{
		{"jakarta", 0, "1.1", 1_000 * ms, 12_000 * ms}, // stopped at the heal
		{"seoul", 0, "2.1", 9_000 * ms, 19_990 * ms},
		{"jakarta", 1, "1.1", 1_000 * ms, 6_000 * ms},
		{"tokyo", 1, "2.1", 8_500 * ms, 19_995 * ms},
		{"seoul", 2, "1.1", 1_000 * ms, 19_999 * ms},
	}
	cut, heal := 5_000*ms, 11_500*ms
	if got := indicesIn(running(runs, 5_500*ms), "jakarta"); !slices.Equal(got, []int{0, 1}) {
		t.Errorf("indices in jakarta %v", got)
	}
	if took, moved := movedAfter(runs, []int{0, 1}, "jakarta", cut); !moved || took != 4_000*ms {
		t.Errorf("moved after %s, %v", took, moved)
	}
	if _, moved := movedAfter(runs[:3], []int{0, 1}, "jakarta", cut); moved {
		t.Error("index 1 counts as moved, although it runs nowhere else")
	}
	if got := twice(runs, cut); got != 3_000*ms {
		t.Errorf("twice for %s, want 3s of index 0", got)
	}
	if got := changedAfter(runs, heal, now); got != 500*ms {
		t.Errorf("changed until %s after the heal", got)
	}
	if !once(runs, 3, now) || once(runs, 4, now) || once(runs, 3, 11_000*ms) {
		t.Error("once")
	}
	if missing(runs, 4, now) != 1 || missing(runs, 3, now) != 0 {
		t.Error("missing")
	}
}

// TestProxyCut: during a cut a connection delivers nothing, and its ends do not see that
// the other end has closed. After the cut every byte arrives.
func TestProxyCut(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	defer served.Wait()
	defer server.Close()
	served.Go(func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			served.Go(func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			})
		}
	})
	p, err := newProxy(server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	c, err := net.Dial("tcp", p.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	echo := func(text string) string {
		t.Helper()
		if _, err := c.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, len(text))
		if _, err := io.ReadFull(c, buf); err != nil {
			return err.Error()
		}
		return string(buf)
	}
	if got := echo("before"); got != "before" {
		t.Fatal(got)
	}
	p.cut()
	_ = c.SetReadDeadline(time.Now().Add(200 * ms))
	if got := echo("during"); got == "during" {
		t.Error("a byte crosses the cut")
	}
	_ = c.SetReadDeadline(time.Time{})
	p.heal()
	buf := make([]byte, len("during"))
	if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "during" {
		t.Errorf("after the cut: %q, %v", buf, err)
	}
	if got := echo("after"); got != "after" {
		t.Error(got)
	}
}
