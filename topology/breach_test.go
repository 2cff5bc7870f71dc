package topology_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/probe"
	"github.com/nusa-scheduler/nusa/topology"
)

const (
	msec = time.Millisecond
	tick = 30 * time.Second
)

func ok(rtt time.Duration) topology.Distance {
	return topology.Distance{RTT: rtt, State: topology.OK, Source: topology.Measured}
}

// script steps a breach through distances, one distance a tick.
func script(b topology.Breach, bound topology.Bound, all ...topology.Distance) topology.Breach {
	for _, d := range all {
		b = b.Step(bound, d, tick)
	}
	return b
}

func times(n int, all ...topology.Distance) []topology.Distance {
	var out []topology.Distance
	for range n {
		out = append(out, all...)
	}
	return out
}

func concat(all ...[]topology.Distance) []topology.Distance {
	var out []topology.Distance
	for _, x := range all {
		out = append(out, x...)
	}
	return out
}

func TestAMoveNeedsAThirdAndTenMilliseconds(t *testing.T) {
	for _, tc := range []struct {
		now, then time.Duration
		want      bool
	}{
		{100 * msec, 66 * msec, true}, {100 * msec, 67 * msec, false}, // a third
		{20 * msec, 10 * msec, true}, {20 * msec, 11 * msec, false}, // 10 ms
		{9 * msec, 0, false}, {50 * msec, 60 * msec, false}, {0, 0, false},
	} {
		if got := topology.ImprovesEnough(tc.now, tc.then); got != tc.want {
			t.Errorf("from %v to %v: %v", tc.now, tc.then, got)
		}
	}
}

func TestBreachIsSustainedAfterItsBalance(t *testing.T) {
	bound := topology.Bound{MaxRTT: 40 * msec}
	over, within := ok(58*msec), ok(40*msec)
	stale := topology.Distance{RTT: 90 * msec, State: topology.Stale, Source: topology.Measured, Age: 5 * time.Minute}
	predicted := topology.Distance{RTT: 90 * msec, Source: topology.Predicted, Error: 0.2}
	unreachable := topology.Distance{RTT: 90 * msec, State: topology.Unreachable, Source: topology.Measured}
	n := int(topology.BreachSustain / tick)
	for _, tc := range []struct {
		name  string
		bound topology.Bound
		feed  []topology.Distance
		want  string
	}{
		{"nothing", bound, nil, "kept: nothing known"},
		{"the bound itself is kept", bound, times(n+1, within), "kept, 40.0ms now"},
		{"one value too many", bound, times(1, over), "broken for 0s, 58.0ms now, 58.0ms at worst"},
		{"not yet sustained", bound, times(n, over), "broken for 14m30s, 58.0ms now, 58.0ms at worst"},
		{"sustained", bound, times(n+1, over), "sustained for 15m0s, 58.0ms now, 58.0ms at worst"},
		{"one good value does not heal", bound, append(times(n+1, over), within), "sustained for 15m30s, 40.0ms now, 58.0ms at worst, healing"},
		{"as long within as it was over does", bound, concat(times(n+1, over), times(n+1, within)), "kept, 40.0ms now"},
		{"and a little less does not", bound, concat(times(n+1, over), times(n, within)), "sustained for 30m0s, 40.0ms now, 58.0ms at worst, healing"},
		{"half of the time is not sustained", bound, append(times(10*n, over, over, within, within), within), "kept, 40.0ms now"},
		{"mostly is, in time", bound, times(n, over, over, over, within, within), "sustained for 1h14m30s, 40.0ms now, 58.0ms at worst, healing"},
		{"stale says nothing", bound, times(2*n, stale), "kept: nothing known"},
		{"unless the job allows it", topology.Bound{MaxRTT: 40 * msec, Stale: true}, times(n+1, stale), "sustained for 15m0s, 90.0ms now, 90.0ms at worst"},
		{"guesses say nothing", topology.Bound{MaxRTT: 40 * msec, Stale: true}, times(2*n, predicted), "kept: nothing known"},
		{"unless the job allows them", topology.Bound{MaxRTT: 40 * msec, Guesses: true, Sustain: time.Minute}, times(3, predicted), "sustained for 1m0s, 90.0ms now, 90.0ms at worst"},
		{"unreachable is another matter", topology.Bound{MaxRTT: 40 * msec, Guesses: true, Stale: true}, times(2*n, unreachable), "kept: nothing known"},
		{"a short silence keeps what was known", bound, concat(times(n+1, over), times(3, stale)), "sustained for 16m30s, 58.0ms now, 58.0ms at worst"},
		{"a longer one ends it", bound, concat(times(n+1, over), times(4, stale)), "kept: nothing known"},
	} {
		if got := script(topology.Breach{}, tc.bound, tc.feed...).String(); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}

// A pause of the caller counts as a gap, not as fifteen minutes of breach.
func TestBreachDoesNotCountAGap(t *testing.T) {
	bound := topology.Bound{MaxRTT: msec}
	b := script(topology.Breach{}, bound, ok(2*msec)).Step(bound, ok(2*msec), time.Hour)
	if b.State != topology.Broken || b.Since != 0 || b.Balance != 0 {
		t.Errorf("%+v", b)
	}
	b = b.Step(bound, ok(2*msec), -time.Hour)
	if b.Since != 0 || b.Balance != 0 {
		t.Errorf("time ran backwards: %+v", b)
	}
}

// One outlier keeps p99 up for a whole window of probes, and must not count as
// sustained.
func TestSustainIsLongerThanAProbeWindow(t *testing.T) {
	if topology.BreachSustain <= probe.WindowAge {
		t.Errorf("sustained after %v, a window covers %v", topology.BreachSustain, probe.WindowAge)
	}
}

// For any input: a breach is sustained only after enough time over the bound, every
// field stays in its range, and only evidence counts.
func TestBreachProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bound := topology.Bound{MaxRTT: 50 * msec, Sustain: 2 * time.Minute}
		var b topology.Breach
		var overFor time.Duration // an upper bound: counts every step that ends over the bound
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			passed := time.Duration(rapid.IntRange(0, 150).Draw(t, "s")) * time.Second
			d := topology.Distance{
				RTT:    time.Duration(rapid.IntRange(45, 55).Draw(t, "ms")) * msec,
				State:  rapid.SampledFrom([]topology.State{topology.OK, topology.OK, topology.OK, topology.Stale, topology.Unreachable}).Draw(t, "state"),
				Source: topology.Measured,
			}
			before := b
			b = b.Step(bound, d, passed)
			overFor += passed
			if before.State == topology.WithinBound {
				overFor = 0
			}
			if b.State == topology.Sustained && before.State != topology.Sustained {
				if overFor < bound.Sustain || d.State != topology.OK || d.RTT <= bound.MaxRTT {
					t.Fatalf("sustained after %v by %v: %+v", overFor, d, b)
				}
			}
			if b.Balance < 0 || b.Balance > bound.Sustain || b.Since < b.Balance || (b.State == topology.WithinBound) != (b.Since == 0 && b.Worst == 0) {
				t.Fatalf("%+v", b)
			}
			if d.State != topology.OK && b.HasEvidence && (b.Latest != before.Latest || b.State != before.State || b.Balance != before.Balance) {
				t.Fatalf("counted %v: %+v", d, b)
			}
		}
	})
}
