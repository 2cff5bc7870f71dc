package probe

import (
	"math"
	"math/rand/v2"
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

// The window is compared with the plain definition: the last WindowSize samples
// not older than WindowAge, sorted. At least p % of them are not above the
// percentile, and no smaller sample has this property.
func TestWindowAgainstSort(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w Window
		var all []Sample
		var at time.Duration
		for range rapid.IntRange(1, 2*WindowSize).Draw(t, "n") {
			at += time.Duration(rapid.IntRange(1, 20).Draw(t, "gap")) * time.Second
			// The values are so close together that there is no lasting change.
			s := answered(at, time.Duration(rapid.IntRange(400, 450).Draw(t, "ms"))*msec)
			if len(all) > 0 && !all[len(all)-1].Lost && rapid.IntRange(0, 9).Draw(t, "lost") == 0 {
				s = lost(at) // never two losses in a row, so that the window never starts again
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

// edgeAt returns the edge right after the window's latest sample.
func edgeAt(w *Window, at time.Duration) topology.Edge {
	return w.Edge("a", "b", epoch.Add(at), defaultInterval)
}

// A lasting change by a fifth or more, up or down, appears in the median after changeRun
// samples, for any earlier samples. At the default interval that is a quarter of a
// window.
func TestLastingChangeShowsAfterARun(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w Window
		var at time.Duration
		sample := func(rtt time.Duration) {
			at += defaultInterval
			noise := rapid.Float64Range(0.98, 1.02).Draw(t, "noise")
			w.Add(answered(at, time.Duration(float64(rtt)*noise)))
		}
		was := time.Duration(rapid.IntRange(3, 400).Draw(t, "was")) * msec
		by := rapid.Float64Range(1.2, 5).Draw(t, "by")
		if rapid.Bool().Draw(t, "down") {
			by = 1 / by
		}
		is := time.Duration(float64(was) * by)
		for range rapid.IntRange(0, 2*WindowSize).Draw(t, "before") {
			sample(was)
		}
		for range changeRun {
			if rapid.IntRange(0, 9).Draw(t, "lost") == 0 {
				at += retryInterval
				w.Add(lost(at))
			}
			sample(is)
		}
		if got := edgeAt(&w, at+time.Second).P50; (got - is).Abs() > is/40 {
			t.Fatalf("%v became %v, shown are %v after %d samples", was, is, got, changeRun)
		}
	})
}

// On a path with variation, single samples that are off by four times the
// deviation or more, and single losses, change neither the state nor, after the
// first samples, the reported median.
func TestOutliersDoNotChangeTheEdge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w Window
		var at time.Duration
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		base := rapid.Float64Range(2, 400).Draw(t, "ms")
		sigma := base * rapid.Float64Range(0, 0.03).Draw(t, "sigma")
		outlier := rapid.Float64Range(4, 100).Draw(t, "outlier")
		every := rapid.IntRange(3, 20).Draw(t, "every")
		var reported topology.Edge
		for i := range 300 {
			at += defaultInterval
			rtt := base + sigma*max(-3, min(3, rnd.NormFloat64()))
			switch {
			case i%every == every-1 && rnd.IntN(3) == 0:
				w.Add(lost(at))
				at += retryInterval
			case i%every == every-1 && rnd.IntN(2) == 0:
				rtt += outlier * sigma
			case i%every == every-1:
				rtt = max(0.1, rtt-outlier*sigma)
			}
			w.Add(answered(at, time.Duration(rtt*1e6)))
			e := edgeAt(&w, at+time.Second)
			checkEdge(t, e)
			if e.State != topology.OK {
				t.Fatalf("sample %d: %s", i, summary(e))
			}
			switch {
			case i < quickProbes:
				reported = e
			case noticeable(reported, e):
				t.Fatalf("sample %d: reported as %s, now %s", i, summary(reported), summary(e))
			}
		}
	})
}

// The directions of losses are known once responses report them.
func TestLossPerDirection(t *testing.T) {
	var w Window
	add := func(at, sequence int, lost bool) {
		w.Add(Sample{At: epoch.Add(time.Duration(at) * time.Second), RTT: 50 * msec, Lost: lost, Method: UDP, Session: 1, Sequence: uint64(sequence)})
	}
	expect := func(loss, out, back float64) {
		t.Helper()
		if e := edgeAt(&w, 20*time.Second); e.Loss != loss || e.LossOut != out || e.LossBack != back {
			t.Errorf("loss %v, out %v, back %v; want %v, %v, %v", e.Loss, e.LossOut, e.LossBack, loss, out, back)
		}
	}
	add(0, 1, false)
	add(1, 2, true)
	add(2, 3, true)
	expect(2./3, 0, 0) // not reported yet
	add(3, 4, false)
	w.LearnDirections(1, 4, arrivals{span: 4, bits: 0b1011}) // request 3 arrived and request 2 did not
	expect(0.5, 0.25, 0.25)
	add(4, 5, true)
	add(5, 7, false)
	w.LearnDirections(2, 7, arrivals{span: 64, bits: 1}) // another session
	w.LearnDirections(1, 7, arrivals{span: 1, bits: 1})  // a restarted responder
	expect(0.5, 1./6, 1./6)
}

// A loss while the prober itself did not run does not count.
func TestLossesOfABusyProberAreSetAside(t *testing.T) {
	var w Window
	w.Add(answered(0, 50*msec))
	for i := range 5 {
		s := lost(time.Duration(i) * time.Second)
		s.Delay = time.Second
		w.Add(s)
	}
	if e := edgeAt(&w, 6*time.Second); e.State != topology.OK || e.Loss != 0 || e.SetAside != 5 || e.Samples != 1 {
		t.Errorf("%s, %d set aside", summary(e), e.SetAside)
	}
}

// Any samples, also with absurd round trips and a clock that is set back and forth,
// give a valid edge. Afterwards the window works as usual.
func TestWindowSurvivesAbsurdSamples(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w Window
		now := epoch
		for range rapid.IntRange(0, 200).Draw(t, "n") {
			switch rapid.IntRange(0, 9).Draw(t, "kind") {
			case 0:
				now = now.Add(time.Duration(rapid.Int64Range(-int64(24*time.Hour), int64(24*time.Hour)).Draw(t, "jump")))
			case 1:
				now = now.Add(time.Minute)
			}
			w.Add(Sample{
				At: now, RTT: time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "rtt")),
				Lost: rapid.Bool().Draw(t, "lost"), Method: rapid.SampledFrom([]string{UDP, TCP}).Draw(t, "method"),
				Delay: time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "delay")),
			})
			checkEdge(t, w.Edge("a", "b", now, defaultInterval))
		}
		// The clock is set back a last time, by at least clockSlack.
		at := now.Add(-3 * time.Hour)
		for range UnreachableAfter {
			at = at.Add(time.Second)
			w.Add(Sample{At: at, Lost: true, Method: UDP})
		}
		if e := w.Edge("a", "b", at, defaultInterval); e.State != topology.Unreachable {
			t.Fatalf("after %d losses: %s", UnreachableAfter, summary(e))
		}
		for range changeRun {
			at = at.Add(time.Second)
			w.Add(Sample{At: at, RTT: 50 * msec, Method: UDP})
		}
		if e := w.Edge("a", "b", at.Add(time.Second), defaultInterval); e.State != topology.OK || e.P50 != 50*msec || e.Method != UDP {
			t.Fatalf("after %d answers: %s", changeRun, summary(e))
		}
	})
}
