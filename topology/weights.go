package topology

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// ErrWeights means that a weight or a load is out of its bounds. The text says which one.
var ErrWeights = errors.New("invalid weights")

// Bounds of Weights.
const (
	// MaxWeight bounds Weights.CPU and Weights.Queue.
	MaxWeight = time.Minute
	// MaxLinkFactor and MaxLinks bound Weights.Links.
	MaxLinkFactor = 1000.0
	MaxLinks      = 4096
	// maxPrice bounds the cost of the load of one region.
	maxPrice = time.Hour
	// maxBusy is the greatest utilisation for which the formula of busy is used, because
	// the formula has no value at 1.
	maxBusy = 0.99
)

// Load is the load of a region at the far end of an edge.
type Load struct {
	// CPUMean is the mean utilisation of the region's CPUs, 0..1.
	CPUMean float64
	// CPUVariance is the variance of the CPUs' utilisation over time, 0..0.25.
	CPUVariance float64
	// QueueMean is the mean length of the region's virtual queue, ≥ 0.
	QueueMean float64
	// QueueVariance is the variance of the queue's length, ≥ 0.
	QueueVariance float64
}

// busy returns the waiting factor of a queue with one server:
//
//	ρ/(1−ρ) · (1+C²)/2
//
// This is the mean waiting time in units of the mean service time, by the
// Pollaczek–Khinchine formula for M/G/1 (Kleinrock, Queueing Systems I, 1975, section
// 5.6). ρ is CPUMean. In the formula C² is the squared coefficient of variation of service
// times. Service times are not measured, so CPUVariance/CPUMean² is used instead. The
// result is therefore a penalty and not a forecast. The variance counts up to ρ·(1−ρ), the
// greatest variance of a value within 0..1.
func (l Load) busy() float64 {
	rho := min(l.CPUMean, maxBusy)
	if rho <= 0 {
		return 0
	}
	variance := min(l.CPUVariance, rho*(1-rho))
	return (rho + variance/rho) / (1 - rho) / 2 // the formula above without ρ², which would underflow
}

// queue returns the mean length of the queue plus one standard deviation. By Cantelli's
// inequality the queue is longer than that at most half of the time, whatever its
// distribution is.
func (l Load) queue() float64 { return l.QueueMean + math.Sqrt(l.QueueVariance) }

func (l Load) check() error {
	for _, f := range []struct {
		what     string
		value, m float64
	}{
		{"cpu mean", l.CPUMean, 1}, {"cpu variance", l.CPUVariance, 0.25},
		{"queue mean", l.QueueMean, math.MaxFloat64}, {"queue variance", l.QueueVariance, math.MaxFloat64},
	} {
		if !(f.value >= 0 && f.value <= f.m) {
			return fmt.Errorf("%s %v: must be 0..%v", f.what, f.value, f.m)
		}
	}
	return nil
}

// LinkWeight multiplies the cost of one directed edge by Factor, 0..MaxLinkFactor. With a
// factor above 1 the edge is avoided, with a factor below 1 it is preferred. The reported
// round trip does not change.
type LinkWeight struct {
	From, To string
	Factor   float64
}

// Weights define what an edge a → b costs:
//
//	cost = rtt · factor(a → b) + CPU · busy(b) + Queue · queue(b)
//
// busy(b) and queue(b) are computed from the Load of b: busy = ρ/(1−ρ) · (1+C²)/2, and
// queue = mean + standard deviation. The part of the load is at most an hour. The cost of
// a path is the sum over its edges. So the load of relays and of the end counts, but not
// the load of the start. With the zero value only latency counts.
type Weights struct {
	// CPU is the cost of one mean service time at a region, 0..MaxWeight. For example,
	// with 1ms a region that is 80 % busy, without variance, costs as much as 2 ms of
	// round trip.
	CPU time.Duration
	// Queue is the cost of one entry in the virtual queue, 0..MaxWeight.
	Queue time.Duration
	// Loads holds the loads by region. A region without a load counts as idle, and
	// Path.UnknownLoad lists the region. Regions that the view does not have are ignored.
	Loads map[string]Load
	// Links has at most MaxLinks links. If a link is given twice, the last one counts.
	// Links of regions that the view does not have are ignored.
	Links []LinkWeight
}

// Cost is the cost of a path, in parts.
type Cost struct {
	// RTT is the sum of the round trips.
	RTT time.Duration
	// Links is the effect of the link factors. It is negative for preferred links.
	Links time.Duration
	// CPU and Queue are the costs of the load.
	CPU, Queue time.Duration
}

