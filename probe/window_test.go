package probe

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/topology"
)

const msec = time.Millisecond

func answered(at time.Duration, rtt time.Duration) Sample {
	return Sample{At: epoch.Add(at), RTT: rtt, Method: UDP}
}

func lost(at time.Duration) Sample { return Sample{At: epoch.Add(at), Lost: true, Method: UDP} }

func TestWindowStates(t *testing.T) {
	tcp := answered(40*time.Second, 90*msec)
	tcp.Method = TCP
	busy := answered(time.Second, 150*msec)
	busy.Delay = 60 * msec
	slightlyLate := answered(time.Second, 150*msec)
	slightlyLate.Delay = 5 * msec
	for _, tc := range []struct {
		name    string
		samples []Sample
		now     time.Duration
		state   topology.State
		p50     time.Duration
		loss    float64
		n       int
		method  string
		age     time.Duration
	}{
		{name: "nothing yet", state: topology.Unknown},
		{name: "two lost, none answered", samples: []Sample{lost(0), lost(1)}, state: topology.Unknown},
		{name: "three lost, none answered", samples: []Sample{lost(0), lost(1), lost(2)}, state: topology.Unreachable},
		{name: "one answer", samples: []Sample{answered(0, 70*msec)}, now: time.Second,
			state: topology.OK, p50: 70 * msec, n: 1, method: UDP, age: time.Second - 70*msec},
		{name: "one of two lost", samples: []Sample{answered(0, 70*msec), lost(time.Second)}, now: 4 * time.Second,
			state: topology.OK, p50: 70 * msec, n: 1, loss: 0.5, method: UDP, age: 4*time.Second - 70*msec},
		{name: "old", samples: []Sample{answered(0, 70*msec)}, now: 2 * time.Minute,
			state: topology.Stale, p50: 70 * msec, n: 1, method: UDP, age: 2*time.Minute - 70*msec},
		{name: "older than the window", samples: []Sample{answered(0, 70*msec)}, now: 2 * WindowAge,
			state: topology.Stale, p50: 70 * msec, n: 1, method: UDP, age: 2*WindowAge - 70*msec},
		{name: "gone", samples: []Sample{answered(0, 70*msec), lost(1), lost(2), lost(3)}, now: time.Second,
			state: topology.Unreachable, p50: 70 * msec, n: 1, loss: 0.75, method: UDP, age: time.Second - 70*msec},
		{name: "back with another distance", samples: []Sample{answered(0, 70*msec), lost(1), lost(2), lost(3), answered(time.Second, 200*msec)},
			now: 2 * time.Second, state: topology.OK, p50: 200 * msec, n: 1, method: UDP, age: time.Second - 200*msec},
		{name: "tcp took over", samples: []Sample{answered(0, 70*msec), lost(1), lost(2), tcp}, now: 41 * time.Second,
			state: topology.OK, p50: 90 * msec, n: 1, method: TCP, age: time.Second - 90*msec},
		{name: "answered by tcp before the udp losses were noticed", samples: []Sample{tcp, lost(0), lost(1), lost(2)}, now: 41 * time.Second,
			state: topology.OK, p50: 90 * msec, n: 1, method: TCP, age: time.Second - 90*msec},
		{name: "a busy prober", samples: []Sample{answered(0, 70*msec), busy}, now: 2 * time.Second,
			state: topology.OK, p50: 70 * msec, n: 1, method: UDP, age: time.Second - 150*msec},
		{name: "always busy", samples: []Sample{busy}, now: 2 * time.Second,
			state: topology.OK, p50: 150 * msec, n: 1, method: UDP, age: time.Second - 150*msec},
		{name: "hardly late", samples: []Sample{slightlyLate}, now: 2 * time.Second,
			state: topology.OK, p50: 150 * msec, n: 1, method: UDP, age: time.Second - 150*msec},
		{name: "two hardly late", samples: []Sample{slightlyLate, slightlyLate, busy}, now: 2 * time.Second,
			state: topology.OK, p50: 150 * msec, n: 2, method: UDP, age: time.Second - 150*msec},
	} {
		var w Window
		for _, s := range tc.samples {
			w.Add(s)
		}
		e := w.Edge("a", "b", epoch.Add(tc.now), defaultInterval)
		if e.From != "a" || e.To != "b" || e.State != tc.state || e.P50 != tc.p50 || e.Loss != tc.loss ||
			e.Samples != tc.n || e.Method != tc.method || e.Age != tc.age {
			t.Errorf("%s: %+v", tc.name, e)
		}
		if (e.Source == topology.Measured) != (e.State != topology.Unknown) {
			t.Errorf("%s: source %v in state %v", tc.name, e.Source, e.State)
		}
	}
}

