package probe

import (
	"math"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/topology"
)

const (
	// WindowSize and WindowAge bound the window of an edge: its latest samples. In ten
	// minutes there are 20 samples at the default interval, so p99 is the worst sample.
	// After a lasting change the window starts again, see changeRun.
	WindowSize = 128
	WindowAge  = 10 * time.Minute
	// UnreachableAfter is the number of successive losses that make an edge
	// unreachable.
	UnreachableAfter = 3
	// StaleIntervals is the number of intervals without a response after which an edge is
	// stale.
	StaleIntervals = 3

	// A sample is set aside if the delay of the prober or of the responder was more than
	// delayFloor, and more than the share delayShare of the round trip.
	delayFloor = 2 * time.Millisecond
	delayShare = 0.05
	// A loss is ignored if the prober itself was delayed by more than lossDelay, because
	// the response may have arrived and been dropped.
	lossDelay = 250 * time.Millisecond

	// changeRun successive samples are a lasting change if three conditions hold: all of
	// them differ from the earlier median in the same direction, by more than the factor
	// changeBy and by more than changeLeast, and they lie beyond nine tenths of the
	// earlier samples. The window then begins with these samples. On a steady edge,
	// whatever its distribution is, this happens once in 100,000 samples in each
	// direction.
	changeRun   = 5
	changeBy    = 1.15
	changeLeast = 300 * time.Microsecond

	// If a response seems to be older than an earlier response by more than clockSlack,
	// the clock was set back.
	clockSlack = time.Minute

	// jitterGain is the gain in the formula of RFC 3550, 6.4.1.
	jitterGain = 1.0 / 16
)

// Sample is the result of one probe.
type Sample struct {
	// At is the time of sending.
	At time.Time
	// RTT is the round trip. It is meaningless if Lost.
	RTT    time.Duration
	Lost   bool
	Method string
	// Delay is the delay that the prober or the responder added itself.
	Delay time.Duration
	// Session and Sequence number the packet. Together with later responses, they tell in
	// which direction the packet was lost.
	Session, Sequence uint64
	// LostOn is the direction in which the packet was lost, if known.
	LostOn Direction
}

// Direction is the direction in which a packet was lost.
type Direction uint8

// The directions.
const (
	DirectionUnknown Direction = iota
	Outbound                   // the request, from the prober to the responder
	Return                     // the response
)

// delayed reports whether the sample measures a busy machine more than the network.
func (s Sample) delayed() bool {
	if s.Lost {
		return s.Delay > lossDelay
	}
	return s.Delay > delayFloor && float64(s.Delay) > delayShare*float64(s.RTT)
}

// Window holds the latest samples of one peer and summarises them. The zero value is
// empty. A Window is not safe for concurrent use.
type Window struct {
	samples  []Sample // in the order of Add
	lostRun  int      // probes lost since the latest response
	latest   Sample   // latest response
	answered bool     // there was a response
}

// Add adds a sample. The oldest samples beyond WindowSize are dropped. The older samples
// are also dropped after a lasting change, and at the first response of a peer that was
// unreachable, because its path may have changed.
func (w *Window) Add(s Sample) {
	switch {
	case s.Lost && s.delayed():
	case s.Lost:
		// A loss is detected late. It does not count if a later probe already had a
		// response.
		if since := w.latest.At.Sub(s.At); !w.answered || since < 0 || since > clockSlack {
			w.lostRun++
		}
	default:
		if w.lostRun >= UnreachableAfter {
			w.samples = w.samples[:0]
		}
		w.lostRun = 0
		if since := w.latest.arrival().Sub(s.arrival()); !w.answered || since <= 0 || since > clockSlack {
			w.latest, w.answered = s, true
		}
	}
	if len(w.samples) >= WindowSize {
		w.samples = slices.Delete(w.samples, 0, len(w.samples)-WindowSize+1)
	}
	w.samples = append(w.samples, s)
	if !s.Lost && !s.delayed() {
		w.restartOnChange(s.Method)
	}
}

