package history

import (
	"strings"
	"testing"
)

func TestResumeOrReset(t *testing.T) {
	r := New("e")
	now := r.After("")
	r.Add("a", "s", "%d", 1)
	r.Add("b", "s", "%d", 2)
	events, next, changed := r.From(now)
	if len(events) != 2 || events[0].GetMessage() != "1" || events[1].GetType() != "b" {
		t.Fatalf("%v", events)
	}
	if more, _, _ := r.From(next); len(more) != 0 {
		t.Errorf("twice: %v", more)
	}
	r.Add("c", "s", "")
	select {
	case <-changed:
	default:
		t.Error("nobody was told")
	}
	if again, _, _ := r.From(r.After(events[0].GetToken())); len(again) != 2 || again[0].GetType() != "b" {
		t.Errorf("resumed with %v", again)
	}
	for _, token := range []string{"other-1", "e-99", "e-x", "nonsense"} {
		if got, _, _ := r.From(r.After(token)); len(got) != 1 || !got[0].GetReset_() {
			t.Errorf("%s: %v", token, got)
		}
	}
	for range Kept {
		r.Add("d", "s", "")
	}
	gap, next, _ := r.From(r.After(events[0].GetToken()))
	if len(gap) != 1 || !gap[0].GetReset_() {
		t.Errorf("after more than are kept: %v", gap)
	}
	r.Add("e", "s", "")
	if got, _, _ := r.From(next); len(got) != 1 || got[0].GetType() != "e" {
		t.Errorf("after the reset: %v", got)
	}
	if got, _, _ := r.From(r.After(gap[0].GetToken())); len(got) != 1 || got[0].GetType() != "e" {
		t.Errorf("from the reset's token: %v", got)
	}
}

func TestIsToken(t *testing.T) {
	for token, want := range map[string]bool{
		"": true, "e-1": true, "node-a-17-3": true,
		"zzz": false, "e-": false, "e-x": false, "-1": false, "12": false, strings.Repeat("e", maxToken) + "-1": false,
	} {
		if got := IsToken(token); got != want {
			t.Errorf("%q: %v", token, got)
		}
	}
	if events, _, _ := New("e").From(0); !IsToken(events[0].GetToken()) {
		t.Errorf("a history does not take its own token %q", events[0].GetToken())
	}
}
