package sched

import (
	"math"
	"strconv"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// antiAffinity bounds what equal instances on one node cost: enough to part
// two small instances on empty nodes, not enough to open an empty node for
// the sake of it when others are nearly full.
const antiAffinity = 0.5

// fit prefers the node that is fullest afterwards. BestFit v3 as in Nomad's
// ScoreFitBinPack, after Google's Borg: 20 − (10^free_cpu + 10^free_memory),
// where free is 0..1 of the capacity left with the instance placed; divided by
// its greatest value 18, so 0..1.
func fit(capacity, free, ask state.Resources) float64 {
	cpu := share(free.CPUMilli-ask.CPUMilli, capacity.CPUMilli)
	memory := share(free.MemoryBytes-ask.MemoryBytes, capacity.MemoryBytes)
	return (20 - pow10(cpu) - pow10(memory)) / 18
}

// pow10 is 10^x for x in 0..1, in a third of the time of math.Pow; exact for both
// ends, so that an empty node is worth no less than 0.
func pow10(x float64) float64 {
	if x == 1 {
		return 10
	}
	return math.Exp(x * math.Ln10)
}

func share(left, of int64) float64 {
	if of <= 0 {
		return 0
	}
	return min(1, max(0, float64(left)/float64(of)))
}

// apart is the penalty of a node that has n instances of the group: 0, then
// ever closer to -antiAffinity.
func apart(n int32) float64 { return -antiAffinity * float64(n) / float64(n+1) }

// spread is the penalty of a value that has n instances of the group. Linear,
// so that the counts of two values never differ by more than the other terms
// can outweigh (fit and affinities span 3).
func spread(n int32) float64 { return -float64(n) }

// affinity is the weighted share of the affinities that hold, -1..1.
func (c *class) affinity(n *node) float64 {
	var sum, all int64
	for _, a := range c.Affinities {
		w := int64(a.Weight)
		all += max(w, -w)
		if ok, err := c.funcs.Match(a.Expr, n.Node); err == nil && ok {
			sum += w
		}
	}
	if all == 0 {
		return 0
	}
	return float64(sum) / float64(all)
}

// value is the node's value of the spread expression. Nodes where it fails
// share the empty one.
func (c *class) value(n *node) string {
	if c.Spread == "" {
		return ""
	}
	v, err := c.funcs.Value(c.Spread, n.Node)
	if err != nil {
		return ""
	}
	return v
}

// base is the part of a score that does not depend on the group's other
// instances.
func (c *class) base(n *node, affinity float64) float64 {
	return fit(n.Capacity, n.free, c.Resources) + affinity
}

// terms takes a score apart, appended to out. here and there are the group's
// instances on the node and on its spread value, which is quoted.
func (c *class) terms(out []Term, n *node, affinity float64, here, there int32, quoted string) []Term {
	out = append(out, Term{Name: "fit", Value: fit(n.Capacity, n.free, c.Resources)})
	if affinity != 0 {
		out = append(out, Term{Name: "affinity", Value: affinity})
	}
	if here > 0 {
		out = append(out, Term{Name: "anti-affinity", Value: apart(here), Detail: strconv.Itoa(int(here)) + " here"})
	}
	if there > 0 && c.Spread != "" {
		out = append(out, Term{Name: "spread", Value: spread(there), Detail: strconv.Itoa(int(there)) + " in " + quoted})
	}
	return out
}
