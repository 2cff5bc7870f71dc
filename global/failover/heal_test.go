package failover

import (
	"strings"
	"testing"
	"time"
)

// TestOnlyWhatMayContinueIsKept: each condition alone makes a region end the work that it lost.
func TestOnlyWhatMayContinueIsKept(t *testing.T) {
	good := Return{Holds: true, Allowed: true}
	if keep, why := good.Keep(); !keep || !strings.Contains(why, "keep_original") {
		t.Fatalf("%v: %s", keep, why)
	}
	for text, change := range map[string]func(*Return){
		"order to stop":    func(r *Return) { r.Stopping = true },
		"have ended":       func(r *Return) { r.Done = true },
		"it was before":    func(r *Return) { r.Home = true },
		"lease binds":      func(r *Return) { r.Stop = true },
		"keep_replacement": func(r *Return) { r.KeepReplacement = true },
		"does not allow":   func(r *Return) { r.Allowed = false },
		"draining":         func(r *Return) { r.Draining = true },
		"three times":      func(r *Return) { r.Unsteady = true },
		"too old":          func(r *Return) { r.Holds = false },
	} {
		r := good
		change(&r)
		if keep, why := r.Keep(); keep || !strings.Contains(why, text) {
			t.Errorf("%s: %v, %q", text, keep, why)
		}
	}
}

func TestUnsteadyAfterThreeLossesInAnHour(t *testing.T) {
	for _, c := range []struct {
		ago  []time.Duration
		want bool
	}{
		{nil, false},
		{[]time.Duration{50 * time.Minute, time.Minute}, false},
		{[]time.Duration{2 * time.Hour, 61 * time.Minute, 50 * time.Minute, time.Minute}, false},
		{[]time.Duration{59 * time.Minute, 20 * time.Minute, time.Second}, true},
	} {
		if got := Unsteady(c.ago); got != c.want {
			t.Errorf("%v: %v", c.ago, got)
		}
	}
}