func TestJitterFollowsRFC3550(t *testing.T) {
	for _, tc := range []struct {
		ms   []int
		want float64
	}{
		{nil, 0}, {[]int{50}, 0}, {[]int{50, 50, 50}, 0}, {[]int{50, 60}, 10},
		{[]int{50, 60, 60}, 10 - 10.0/16}, {[]int{50, 60, 40}, 10 + 10.0/16},
	} {
		var rtts []time.Duration
		for _, m := range tc.ms {
			rtts = append(rtts, time.Duration(m)*msec)
		}
		if got := float64(jitter(rtts)) / 1e6; math.Abs(got-tc.want) > 1e-6 {
			t.Errorf("jitter of %v is %v ms, want %v", tc.ms, got, tc.want)
		}
	}
}

// The window against the plain definition: the last WindowSize samples not
// older than WindowAge, sorted; at least p % of them are not above the answer,
// and no smaller sample has that.
func TestWindowAgainstSort(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w Window
		var all []Sample
		var at time.Duration
		for range rapid.IntRange(1, 2*WindowSize).Draw(t, "n") {
			at += time.Duration(rapid.IntRange(1, 20).Draw(t, "gap")) * time.Second
			s := answered(at, time.Duration(rapid.IntRange(1, 500).Draw(t, "ms"))*msec)
			if len(all) > 0 && !all[len(all)-1].Lost && rapid.IntRange(0, 9).Draw(t, "lost") == 0 {
				s = lost(at) // never two in a row, so that the window is never restarted
			}
			all = append(all, s)
			w.Add(s)
		}
		now := epoch.Add(at + time.Second)
		e := w.Edge("a", "b", now, defaultInterval)
		var sorted []time.Duration
		losses := 0
		for _, s := range all[max(0, len(all)-WindowSize):] {
			switch {
			case s.At.Before(now.Add(-WindowAge)):
			case s.Lost:
				losses++
			default:
				sorted = append(sorted, s.RTT)
			}
		}
		slices.Sort(sorted)
		if e.Samples != len(sorted) || e.Min != sorted[0] {
			t.Fatalf("%d samples, min %v; want %d, %v", e.Samples, e.Min, len(sorted), sorted[0])
		}
		if want := float64(losses) / float64(losses+len(sorted)); e.Loss != want {
			t.Fatalf("loss %v, want %v", e.Loss, want)
		}
		for p, got := range map[float64]time.Duration{50: e.P50, 90: e.P90, 99: e.P99} {
			atMost, below := 0, 0
			for _, rtt := range sorted {
				if rtt <= got {
					atMost++
				}
				if rtt < got {
					below++
				}
			}
			need := p / 100 * float64(len(sorted))
			if float64(atMost) < need || float64(below) >= need || !slices.Contains(sorted, got) {
				t.Fatalf("p%v = %v of %v", p, got, sorted)
			}
		}
	})
}

func TestWindowIsBounded(t *testing.T) {
	var w Window
	for i := range 10 * WindowSize {
		w.Add(answered(time.Duration(i)*time.Second, msec))
	}
	if len(w.samples) != WindowSize || cap(w.samples) > 2*WindowSize {
		t.Errorf("holds %d samples in room for %d", len(w.samples), cap(w.samples))
	}
}