// Total returns the sum of the parts.
func (c Cost) Total() time.Duration { return c.RTT + c.Links + c.CPU + c.Queue }

// String prints for example "cost 50.0ms = rtt 40.0ms + cpu 10.0ms". Parts that are 0 are
// left out.
func (c Cost) String() string {
	s := fmt.Sprintf("cost %.1fms = rtt %.1fms", ms(c.Total()), ms(c.RTT))
	for _, part := range []struct {
		name string
		d    time.Duration
	}{{"links", c.Links}, {"cpu", c.CPU}, {"queue", c.Queue}} {
		switch {
		case part.d > 0:
			s += fmt.Sprintf(" + %s %.1fms", part.name, ms(part.d))
		case part.d < 0:
			s += fmt.Sprintf(" - %s %.1fms", part.name, ms(-part.d))
		}
	}
	return s
}

// compiledWeights are Weights by the indexes of the view's regions. A nil pointer has no
// effect.
type compiledWeights struct {
	price []int64 // the cost of CPU and queue, by region; nil if load does not count
	cpu   []int64 // the CPU part of price
	known []bool  // the load is known
	links map[int][]link
}

type link struct {
	to     int
	factor float64
}

// extra returns the cost that the factor of a link adds to a round trip.
func (l link) extra(rtt int64) int64 {
	return min(int64(math.Round(float64(rtt)*l.factor)), maxHop) - rtt
}

// compile checks the weights and converts them for a view. It returns nil if they have no
// effect. The error is ErrWeights.
func (w Weights) compile(v *View) (*compiledWeights, error) {
	if w.CPU < 0 || w.CPU > MaxWeight || w.Queue < 0 || w.Queue > MaxWeight {
		return nil, fmt.Errorf("%w: cpu %s, queue %s: must be 0..%s", ErrWeights, w.CPU, w.Queue, MaxWeight)
	}
	if len(w.Links) > MaxLinks {
		return nil, fmt.Errorf("%w: %d links: at most %d", ErrWeights, len(w.Links), MaxLinks)
	}
	c := &compiledWeights{links: map[int][]link{}}
	for _, l := range w.Links {
		if !(l.Factor >= 0 && l.Factor <= MaxLinkFactor) {
			return nil, fmt.Errorf("%w: link %s to %s: factor %v: must be 0..%v", ErrWeights, l.From, l.To, l.Factor, MaxLinkFactor)
		}
		c.set(v, l)
	}
	if w.CPU > 0 || w.Queue > 0 {
		if err := c.load(v, w); err != nil {
			return nil, err
		}
	}
	if len(c.links) == 0 && c.price == nil {
		return nil, nil
	}
	return c, nil
}

func (c *compiledWeights) set(v *View, l LinkWeight) {
	from, okFrom := v.index[l.From]
	to, okTo := v.index[l.To]
	if !okFrom || !okTo {
		return
	}
	for i := range c.links[from] {
		if c.links[from][i].to == to {
			c.links[from][i].factor = l.Factor
			return
		}
	}
	c.links[from] = append(c.links[from], link{to, l.Factor})
}

func (c *compiledWeights) load(v *View, w Weights) error {
	c.price, c.cpu = make([]int64, len(v.regions)), make([]int64, len(v.regions))
	c.known = make([]bool, len(v.regions))
	for i := range v.regions {
		load, known := w.Loads[v.regions[i].Name]
		if err := load.check(); err != nil {
			return fmt.Errorf("%w: load of %s: %w", ErrWeights, v.regions[i].Name, err)
		}
		c.known[i] = known
		cpu := min(float64(w.CPU)*load.busy(), float64(maxPrice))
		queue := min(float64(w.Queue)*load.queue(), float64(maxPrice)-cpu)
		c.cpu[i] = int64(cpu)
		c.price[i] = int64(cpu) + int64(queue)
	}
	return nil
}

func (c *compiledWeights) priceOf(region int) int64 {
	if c == nil || c.price == nil {
		return 0
	}
	return c.price[region]
}

func (c *compiledWeights) linkExtra(from, to int, rtt int64) int64 {
	if c == nil || rtt >= noWay {
		return 0
	}
	for _, l := range c.links[from] {
		if l.to == to {
			return l.extra(rtt)
		}
	}
	return 0
}
