package tasks

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/taskpage"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestHistoryHasEveryStateAndTime: whenever the recorder writes, and however often the server restarts,
// the history has each state of each allocation once, with its time.
func TestHistoryHasEveryStateAndTime(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		w := newWorld(t, seed)
		s, r := w.newStore(Limits{Count: leastCount})
		for range 400 {
			w.step()
			switch w.rnd.IntN(20) {
			case 0, 1:
				w.write(r)
			case 2: // the server restarts
				s.close("restart")
				if err := s.open(); err != nil {
					t.Fatal(err)
				}
			case 3:
				if err := s.rotate(w.clock(), 0); err != nil {
					t.Fatal(err)
				}
			}
		}
		w.write(r)
		w.check(s)
		if gaps := s.position().GetGaps(); len(gaps) != 0 {
			t.Fatalf("seed %d: %v", seed, gaps)
		}
	}
}

// TestListsAreThoseOfABruteForce: for random requests, the pages of a list have exactly the records that
// a look at every record finds, the newest first.
func TestListsAreThoseOfABruteForce(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		w := newWorld(t, seed)
		s, r := w.newStore(Limits{Count: leastCount})
		for i := range 600 {
			w.step()
			if i%40 == 39 && i < 560 {
				w.write(r)
			}
		}
		w.write(r)
		if len(s.segments) < 2 || len(s.recent.order) == 0 {
			t.Fatalf("%d segments: the test shows little", len(s.segments))
		}
		for range 150 {
			req := randomRequest(w)
			confined := w.rnd.IntN(5) == 0
			q := newQuery(req, "sea", func(ns string) bool { return !confined || ns == "prod" })
			var want []string
			for _, rec := range w.want {
				placed := rec.Placed.AsTime()
				if q.wants(rec) && (req.Since == nil || !placed.Before(req.Since.AsTime())) && (req.Until == nil || placed.Before(req.Until.AsTime())) {
					want = append(want, rec.Id)
				}
			}
			key := func(id string) taskpage.Key { k, _ := keyOf(w.want[id]); return k }
			slices.SortFunc(want, func(a, b string) int { return key(b).Compare(key(a)) })
			if got := readAll(t, s, q, w.rnd); !slices.Equal(got, want) {
				t.Fatalf("seed %d, %v: %d records, want %d", seed, req, len(got), len(want))
			}
		}
	}
}

func randomRequest(w *world) *nusav1.ListTasksRequest {
	pick := func(n int) bool { return w.rnd.IntN(n) == 0 }
	some := w.want[w.order[w.rnd.IntN(len(w.order))]]
	req := &nusav1.ListTasksRequest{}
	if pick(3) {
		req.Job = &nusav1.JobRef{Namespace: some.Namespace}
		if pick(2) {
			req.Job.Name, req.Job.Region = strings.TrimSuffix(some.Job, "@sea"), "sea"
		}
	}
	if pick(3) {
		req.Labels = map[string]string{"team": "t1"}
		if pick(2) {
			req.Labels["kind"] = some.Labels["kind"]
		}
	}
	for range w.rnd.IntN(3) {
		req.States = append(req.States, nusav1.AllocState(1+w.rnd.IntN(5)))
	}
	switch w.rnd.IntN(5) {
	case 0:
		req.Node = some.Node
	case 1:
		req.Node = some.NodeId
	case 2:
		req.Group = "main"
	}
	if pick(4) {
		req.Index = &some.Index
	}
	if pick(3) {
		req.Since = some.Placed
	}
	if pick(3) {
		req.Until = w.want[w.order[w.rnd.IntN(len(w.order))]].Placed
	}
	return req
}

// readAll reads all pages of a list, with random limits and bounds of the entries that a page reads.
func readAll(t *testing.T, s *Store, q query, rnd *rand.Rand) (ids []string) {
	t.Helper()
	var below *taskpage.Key
	for range 10_000 {
		limit := 1 + rnd.IntN(20)
		page, err := s.list(q, below, limit, 12+rnd.IntN(40))
		if err != nil || len(page.Items) > limit {
			t.Fatal(len(page.Items), err)
		}
		for _, rec := range page.Items {
			ids = append(ids, rec.GetId())
		}
		if page.Next == nil {
			return ids
		}
		if below != nil && page.Next.Compare(*below) >= 0 {
			t.Fatalf("%v: a page that reads nothing", q.ListTasksRequest)
		}
		below = page.Next
	}
	t.Fatalf("%v: the pages do not end", q.ListTasksRequest)
	return nil
}

