package sched

import (
	"math"
	"strconv"

	"github.com/nusa-scheduler/nusa/regional/pools"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// antiAffinity bounds the penalty for equal instances on one node. It is enough to separate
// two small instances on empty nodes. It is not enough to use an empty node while others
// are nearly full.
const antiAffinity = 0.5

// fitScore prefers the node that is fullest afterwards. It is BestFit v3 as in Nomad's
// ScoreFitBinPack, after Google's Borg: 20 − (10^free_cpu + 10^free_memory). Here free is
// the share 0..1 of the capacity that is left after the placement. The result is divided by
// 18, its greatest value, so it is 0..1.
func fitScore(capacity, free, ask state.Resources) float64 {
	cpu := share(free.CPUMilli-ask.CPUMilli, capacity.CPUMilli)
	memory := share(free.MemoryBytes-ask.MemoryBytes, capacity.MemoryBytes)
	return (20 - pow10(cpu) - pow10(memory)) / 18
}

// pow10 returns 10^x for x in 0..1. It takes a third of the time of math.Pow. It is exact
// at both ends, so that an empty node does not score less than 0.
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

// apartScore returns the penalty of a node that has n instances of the group. It is 0 for
// none, and approaches -antiAffinity as n grows.
func apartScore(n int32) float64 { return -antiAffinity * float64(n) / float64(n+1) }

// spreadScore returns the penalty of a spread value that has n instances of the group. It
// is linear. So the counts of two values differ only by as much as the other terms can
// outweigh: fit (0..1) and affinity (-1..1) can outweigh a difference of 3.
func spreadScore(n int32) float64 { return -float64(n) }

// affinityScore returns the weighted share of the affinities that are true, -1..1.
func (f *filter) affinityScore(n *node) float64 {
	var sum, all int64
	for _, a := range f.ask.Affinities {
		w := int64(a.Weight)
		all += max(w, -w)
		if ok, err := f.funcs.Match(a.Expr, n.Node); err == nil && ok {
			sum += w
		}
	}
	if all == 0 {
		return 0
	}
	return float64(sum) / float64(all)
}

// spreadValue returns the node's value of the spread expression. Nodes on which the
// expression fails share the empty value.
func (f *filter) spreadValue(n *node) string {
	if f.ask.Spread == "" {
		return ""
	}
	v, err := f.funcs.Value(f.ask.Spread, n.Node)
	if err != nil {
		return ""
	}
	return v
}

// baseScore returns the sum of the terms that do not depend on the group's other instances.
func (f *filter) baseScore(n *node, affinity float64) float64 {
	score := fitScore(n.Capacity, n.free, f.ask.Resources) + affinity
	if n.load.Weighs() {
		score += loadScore(n)
	}
	return score
}

// loadScore returns the terms of the pool's policy: the measured use of the node, and how full its
// instance quota is with one more instance. What is unknown, or has no bound, adds nothing.
func loadScore(n *node) float64 {
	w, use := n.load.Weights, n.load.Use
	return useScore(w.CPU, use.CPU) + useScore(w.Memory, use.Memory) + quotaScore(w.Quota, n)
}

// useScore returns the term of a measured use in percent.
func useScore(weight int32, percent int8) float64 {
	if percent == pools.Unknown {
		return 0
	}
	return pools.Score(weight, float64(percent)/100)
}

// quotaScore returns the term of the instance quota. A node without a quota is never full.
func quotaScore(weight int32, n *node) float64 {
	if n.InstanceQuota <= 0 {
		return 0
	}
	return pools.Score(weight, float64(n.allocs+1)/float64(n.MaxAllocs()))
}

// loadTerms appends the terms of loadScore. Each says what it weighs, also if that adds nothing.
func loadTerms(out []Term, n *node) []Term {
	w, use := n.load.Weights, n.load.Use
	for _, t := range []struct {
		name    string
		weight  int32
		percent int8
	}{{"cpu", w.CPU, use.CPU}, {"memory", w.Memory, use.Memory}} {
		switch {
		case t.weight == 0:
		case t.percent == pools.Unknown:
			out = append(out, Term{Name: t.name + " use", Detail: t.name + " unknown"})
		default:
			out = append(out, Term{Name: t.name + " use", Value: useScore(t.weight, t.percent), Detail: strconv.Itoa(int(t.percent)) + "% of " + t.name})
		}
	}
	switch {
	case w.Quota == 0:
	case n.InstanceQuota <= 0:
		out = append(out, Term{Name: "quota", Detail: "no quota"})
	default:
		detail := strconv.Itoa(int(n.allocs)+1) + " of " + strconv.Itoa(int(n.MaxAllocs())) + " instances"
		out = append(out, Term{Name: "quota", Value: quotaScore(w.Quota, n), Detail: detail})
	}
	return out
}

// placedCounts are the numbers of the group's instances on a node and on its spread value.
type placedCounts struct{ onNode, onValue int32 }

// scoreTerms appends the terms of a score to out. label is the node's spread value, quoted.
func (f *filter) scoreTerms(out []Term, n *node, affinity float64, placed placedCounts, label string) []Term {
	out = append(out, Term{Name: "fit", Value: fitScore(n.Capacity, n.free, f.ask.Resources)})
	if affinity != 0 {
		out = append(out, Term{Name: "affinity", Value: affinity})
	}
	if n.load.Weighs() {
		out = loadTerms(out, n)
	}
	if placed.onNode > 0 {
		out = append(out, Term{Name: "anti-affinity", Value: apartScore(placed.onNode), Detail: strconv.Itoa(int(placed.onNode)) + " here"})
	}
	if placed.onValue > 0 && f.ask.Spread != "" {
		out = append(out, Term{Name: "spread", Value: spreadScore(placed.onValue), Detail: strconv.Itoa(int(placed.onValue)) + " in " + label})
	}
	return out
}

// sumTerms returns the score of some terms.
func sumTerms(terms []Term) float64 {
	sum := 0.0
	for _, t := range terms {
		sum += t.Value
	}
	return sum
}

// maxReasonLines bounds the lines in a reasonCache.
const maxReasonLines = 1024

// reasonCache formats the line that says why a node was chosen. Many placements have equal
// lines, and these share one string.
type reasonCache struct {
	lines map[string]string
	text  []byte // scratch memory
}

// line returns, for example, "best of 3 fitting nodes of 7: fit 0.50, affinity 1.00".
func (c *reasonCache) line(fitting, nodes int, terms []Term) string {
	b := append(c.text[:0], "best of "...)
	b = strconv.AppendInt(b, int64(fitting), 10)
	b = append(b, " fitting nodes of "...)
	b = strconv.AppendInt(b, int64(nodes), 10)
	b = appendTerms(append(b, ": "...), terms)
	c.text = b
	line, ok := c.lines[string(b)]
	if !ok {
		if len(c.lines) == maxReasonLines {
			clear(c.lines)
		}
		line = string(b)
		c.lines[line] = line
	}
	return line
}

func appendTerms(b []byte, terms []Term) []byte {
	for i, t := range terms {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = append(b, t.Name...)
		b = append(b, ' ')
		b = strconv.AppendFloat(b, t.Value, 'f', 2, 64)
		if t.Detail != "" {
			b = append(b, " ("...)
			b = append(b, t.Detail...)
			b = append(b, ')')
		}
	}
	return b
}
