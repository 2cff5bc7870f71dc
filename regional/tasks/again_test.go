package tasks

import (
	"testing"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestWhatIsKnownIsStoredOnce: a server that reads the log again, or completes its history after a gap, stores only
// the records of segments again that change.
func TestWhatIsKnownIsStoredOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 31)
	s, r := w.newStore(Limits{Count: leastCount})
	for range 300 {
		w.step()
	}
	w.write(r)
	if err := s.rotate(w.clock(), 0); err != nil {
		t.Fatal(err)
	}
	inJournal := len(s.recent.order)
	if len(s.segments) == 0 || inJournal == len(w.want) {
		t.Fatal("no record is in a segment: the test shows nothing")
	}
	if err := s.present(source{w.View(), "sea", r.aboutOf}, &nusav1.TaskGap{}); err != nil {
		t.Fatal(err)
	}
	if n := len(s.recent.order); n != inJournal {
		t.Errorf("%d records in the journal after a gap, %d before", n, inJournal)
	}
	if err := s.update(func(b *batch) error { b.at.Event = 0; return nil }); err != nil {
		t.Fatal(err)
	}
	w.write(r)
	if n := len(s.recent.order); n != inJournal {
		t.Errorf("%d records in the journal after the log is read again, %d before", n, inJournal)
	}
	w.check(s)
}

// TestAGapStaysWithItsRecords: a gap that may hide changes of a record is not forgotten before the record.
func TestAGapStaysWithItsRecords(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 32)
	s, r := w.newStore(Limits{Count: leastCount})
	for range 600 {
		w.step()
	}
	w.write(r)
	if err := s.rotate(w.clock(), 0); err != nil {
		t.Fatal(err)
	}
	if len(s.segments) < 2 {
		t.Fatal("too few segments: the test shows nothing")
	}
	first := s.segments[0]
	ended := first.FirstEnd - second
	if err := mergeAll(s, []*nusav1.StoredTask{{Event: 1, Task: &nusav1.TaskRecord{ // another server had it
		Id: w.id(), Job: "old", Placed: timestamp(ended - second), Ended: timestamp(ended), State: nusav1.AllocState_ALLOC_STATE_COMPLETE,
		Changes: []*nusav1.TaskChange{{Time: timestamp(ended), State: nusav1.AllocState_ALLOC_STATE_COMPLETE}},
	}}}); err != nil {
		t.Fatal(err)
	}
	gap := &nusav1.TaskGap{From: timestamp(ended - second), To: timestamp(first.LastEnd), First: 1, Next: 2, Why: "test"}
	if err := s.update(func(b *batch) error { addGap(b.at, gap); return nil }); err != nil {
		t.Fatal(err)
	}
	s.limits.Count = s.count() - 1
	if err := s.trim(w.clock()); err != nil {
		t.Fatal(err)
	}
	if s.segments[0] == first || len(s.position().GetGaps()) != 1 {
		t.Errorf("gaps %v after the removal of a segment", s.position().GetGaps())
	}
	if err := s.rotate(w.clock().Add(s.limits.Age), 0); err != nil {
		t.Fatal(err)
	}
	if err := s.trim(w.clock().Add(2 * s.limits.Age)); err != nil {
		t.Fatal(err)
	}
	if gaps := s.position().GetGaps(); len(gaps) != 0 {
		t.Errorf("gaps %v without records", gaps)
	}
}

// TestCountWithoutOlderCopies: a record counts once when only its newer copy is left.
func TestCountWithoutOlderCopies(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 33)
	s, _ := w.newStore(Limits{})
	s.recent.order, s.recent.again = make([]*entry, 5), 2
	for _, c := range []struct {
		segments []*segment
		want     int64
	}{
		{nil, 5},
		{[]*segment{{summary: summary{Records: 10, Again: 4}}}, 13},
		{[]*segment{{summary: summary{Records: 10, Again: 4}}, {summary: summary{Records: 3, Again: 1}}}, 15},
	} {
		s.segments = c.segments
		if got := s.count(); got != c.want {
			t.Errorf("%d segments: %d, want %d", len(c.segments), got, c.want)
		}
	}
	s.segments, s.recent = nil, newRecent()
}

// TestRetriesOfAFailingDisk: the pauses grow to a bound, and are short again after the disk has worked.
func TestRetriesOfAFailingDisk(t *testing.T) {
	t.Parallel()
	var wait time.Duration
	for _, want := range []time.Duration{10, 20, 40, 80, 120, 120} {
		wait = nextRetry(wait, time.Second)
		if wait != want*time.Second {
			t.Errorf("%s, want %ds", wait, want)
		}
	}
	if got := nextRetry(wait, retryMost+1); got != retryEvery {
		t.Errorf("%s after the disk has worked", got)
	}
}
