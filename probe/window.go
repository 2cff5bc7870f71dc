package probe

import (
	"math"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/topology"
)

const (
	// WindowSize and WindowAge bound the samples that an edge speaks of, its
	// window. Ten minutes are 20 samples at the default interval: p99 is then
	// the worst. A lasting change ends a window early: see changeRun.
	WindowSize = 128
	WindowAge  = 10 * time.Minute
	// UnreachableAfter so many probes in a row were lost.
	UnreachableAfter = 3
	// StaleIntervals without an answer make an edge stale.
	StaleIntervals = 3

	// A sample whose prober says that it was itself delayed by more than this,
	// and by more than this share of the round trip, is set aside.
	delayFloor = 2 * time.Millisecond
	delayShare = 0.05
	// A loss says nothing if the prober was itself delayed by this much: the
	// answer may have come and been thrown away.
	lossDelay = 250 * time.Millisecond

	// changeRun samples in a row that are all beyond changeBy of the median
	// before, in one direction, and beyond nine tenths of the samples before,
	// are a lasting change: the window begins with them. Of a steady edge,
	// however it is spread, that happens once in 100,000 samples a side.
	changeRun   = 5
	changeBy    = 1.15
	changeLeast = 300 * time.Microsecond

	// clockSlack: an answer that seems this much older than one that came
	// before it shows that the clock was set back.
	clockSlack = time.Minute

	// jitterGain is that of RFC 3550, 6.4.1.
	jitterGain = 1.0 / 16
)

// Sample is what became of one probe.
type Sample struct {
	// At is when it was sent.
	At time.Time
	// RTT of the answer; meaningless if Lost.
	RTT    time.Duration
	Lost   bool
	Method string
	// Delay by which the prober or the responder says that it was late itself.
	Delay time.Duration
	// Session and Sequence of its packet, to learn later where it was lost.
	Session, Sequence uint64
	// Direction on which it was lost, as far as known.
	LostOn Direction
}

// Direction on which a packet was lost.
type Direction uint8

// Ways.
const (
	DirectionUnknown Direction = iota // not known
	Outbound                          // the question, from the prober to the responder
	Return                            // the answer
)

// delayed reports whether the sample says more about a busy machine than about
// the network.
func (s Sample) delayed() bool {
	if s.Lost {
		return s.Delay > lossDelay
	}
	return s.Delay > delayFloor && float64(s.Delay) > delayShare*float64(s.RTT)
}

// Window holds the latest samples of one peer and says what they mean. The
// zero value is empty. Not safe for concurrent use.
type Window struct {
	samples  []Sample // in the order of Add
	lostRun  int      // sent since the latest answer and lost
	latest   Sample   // latest answer
	answered bool     // there was one
}

// Add takes a settled sample; older ones beyond WindowSize are dropped. An
// answer after the peer was unreachable starts afresh: the way may be another;
// so does a lasting change.
func (w *Window) Add(s Sample) {
	switch {
	case s.Lost && s.delayed():
	case s.Lost:
		// A loss is noticed late: what was answered since then counts more.
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

// restartOnChange drops what is older than a lasting change.
func (w *Window) restartOnChange(method string) {
	var clean []time.Duration
	begin := 0 // index of the first sample of the run
	run := 0
	for i, s := range slices.Backward(w.samples) {
		if s.Lost || s.delayed() || s.Method != method {
			continue
		}
		if run++; run <= changeRun {
			begin = i
		}
		clean = append(clean, s.RTT)
	}
	if len(clean) < 2*changeRun {
		return // the median follows as fast
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

// LearnDirections takes what an answer to one request tells of the requests before it:
// on which way those were lost that were not answered.
func (w *Window) LearnDirections(session, sequence uint64, a arrivals) {
	for i := range slices.Backward(w.samples) {
		s := &w.samples[i]
		if s.Lost && s.LostOn == DirectionUnknown && s.Session == session && s.Sequence < sequence {
			s.LostOn = a.direction(sequence - s.Sequence)
		}
	}
}

// direction on which the request back by so many was lost, given that no answer came.
func (a arrivals) direction(back uint64) Direction {
	came, told := a.came(back)
	switch {
	case !told:
		return DirectionUnknown
	case came:
		return Return
	}
	return Outbound
}

func (s Sample) arrival() time.Time { return s.At.Add(s.RTT) }

// Edge sums up the window. Percentiles are nearest-rank over the samples of the
// method that answered last; samples that were set aside count only where
// there are no others. The interval is that between probes.
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

// sumUp fills in the numbers. What is older than WindowAge counts only where
// nothing is younger: old numbers, marked by their age, beat none.
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

// percentile of sorted values by nearest rank; 0 of none.
func percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}

// jitter smooths the differences of successive samples as RFC 3550, 6.4.1, but
// starts from the first difference instead of from 0: a window is short.
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
