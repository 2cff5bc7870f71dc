package eventlog

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestResumeOrResetAfterAGap(t *testing.T) {
	l := New("e")
	now := l.After("")
	l.Add("a", "s", "%d", 1)
	l.Add("b", "s", "%d", 2)
	events, next, added := l.From(now)
	if len(events) != 2 || events[0].GetMessage() != "1" || events[1].GetType() != "b" {
		t.Fatalf("%v", events)
	}
	if more, _, _ := l.From(next); len(more) != 0 {
		t.Errorf("the same events twice: %v", more)
	}
	l.Add("c", "s", "")
	select {
	case <-added:
	default:
		t.Error("the channel stays open after an event")
	}
	if again, _, _ := l.From(l.After(events[0].GetToken())); len(again) != 2 || again[0].GetType() != "b" {
		t.Errorf("resumed with %v", again)
	}
	for _, token := range []string{"other-1", "e-99", "e-x", "nonsense"} {
		if got, _, _ := l.From(l.After(token)); len(got) != 1 || !got[0].GetReset_() {
			t.Errorf("%s: %v", token, got)
		}
	}
	for range Retained {
		l.Add("d", "s", "")
	}
	gap, next, _ := l.From(l.After(events[0].GetToken()))
	if len(gap) != 1 || !gap[0].GetReset_() {
		t.Errorf("after more events than are retained: %v", gap)
	}
	l.Add("e", "s", "")
	if got, _, _ := l.From(next); len(got) != 1 || got[0].GetType() != "e" {
		t.Errorf("after the reset: %v", got)
	}
	if got, _, _ := l.From(l.After(gap[0].GetToken())); len(got) != 1 || got[0].GetType() != "e" {
		t.Errorf("from the reset's token: %v", got)
	}
}

func TestStartSinceATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New("e")
		expect := func(since time.Duration, first string, all bool) {
			t.Helper()
			n, missing := l.Start("", since)
			events, _, _ := l.From(n)
			got := ""
			if len(events) > 0 {
				got = events[0].GetType()
			}
			if got != first || (missing == nil) != all || missing != nil && !missing.GetReset_() {
				t.Errorf("since %s: %q, missing %v", since, got, missing)
			}
		}
		expect(time.Minute, "", false) // the log began just now
		time.Sleep(time.Hour)
		l.Add("a", "s", "")
		time.Sleep(time.Minute)
		l.Add("b", "s", "")
		expect(0, "", true)
		expect(time.Second, "b", true)
		expect(time.Minute, "a", true)
		expect(59*time.Minute, "a", true)
		expect(2*time.Hour, "a", false)
		if _, missing := l.Start("", 2*time.Hour); missing.GetMessage() != "the server has only the events of the last 1h1m0s" {
			t.Errorf("before the log began: %q", missing.GetMessage())
		}
		time.Sleep(time.Minute)
		for range Retained - 1 {
			l.Add("c", "s", "")
		}
		expect(time.Second, "c", true)
		expect(2*time.Minute, "b", false) // the first event is not retained
		if _, missing := l.Start("", time.Hour); missing.GetMessage() != "the server has only the events of the last 1m0s" {
			t.Errorf("before the oldest event: %q", missing.GetMessage())
		}
		if n, missing := l.Start("e-1", time.Hour); n != 0 || missing != nil {
			t.Errorf("with a token: %d, %v", n, missing)
		}
	})
}

func TestIsTokenChecksTheForm(t *testing.T) {
	for token, want := range map[string]bool{
		"": true, "e-1": true, "node-a-17-3": true, "12": true,
		"zzz": false, "e-": false, "e-x": false, "-1": false, "-": false, strings.Repeat("e", maxToken) + "-1": false,
	} {
		if got := IsToken(token); got != want {
			t.Errorf("%q: %v", token, got)
		}
	}
	if events, _, _ := New("e").From(0); !IsToken(events[0].GetToken()) {
		t.Errorf("a log refuses its own token %q", events[0].GetToken())
	}
}
