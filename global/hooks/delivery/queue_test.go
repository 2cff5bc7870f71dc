package delivery

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestDecide(t *testing.T) {
	for _, c := range []struct {
		name   string
		failed int
		o      Outcome
		want   Decision
	}{
		{"accepted", 0, Outcome{Status: 200}, Decision{Verdict: Delivered}},
		{"accepted at the last attempt", 9, Outcome{Status: 204}, Decision{Verdict: Delivered}},
		{"no response", 0, Outcome{}, Decision{Verdict: Retry, Wait: 5 * time.Second}},
		{"a redirect is a failure", 1, Outcome{Status: 302}, Decision{Verdict: Retry, Wait: 5 * time.Minute}},
		{"1xx is a failure", 2, Outcome{Status: 101}, Decision{Verdict: Retry, Wait: 30 * time.Minute}},
		{"third", 3, Outcome{Status: 500}, Decision{Verdict: Retry, Wait: 2 * time.Hour}},
		{"fourth", 4, Outcome{Status: 500}, Decision{Verdict: Retry, Wait: 5 * time.Hour}},
		{"fifth", 5, Outcome{Status: 500}, Decision{Verdict: Retry, Wait: 10 * time.Hour}},
		{"sixth", 6, Outcome{Status: 500}, Decision{Verdict: Retry, Wait: 14 * time.Hour}},
		{"seventh", 7, Outcome{Status: 500}, Decision{Verdict: Retry, Wait: 20 * time.Hour}},
		{"eighth", 8, Outcome{Status: 500}, Decision{Verdict: Retry, Wait: 24 * time.Hour}},
		{"the last", 9, Outcome{Status: 500}, Decision{Verdict: GiveUp}},
		{"gone", 0, Outcome{Status: 410}, Decision{Verdict: Disable}},
		{"gone at the last attempt", 9, Outcome{Status: 410}, Decision{Verdict: Disable}},
		{"too many requests", 0, Outcome{429, time.Minute}, Decision{Retry, time.Minute, time.Minute}},
		{"a shorter Retry-After does not shorten the delay", 1, Outcome{503, time.Second}, Decision{Retry, 5 * time.Minute, time.Second}},
		{"a long Retry-After is bounded", 0, Outcome{503, 1000 * time.Hour}, Decision{Retry, 24 * time.Hour, time.Hour}},
		{"a negative Retry-After", 0, Outcome{429, -time.Hour}, Decision{Verdict: Retry, Wait: 5 * time.Second}},
		{"Retry-After of another status", 0, Outcome{500, time.Hour}, Decision{Verdict: Retry, Wait: 5 * time.Second}},
		{"the last attempt still pauses", 9, Outcome{429, time.Minute}, Decision{Verdict: GiveUp, Pause: time.Minute}},
	} {
		if got := Decide(c.failed, c.o, 0.5); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	if a, b := Decide(0, Outcome{}, 0).Wait, Decide(0, Outcome{}, 0.999).Wait; a != 4500*time.Millisecond || b <= 5*time.Second || b > 5500*time.Millisecond {
		t.Errorf("jitter from %s to %s", a, b)
	}
}

// TestAgainDuringAnAttempt: an event that is asked for while its attempt is in progress is sent once more.
func TestAgainDuringAnAttempt(t *testing.T) {
	asks := map[string]func(*Queue) bool{
		"again":  func(q *Queue) bool { return q.Again(1, start) },
		"rewind": func(q *Queue) bool { q.Rewind(0); return q.Read(1, true, start) },
	}
	for name, ask := range asks {
		for _, o := range []Outcome{{Status: 200}, {Status: 500}} {
			q := New(Saved{}, 1, start)
			q.Read(1, true, start)
			q.Next(start)
			if !ask(q) {
				t.Fatalf("%s: no room", name)
			}
			q.Done(1, o, start, 0.5)
			later := start.Add(time.Minute)
			if e, ok := q.Next(later); !ok || e.Number != 1 {
				t.Fatalf("%s after %d: %v, %t", name, o.Status, e, ok)
			}
			q.Done(1, Outcome{Status: 200}, later, 0.5)
			if e, ok := q.Next(later); ok {
				t.Errorf("%s after %d: sent a third time: %v", name, o.Status, e)
			}
		}
	}
}

func TestOrderAndParallel(t *testing.T) {
	q := New(Saved{Cursor: 10}, 2, start)
	for n := uint64(11); n <= 14; n++ {
		if !q.Read(n, n != 12, start) {
			t.Fatal("no room")
		}
	}
	a, _ := q.Next(start)
	b, _ := q.Next(start)
	if _, more := q.Next(start); a.Number != 11 || b.Number != 13 || more {
		t.Fatalf("%v, %v, a third one: %t", a, b, more)
	}
	if _, ok := q.Due(); ok {
		t.Error("due while the most attempts are in flight")
	}
	q.Done(11, Outcome{Status: 500}, start, 0.5)
	if c, _ := q.Next(start); c.Number != 14 {
		t.Errorf("an event waits behind the retry of another one: %v", c)
	}
	q.Done(13, Outcome{Status: 200}, start, 0.5)
	at, ok := q.Due()
	if _, early := q.Next(at.Add(-1)); !ok || early || !at.Equal(start.Add(5*time.Second)) {
		t.Errorf("due %v, %t; early: %t", at, ok, early)
	}
	if e, _ := q.Next(at); e.Number != 11 || e.Failed != 1 {
		t.Errorf("%v", e)
	}
}

func TestPauseHoldsAllBack(t *testing.T) {
	q := New(Saved{}, 2, start)
	q.Read(1, true, start)
	q.Read(2, true, start)
	q.Next(start)
	q.Done(1, Outcome{429, time.Minute}, start, 0.5)
	if _, ok := q.Next(start.Add(59 * time.Second)); ok {
		t.Error("an attempt in the pause")
	}
	if at, _ := q.Due(); !at.Equal(start.Add(time.Minute)) {
		t.Errorf("due at %s", at)
	}
	if e, _ := q.Next(start.Add(time.Minute)); e.Number != 2 {
		t.Errorf("%v", e)
	}
}

func TestFullQueueLeavesEventsInTheLog(t *testing.T) {
	q := New(Saved{}, 1, start)
	for n := uint64(1); n <= MaxPending; n++ {
		if !q.Read(n, true, start) {
			t.Fatalf("no room for %d", n)
		}
	}
	if q.Read(MaxPending+1, true, start) || q.Cursor() != MaxPending {
		t.Errorf("more than the bound, cursor %d", q.Cursor())
	}
	if !q.Read(MaxPending+1, false, start) {
		t.Error("an event that is not selected takes no room")
	}
	if q.Again(7, start) && q.Pending() > MaxPending {
		t.Error("more than the bound")
	}
}

func TestRecoveryBringsRetriesForward(t *testing.T) {
	q := New(Saved{}, 1, start)
	for n := uint64(1); n <= recovery+2; n++ {
		q.Read(n, true, start)
	}
	for range recovery {
		e, _ := q.Next(start)
		q.Done(e.Number, Outcome{}, start, 0.5)
	}
	e, _ := q.Next(start)
	q.Done(e.Number, Outcome{Status: 200}, start, 0.5)
	for range recovery + 1 {
		e, ok := q.Next(start)
		if !ok {
			t.Fatal("a retry waits although the endpoint works again")
		}
		q.Done(e.Number, Outcome{Status: 200}, start, 0.5)
	}
	// One event that always fails is not brought forward by the success of others.
	q.Read(100, true, start)
	q.Next(start)
	q.Done(100, Outcome{Status: 500}, start, 0.5)
	q.Read(101, true, start)
	q.Next(start)
	q.Done(101, Outcome{Status: 200}, start, 0.5)
	if e, early := q.Next(start); early {
		t.Errorf("%v", e)
	}
}

func TestReplay(t *testing.T) {
	q := New(Saved{Cursor: 5, Entries: []Entry{{Number: 3, Failed: 4, Due: start.Add(time.Hour)}}}, 2, start)
	if q.Again(6, start) || q.Again(0, start) {
		t.Error("an event that was not read")
	}
	if !q.Again(3, start) || !q.Again(2, start) {
		t.Fatal("no replay")
	}
	if e, _ := q.Next(start); e.Number != 2 {
		t.Errorf("%v", e)
	}
	if e, _ := q.Next(start); e.Number != 3 || e.Failed != 0 {
		t.Errorf("%v", e)
	}
	q.Rewind(1)
	for n := uint64(2); n <= 5; n++ {
		q.Read(n, true, start)
	}
	if q.Pending() != 4 || q.InFlight() != 2 {
		t.Errorf("%d pending, %d in flight: an event in flight is not added twice", q.Pending(), q.InFlight())
	}
	q.Rewind(100)
	if q.Cursor() != 5 {
		t.Errorf("rewind to %d", q.Cursor())
	}
	q.Skip(50)
	if q.Pending() != 2 || q.Cursor() != 50 {
		t.Errorf("%d pending after a skip, cursor %d", q.Pending(), q.Cursor())
	}
}

func TestWrongSavedRecords(t *testing.T) {
	q := New(Saved{Cursor: 9, Entries: []Entry{
		{Number: 0}, {Number: 10}, {Number: 4, Failed: 99, Due: start.Add(1e6 * time.Hour), InFlight: true}, {Number: 4}, {Number: 2, Failed: -1},
	}}, 0, start)
	if q.Pending() != 2 || q.InFlight() != 0 {
		t.Fatalf("%+v", q.entries)
	}
	if e, _ := q.Entry(4); e.Failed != MaxAttempts-1 || e.Due.After(start.Add(27*time.Hour)) {
		t.Errorf("%+v", e)
	}
}

// endpoint is the model of TestNothingIsLost: what the receiver accepted.
type model struct {
	accepted map[uint64]int
	gone     map[uint64]bool // given up or dropped
}

// TestNothingIsLost: whatever endpoints answer, and whenever the server restarts from its saved
// record, every selected event is accepted, given up, dropped or still in the queue, and the queue
// never exceeds its bounds.
func TestNothingIsLost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parallel := rapid.IntRange(1, 8).Draw(t, "parallel")
		now, log := start, uint64(0)
		q := New(Saved{}, parallel, now)
		m := model{accepted: map[uint64]int{}, gone: map[uint64]bool{}}
		saved := q.Save()
		savedGone := map[uint64]bool{}
		var inFlight []uint64 // attempts in flight
		selected := func(n uint64) bool { return n%5 != 0 }
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0:
				log += uint64(rapid.IntRange(0, 50).Draw(t, "events"))
			case 1:
				for n := q.Cursor() + 1; n <= log && q.Read(n, selected(n), now); n++ {
				}
			case 2:
				for e, ok := q.Next(now); ok; e, ok = q.Next(now) {
					if e.Due.After(now) {
						t.Fatalf("attempt of %d before it is due", e.Number)
					}
					inFlight = append(inFlight, e.Number)
				}
			case 3:
				if len(inFlight) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(inFlight)-1).Draw(t, "which")
				n := inFlight[i]
				inFlight = slices.Delete(inFlight, i, i+1)
				o := Outcome{rapid.SampledFrom([]int{0, 200, 200, 302, 410, 429, 500, 503}).Draw(t, "status"), time.Duration(rapid.IntRange(-5, 5000).Draw(t, "after")) * time.Second}
				d := q.Done(n, o, now, rapid.Float64Range(0, 0.999).Draw(t, "random"))
				if o.OK() != (d.Verdict == Delivered) {
					t.Fatalf("status %d: %v", o.Status, d)
				}
				if o.OK() {
					m.accepted[n]++
				}
				m.gone[n] = m.gone[n] || d.Verdict == GiveUp
			case 4:
				now = now.Add(time.Duration(rapid.IntRange(0, 100_000).Draw(t, "seconds")) * time.Second)
			case 5:
				if rapid.Bool().Draw(t, "save") {
					saved, savedGone = q.Save(), clone(m.gone)
					continue
				}
				q, m.gone, inFlight = New(saved, parallel, now), clone(savedGone), nil
			}
			check(t, q, m, log, parallel, len(inFlight), selected)
		}
	})
}

func check(t *rapid.T, q *Queue, m model, log uint64, parallel, inFlight int, selected func(uint64) bool) {
	if q.Pending() > MaxPending || q.InFlight() > parallel || q.InFlight() != inFlight || q.Cursor() > log {
		t.Fatalf("%d pending, %d in flight of %d, cursor %d of %d", q.Pending(), q.InFlight(), inFlight, q.Cursor(), log)
	}
	for n := uint64(1); n <= q.Cursor(); n++ {
		if _, waits := q.Entry(n); selected(n) && !waits && m.accepted[n] == 0 && !m.gone[n] {
			t.Fatalf("event %d is lost", n)
		} else if !selected(n) && waits {
			t.Fatalf("event %d was not selected", n)
		}
	}
	if at, ok := q.Due(); ok {
		probe := New(q.Save(), parallel, at)
		probe.paused = q.paused
		if _, waits := probe.Next(at); !waits {
			t.Fatal("nothing is due at the time that Due returned")
		}
	}
}

func clone(m map[uint64]bool) map[uint64]bool {
	out := map[uint64]bool{}
	for k, v := range m {
		out[k] = v
	}
	return out
}