func TestFindByPrefix(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	s, r := w.newStore(Limits{})
	w.submit(200)
	w.write(r)
	for id := range w.want {
		for n := 4; n <= len(id); n++ {
			matches := 0
			for other := range w.want {
				if strings.HasPrefix(other, id[:n]) {
					matches++
				}
			}
			got, err := s.find(strings.ToUpper(id[:n]))
			var several errAmbiguous
			if matches == 1 && (err != nil || got.GetTask().GetId() != id) || matches > 1 && !errors.As(err, &several) {
				t.Fatalf("%s: %v, %v, %d records match", id[:n], got.GetTask().GetId(), err, matches)
			}
		}
	}
	for _, bad := range []string{"zzzz", "0000-0000", "12345678-1234-1234-1234-123456789012"} {
		if got, err := s.find(bad); got != nil || err != nil {
			t.Errorf("%s: %v, %v", bad, got, err)
		}
	}
}

// served calls the Copy of another server's history.
type served struct {
	nusav1.TasksClient
	s     *Store
	calls *int // nil: not counted
}

func (c served) Copy(_ context.Context, req *nusav1.CopyTasksRequest, _ ...grpc.CallOption) (*nusav1.CopyTasksResponse, error) {
	if c.calls != nil {
		*c.calls++
	}
	part, err := copyPart(c.s, req, func() bool { return true })
	return proto.CloneOf(part), err
}

// TestGapIsShownAndFilled: a server that misses more events than the log has tells the gap, knows the
// present state of every allocation of the log, and does not invent the end of another. The history of
// a server that missed nothing fills the gap.
func TestGapIsShownAndFilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	whole, all := w.newStore(Limits{Count: leastCount})
	behind, late := w.newStore(Limits{Count: leastCount})
	fresh, third := w.newStore(Limits{Count: leastCount})
	for range 200 {
		w.step()
	}
	w.write(all)
	w.write(late)
	for range 200 {
		w.step()
		w.write(all)
	}
	w.purge() // the log forgets the allocations that have ended
	w.write(all)
	w.fast(state.MaxEvents)
	w.write(all)
	for range 50 {
		w.step()
	}
	for _, r := range []*Recorder{all, late, third} {
		w.write(r)
	}
	w.check(whole)
	if got := behind.position().GetGaps(); len(got) != 1 || got[0].GetMissed() == 0 || got[0].GetFrom() == nil || got[0].GetNext() <= got[0].GetFirst() {
		t.Fatalf("%v", got)
	}
	if got := fresh.position().GetGaps(); len(got) != 1 || got[0].GetFrom() != nil {
		t.Fatalf("%v", got)
	}
	unknown := 0
	for id, want := range w.want {
		got, err := behind.find(id)
		if err != nil {
			t.Fatal(err)
		}
		_, inLog := w.View().Alloc(id)
		switch rec := got.GetTask(); {
		case inLog && rec.GetState() != want.State:
			t.Fatalf("%s is %v, want %v", id, rec.GetState(), want.State)
		case !inLog && rec != nil && rec.GetState() == nusav1.AllocState_ALLOC_STATE_UNSPECIFIED:
			unknown++
			if rec.GetEnded() == nil || rec.GetMessage() == "" {
				t.Fatalf("%v", rec)
			}
		case !inLog && rec != nil && rec.GetState() != want.State:
			t.Fatalf("%s is %v, want %v", id, rec.GetState(), want.State)
		}
	}
	if unknown == 0 {
		t.Error("the gap hides no end: the test shows nothing")
	}
	for _, s := range []*Store{behind, fresh} {
		f := &Filler{Store: s, Logger: s.log}
		if _, err := f.copy(t.Context(), served{s: whole}, s.position().GetGaps()[0]); err != nil {
			t.Fatal(err)
		}
		w.check(s)
		if gaps := s.position().GetGaps(); len(gaps) != 0 {
			t.Errorf("%v", gaps)
		}
	}
	w.submit(3)
	w.report()
	w.write(late)
	w.check(behind)
}

// purge removes all ended allocations from the log.
func (w *world) purge() {
	w.do(state.Command{Purge: &state.Purge{EndedBeforeUnixNano: w.now + 1}})
}

// TestAServerWithTheSameGapFillsNothing: one call says so about all gaps, and the next one comes much later.
func TestAServerWithTheSameGapFillsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	w.submit(5)
	w.fast(state.MaxEvents)
	a, ra := w.newStore(Limits{})
	b, rb := w.newStore(Limits{})
	w.write(ra)
	w.write(rb)
	f, calls := &Filler{Store: a, Logger: a.log}, 0
	if n, err := f.fillFrom(t.Context(), served{s: b, calls: &calls}); n != 0 || !errors.Is(err, errSameGap) || calls != 1 {
		t.Errorf("%d records, %v, %d calls", n, err, calls)
	}
	if len(a.position().GetGaps()) != 1 {
		t.Error("the gap is gone")
	}
	if got := nextPause(nextPause(fillEvery, true), true); got != 4*fillEvery || nextPause(fillMost, true) != fillMost || nextPause(fillMost, false) != fillDisconnected {
		t.Errorf("the pauses are wrong: %v", got)
	}
}

