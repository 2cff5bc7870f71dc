package tasks

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestRecordsShareWhatTheyHaveInCommon: a restart and a copy take no more memory for a record than the writer did.
func TestRecordsShareWhatTheyHaveInCommon(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 31)
	s, r := w.newStore(Limits{})
	for range 10 {
		w.submit(20)
	}
	w.write(r)
	shared := func(s *Store) int {
		all := map[*about]bool{}
		for _, e := range s.recent.order {
			all[e.common] = true
		}
		return len(all)
	}
	if n := shared(s); n != 10 {
		t.Fatalf("%d after the writes, want one for each job", n)
	}
	s.close("restart")
	if err := s.open(); err != nil {
		t.Fatal(err)
	}
	if n := shared(s); n != 10 {
		t.Errorf("%d after a restart", n)
	}
	fresh, _ := w.newStore(Limits{})
	part, err := copyPart(s, &nusav1.CopyTasksRequest{}, func() bool { return false })
	if err == nil {
		err = mergeAll(fresh, part.GetTasks())
	}
	if n := shared(fresh); err != nil || n != 10 {
		t.Errorf("%d after a copy, %v", n, err)
	}
}

// TestCopiesBecomeSegments: records that another server sends become segments at once, also if the region does nothing.
func TestCopiesBecomeSegments(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 32)
		whole, all := w.newStore(Limits{Count: leastCount})
		for range 300 {
			w.step()
		}
		w.write(all)
		part, err := copyPart(whole, &nusav1.CopyTasksRequest{}, func() bool { return false })
		if err != nil {
			t.Fatal(err)
		}
		s := NewStore(filepath.Join(t.TempDir(), "tasks"), Limits{Count: leastCount}, slog.New(slog.DiscardHandler))
		s.noSync = true
		quiet := newWorld(t, 33)
		r := &Recorder{Log: quiet, Region: "sea", Store: s, Logger: s.log, now: w.clock}
		ctx, stop := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() {
			if err := r.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		if err := mergeAll(s, part.GetTasks()); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * writeEvery) // much less than trimEvery
		synctest.Wait()
		if n, left := len(s.segments), s.recent.ended; n == 0 || left >= s.limits.full() {
			t.Errorf("%d segments, and %d ended records in the journal", n, left)
		}
		stop()
		done.Wait()
	})
}

// TestLongLivesAreBounded: the record of an allocation that restarts for years does not grow, however often its
// region's servers begin again.
func TestLongLivesAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 34)
	s, r := w.newStore(Limits{})
	w.submit(1)
	id := w.order[0]
	w.write(r)
	restarts, first := int32(0), 0
	for round := range 12 {
		for range maxPieces - 8 {
			restarts++
			w.now += second
			w.seq++
			w.do(state.Command{AgentReports: &state.AgentReports{
				NodeID: w.want[id].NodeId, Position: state.Position{Epoch: "e", Sequence: w.seq},
				Reports: []state.AllocReport{{ID: id, State: state.Running, Restarts: restarts}},
			}})
			w.expect(id, nusav1.AllocState_ALLOC_STATE_RUNNING, restarts)
			w.write(r)
		}
		if err := s.rotate(w.clock(), 0); err != nil {
			t.Fatal(err)
		}
		s.close("restart")
		if err := s.open(); err != nil {
			t.Fatal(err)
		}
		raw, err := s.journal.record(s.recent.order[0].at)
		if round == 1 {
			first = len(raw)
		}
		if err != nil || round > 1 && len(raw) > 2*first {
			t.Fatalf("%d bytes after %d restarts of the server, %d after the first, %v", len(raw), round, first, err)
		}
	}
	w.check(s)
}
