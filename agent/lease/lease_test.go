package lease

import (
	"testing"
	"time"
)

const s = time.Second

func TestLeaseDecidesWhatMayRun(t *testing.T) {
	none, good, over := State{}, State{Held: true, Left: s}, State{Held: true, Left: 0}
	for _, c := range []struct {
		name        string
		policy      Policy
		state       State
		start, stop bool
	}{
		{"keep, no lease yet", Keep, none, true, false},
		{"keep, held", Keep, good, true, false},
		{"keep, expired", Keep, over, true, false},
		{"stop, no lease yet", Stop, none, false, false},
		{"stop, held", Stop, good, true, false},
		{"stop, expired", Stop, over, false, true},
	} {
		v := Evaluate(c.policy, c.state)
		if v.MayStart != c.start || v.MustStop != c.stop || (v.Reason == "") != c.start {
			t.Errorf("%s: %+v", c.name, v)
		}
	}
}
