package regional_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func (w *world) verify(i int) *nusav1.VerifyRegionResponse {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := nusav1.NewRegionsClient(w.conn(i)).Verify(ctx, &nusav1.GetRegionRequest{})
	if err != nil {
		w.t.Fatalf("verify through server %d: %v", i, err)
	}
	return r
}

// TestServersHoldEqualStates: the servers' states are equal while nothing happens, while
// jobs are placed, and after a restart from the log. A comparison without one of the
// servers is not equal.
func TestServersHoldEqualStates(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world) {
		w.disk = t.TempDir()
		for i := 1; i <= 3; i++ {
			w.server(i, 1, 2, 3)
		}
		first := w.master(1, 2, 3)
		w.agent("n1", runs)
		w.submit(first, spec("before", 2))
		same := func(when string, through int) {
			t.Helper()
			r := w.verify(through)
			if !r.GetEqual() || len(r.GetServers()) != 3 || r.GetIndex() == 0 || len(r.GetServers()[0].GetHash()) != 64 {
				t.Errorf("%s: %v", when, r)
			}
		}
		same("at rest", first%3+1) // a follower forwards the call

		var load sync.WaitGroup
		done := make(chan struct{})
		load.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				case <-time.After(5 * time.Millisecond):
					w.submit(first, spec(fmt.Sprintf("job%d", i), 1))
				}
			}
		})
		for range 5 {
			same("under load", first)
		}
		close(done)
		load.Wait()

		w.kill(first)
		second := w.master(without([]int{1, 2, 3}, first)...)
		r := w.verify(second)
		if r.GetEqual() {
			t.Errorf("equal although a server is down: %v", r)
		}
		w.server(first, second)
		w.eventually("the restarted server knows the master", func() bool { return w.info(first).GetLeaderAddress() == serverAddr(second) })
		same("restarted from its log", second)
	})
}