// TestGapsEndWithTheirRecords: a gap is forgotten when no record that it may concern is kept.
func TestGapsEndWithTheirRecords(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 11)
	w.submit(5)
	w.fast(state.MaxEvents)
	s, r := w.newStore(Limits{Age: time.Hour})
	w.write(r)
	for _, c := range []struct {
		after time.Duration
		gaps  int
	}{{30 * time.Minute, 1}, {2 * time.Hour, 0}} {
		if err := s.trim(w.clock().Add(c.after)); err != nil {
			t.Fatal(err)
		}
		if n := len(s.position().GetGaps()); n != c.gaps {
			t.Errorf("%d gaps after %v, want %d", n, c.after, c.gaps)
		}
	}
}

// TestRestoredLogLeavesAGap: a restore of the log undoes events that the history has.
func TestRestoredLogLeavesAGap(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 5)
	s, r := w.newStore(Limits{})
	w.submit(3)
	old := w.st.Snapshot().Fork()
	w.submit(2)
	undone := w.order[3:]
	w.write(r)
	w.st = old
	w.now += 3600 * second
	w.write(r) // the log is still being read
	if len(s.position().GetGaps()) != 0 {
		t.Fatal("a gap before the restored log begins")
	}
	w.do(state.Command{BumpIncarnation: &state.BumpIncarnation{Incarnation: 2, RestoreID: "x"}})
	w.write(r)
	if gaps := s.position().GetGaps(); len(gaps) != 1 || !strings.Contains(gaps[0].GetWhy(), "restored") {
		t.Fatalf("%v", gaps)
	}
	for _, id := range undone {
		got, err := s.find(id)
		if err != nil || got.GetTask().GetState() != nusav1.AllocState_ALLOC_STATE_UNSPECIFIED || got.GetTask().GetEnded() == nil {
			t.Errorf("%v, %v", got, err)
		}
	}
	w.submit(1)
	w.write(r)
	if got, err := s.find(w.order[len(w.order)-1]); err != nil || got == nil {
		t.Errorf("%v, %v", got, err)
	}
}

// TestOldRecordsAreRemoved: those that ended first, by age and by count. Those of live allocations stay
// as long as there are others.
func TestOldRecordsAreRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 6)
	s, r := w.newStore(Limits{Age: time.Hour})
	for range 900 {
		w.step()
	}
	s.limits.Count = int64(len(w.live)) + 50
	w.write(r)
	if err := s.trim(w.clock()); err != nil {
		t.Fatal(err)
	}
	if n := int64(count(t, s)); n > s.limits.Count || n < s.limits.Count-int64(s.limits.full()) {
		t.Fatalf("%d records, of them %d live", n, len(w.live))
	}
	newest := int64(0) // end of a removed record
	for id, want := range w.want {
		got, err := s.find(id)
		if err != nil || got == nil && want.Ended == nil {
			t.Fatalf("%s: %v", id, err)
		}
		if got == nil {
			newest = max(newest, endOf(want))
		}
	}
	for _, want := range w.want {
		if got, _ := s.find(want.Id); got != nil && want.Ended != nil && endOf(want) < newest {
			t.Errorf("a record that ended before one that is removed is still there")
		}
	}
	if err := s.trim(w.clock().Add(2 * time.Hour)); err != nil {
		t.Fatal(err)
	}
	if n := count(t, s); n != len(w.live) {
		t.Errorf("%d records after their age, %d live", n, len(w.live))
	}
	for _, rec := range w.want { // no index entry is left of a removed record
		q := newQuery(&nusav1.ListTasksRequest{Job: &nusav1.JobRef{Namespace: rec.Namespace, Name: rec.Job}}, "sea", func(string) bool { return true })
		readAll(t, s, q, w.rnd)
	}
}

// TestBurstLeavesNoGap: more events than the log has wait for the disk, and none is missed.
func TestBurstLeavesNoGap(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 8)
	s, r := w.newStore(Limits{})
	w.write(r)
	r.tail.at = s.position().GetEvent()
	for range 3 {
		w.submit(5)
		for range 20 {
			w.report()
		}
		r.tail.read(w.View())
		w.fast(state.MaxEvents / 2)
		r.tail.read(w.View())
	}
	if missed, _ := w.View().Events().Gap(s.position().GetEvent()); missed == 0 {
		t.Fatal("the log has every event: the test shows nothing")
	}
	w.write(r)
	w.check(s)
	if gaps := s.position().GetGaps(); len(gaps) != 0 || len(r.tail.list) != 0 {
		t.Errorf("%v, %d events wait", gaps, len(r.tail.list))
	}
}