// restartOnChange drops the samples from before a lasting change.
func (w *Window) restartOnChange(method string) {
	var clean []time.Duration
	begin := 0 // the index of the first sample of the run
	run := 0
	for i, s := range slices.Backward(w.samples) {
		if s.Lost || s.delayed() || s.Method != method {
			continue
		}
		run++
		if run <= changeRun {
			begin = i
		}
		clean = append(clean, s.RTT)
	}
	if len(clean) < 2*changeRun {
		return // with so few samples the median follows a change equally fast
	}
	latest, before := clean[:changeRun], clean[changeRun:]
	slices.Sort(before)
	median := percentile(before, 50)
	least, most := slices.Min(latest), slices.Max(latest)
	up := float64(least) > changeBy*float64(median) && least-median > changeLeast && least > percentile(before, 90)
	down := changeBy*float64(most) < float64(median) && median-most > changeLeast && most < percentile(before, 10)
	if up || down {
		w.samples = slices.Delete(w.samples, 0, begin)
	}
}

// LearnDirections notes in which direction earlier packets were lost, as far as a response
// reports which requests arrived.
func (w *Window) LearnDirections(session, sequence uint64, a arrivals) {
	for i := range slices.Backward(w.samples) {
		s := &w.samples[i]
		if s.Lost && s.LostOn == DirectionUnknown && s.Session == session && s.Sequence < sequence {
			s.LostOn = a.direction(sequence - s.Sequence)
		}
	}
}

// direction returns the direction in which the packet of a request without response was
// lost. The request is back numbers before the request that got the response.
func (a arrivals) direction(back uint64) Direction {
	arrived, known := a.arrived(back)
	switch {
	case !known:
		return DirectionUnknown
	case arrived:
		return Return
	}
	return Outbound
}

func (s Sample) arrival() time.Time { return s.At.Add(s.RTT) }

// Edge returns the edge that the window's samples show. Percentiles are by the nearest
// rank, over the samples of the method that got the latest response. Samples that were set
// aside count only if there are no other samples. interval is the time between probes.
func (w *Window) Edge(from, to string, now time.Time, interval time.Duration) topology.Edge {
	e := topology.Edge{From: from, To: to, Source: topology.Measured, State: topology.OK}
	if w.answered {
		e.Method = w.latest.Method
		e.Age = max(0, now.Sub(w.latest.arrival()))
		w.sumUp(&e, now)
	}
	switch {
	case w.lostRun >= UnreachableAfter:
		e.State = topology.Unreachable
	case !w.answered:
		return topology.Edge{From: from, To: to}
	case e.Age > StaleIntervals*interval:
		e.State = topology.Stale
	}
	return e
}

// sumUp sets the numbers of an edge. Samples older than WindowAge count only if there are
// no younger samples, because old numbers with an age are better than none.
func (w *Window) sumUp(e *topology.Edge, now time.Time) {
	var clean, delayed []time.Duration
	lost, ways := 0, [...]int{DirectionUnknown: 0, Outbound: 0, Return: 0}
	oldest := now.Add(-WindowAge)
	if w.latest.At.Before(oldest) {
		oldest = w.latest.At.Add(-WindowAge)
	}
	for _, s := range w.samples {
		switch {
		case s.Method != e.Method || s.At.Before(oldest):
		case s.Lost && s.delayed():
			e.SetAside++
		case s.Lost:
			lost++
			ways[s.LostOn]++
		case s.delayed():
			delayed = append(delayed, s.RTT)
		default:
			clean = append(clean, s.RTT)
		}
	}
	if all := float64(len(clean) + len(delayed) + lost); all > 0 {
		e.Loss, e.LossOut, e.LossBack = float64(lost)/all, float64(ways[Outbound])/all, float64(ways[Return])/all
	}
	use := clean
	if len(use) == 0 {
		use = delayed
	} else {
		e.SetAside += len(delayed)
	}
	e.Samples = len(use)
	e.Jitter = jitter(use)
	slices.Sort(use)
	e.P50, e.P90, e.P99 = percentile(use, 50), percentile(use, 90), percentile(use, 99)
	if len(use) > 0 {
		e.Min = use[0]
	}
}

// percentile returns a percentile of sorted values by the nearest rank; 0 without values.
func percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}

// jitter smooths the differences of successive samples as in RFC 3550, 6.4.1. It starts
// from the first difference instead of 0, because a window is short.
func jitter(inOrder []time.Duration) time.Duration {
	var j float64
	for i := 1; i < len(inOrder); i++ {
		d := math.Abs(float64(inOrder[i] - inOrder[i-1]))
		if i == 1 {
			j = d
			continue
		}
		j += (d - j) * jitterGain
	}
	return time.Duration(j)
}
