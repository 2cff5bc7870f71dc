package eventlog

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// memorySource has all durable events of a log.
type memorySource struct {
	*Window
	all []Event
}

func (s *memorySource) After(_ context.Context, n uint64, max int) ([]*nusav1.Event, uint64, error) {
	if events, missed, ok := s.Window.After(n, max); ok {
		return events, missed, nil
	}
	var out []*nusav1.Event
	missed := uint64(0)
	for i := range s.all {
		e := &s.all[i]
		if e.Number <= n || len(out) == max {
			continue
		}
		if len(out) == 0 {
			missed = Missed(n, e.Number)
		} else if out[len(out)-1].GetNumber()+1 != e.Number {
			break
		}
		out = append(out, e.Proto(s.Log(), Token(s.Log(), e.Number)))
	}
	return out, missed, nil
}

func (s *memorySource) Since(_ context.Context, from time.Time) (uint64, bool, time.Time, error) {
	n := s.all[0].Number - 1
	for _, e := range s.all {
		if e.At.Before(from) {
			n = e.Number
		}
	}
	return n, n >= s.all[0].Number, s.all[0].At, nil
}

// add adds events with numbers. 0: not durable.
func (s *memorySource) add(numbers ...uint64) {
	for _, n := range numbers {
		e := Event{Number: n, At: time.Now(), Type: "t", Subject: fmt.Sprint(n)}
		if n > 0 {
			s.all = append(s.all, e)
		}
		s.Append(e)
	}
}

// drain returns the numbers of the events that a watch has now. A reset shows what it missed.
func drain(t *testing.T, w *Watch) string {
	t.Helper()
	var out []string
	for {
		events, _, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(events) == 0 {
			return strings.Join(out, " ")
		}
		for _, e := range events {
			if e.GetReset_() {
				out = append(out, fmt.Sprint("missed:", e.GetMissed()))
			} else {
				out = append(out, fmt.Sprint(e.GetNumber()))
			}
			if e.GetToken() != w.Token() && len(events) == 1 {
				t.Errorf("token %s, the watch is at %s", e.GetToken(), w.Token())
			}
		}
	}
}

func begin(t *testing.T, s *memorySource, token string, since time.Duration) *Watch {
	t.Helper()
	w, err := NewWatch(t.Context(), s.Window, s, token, since)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// TestWatchSeesExactlyTheRest: a watch that resumes after any number gets each later event once,
// whether the window or only the source has it.
func TestWatchSeesExactlyTheRest(t *testing.T) {
	const last = Retained + 700
	s := &memorySource{Window: NewWindow("f")}
	for n := uint64(1); n <= last; n++ {
		s.add(n)
	}
	for n := 0; n <= last; n += 37 {
		w := begin(t, s, Token("f", uint64(n)), 0)
		next := uint64(n)
		for {
			events, _, err := w.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if len(events) == 0 {
				break
			}
			for _, e := range events {
				if next++; e.GetNumber() != next || e.GetLog() != "f" || e.GetToken() != Token("f", next) {
					t.Fatalf("after %d: %v, want number %d", n, e, next)
				}
			}
		}
		if next != last {
			t.Fatalf("from %d on the watch ended at %d", n, next)
		}
	}
}

func TestWatchReportsGaps(t *testing.T) {
	s := &memorySource{Window: NewWindow("f")}
	s.Begin(4)
	now := begin(t, s, "", 0)
	s.add(5, 6, 0, 9, 0, Jump+1, Jump+2)
	after6 := "missed:2 9 0 missed:0 " + fmt.Sprint(Jump+1, " ", Jump+2)
	for token, want := range map[string]string{
		"f-4": "5 6 0 " + after6, "5": "6 0 " + after6, "f-6": "0 " + after6, "f-7": "0 missed:1 " + strings.TrimPrefix(after6, "missed:2 "),
		"f-9": "0 missed:0 " + fmt.Sprint(Jump+1, " ", Jump+2), Token("f", Jump+1): fmt.Sprint(Jump + 2), Token("f", Jump+2): "",
		Token("f", Jump+3): "missed:0", "other-5": "missed:0", "": "",
	} {
		if got := drain(t, begin(t, s, token, 0)); got != want {
			t.Errorf("after %q: %s, want %s", token, got, want)
		}
	}
	if got := drain(t, now); got != "5 6 0 "+after6 {
		t.Errorf("the watch that began before: %s", got)
	}
	s.add(Jump + 3)
	if got := drain(t, now); got != fmt.Sprint(Jump+3) {
		t.Errorf("later: %s", got)
	}
}

func TestWatchContinuesAfterItFellBehindTheWindow(t *testing.T) {
	s := &memorySource{Window: NewWindow("f")}
	s.add(1)
	w := begin(t, s, "f-0", 0)
	if got := drain(t, w); got != "1" {
		t.Fatal(got)
	}
	for n := uint64(2); n < 3*Retained; n++ {
		s.add(n)
	}
	if got := strings.Fields(drain(t, w)); len(got) != 3*Retained-2 || got[0] != "2" {
		t.Errorf("%d events, from %v on", len(got), got[:1])
	}
	s.add(0)
	for n := uint64(3 * Retained); n < 4*Retained; n++ {
		s.add(n)
	}
	if got := strings.Fields(drain(t, w)); len(got) != Retained+1 || got[0] != "missed:0" || got[1] != fmt.Sprint(3*Retained) {
		t.Errorf("after an event without a number was lost: %d events, from %v on", len(got), got[:1])
	}
}

func TestWatchSinceATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &memorySource{Window: NewWindow("f")}
		s.add(1)
		time.Sleep(time.Minute)
		s.add(2, 3)
		time.Sleep(time.Minute)
		for since, want := range map[time.Duration]string{time.Second: "", time.Minute: "2 3", 90 * time.Second: "2 3", time.Hour: "missed:0 1 2 3"} {
			if got := drain(t, begin(t, s, "", since)); got != want {
				t.Errorf("since %s: %s, want %s", since, got, want)
			}
		}
		if n, ok := s.Window.Since(time.Now().Add(-90 * time.Second)); n != 1 || !ok {
			t.Errorf("the window's events begin after %d, %v", n, ok)
		}
	})
}

func TestWatchWakes(t *testing.T) {
	s := &memorySource{Window: NewWindow("f")}
	w := begin(t, s, "", 0)
	events, added, err := w.Next(t.Context())
	if len(events) > 0 || err != nil {
		t.Fatal(events, err)
	}
	s.add(1)
	<-added
	if got := drain(t, w); got != "1" {
		t.Error(got)
	}
}
