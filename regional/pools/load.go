package pools

import (
	"iter"
	"maps"
	"math"

	"github.com/nusa-scheduler/nusa/regional/state"
)

const (
	// step is the distance between two values of a use, in percent. 5 points change a score by at most
	// 0.05, less than one instance does on most nodes.
	step = 5
	// slack is how far a measurement may be from the present value before the value changes. It is more
	// than half a step, so that a measurement at the border of two steps does not change the value back
	// and forth.
	slack = 4
	// Unknown is the use of a node that has sent no statistics for some time.
	Unknown = -1
)

// Use is how much of a node is in use: percent in steps of 5, or Unknown.
type Use struct{ CPU, Memory int8 }

// Measured are shares in use, 0..1, as the node measured them.
type Measured struct{ CPU, Memory float64 }

// Load is what the scores of a plan weigh. It does not change. A nil Load weighs nothing.
type Load struct {
	// weights are the policies, by pool.
	weights map[string]Weights
	// uses has the nodes, by id, whose measured use is weighed and known.
	uses map[string]Use
}

// NodeLoad is what the score of one node weighs. The zero value weighs nothing.
type NodeLoad struct {
	Weights Weights
	Use     Use
}

// Weighs reports whether anything is weighed.
func (n NodeLoad) Weighs() bool { return n.Weights != Weights{} }

// Of returns what the score of a node weighs.
func (l *Load) Of(n *state.Node) NodeLoad {
	if l == nil {
		return NodeLoad{}
	}
	w, ok := l.weights[n.Pool]
	if !ok {
		return NodeLoad{}
	}
	use, ok := l.uses[n.ID]
	if !ok {
		use = Use{Unknown, Unknown}
	}
	return NodeLoad{Weights: w, Use: use}
}

// Next returns the load after new measurements. It returns old itself if no score changes by them. measure
// returns what a node measured lately; false: nothing.
func Next(old *Load, weights map[string]Weights, nodes iter.Seq[*state.Node], measure func(id string) (Measured, bool)) *Load {
	next := &Load{weights: map[string]Weights{}, uses: map[string]Use{}}
	for pool, w := range weights {
		if w != (Weights{}) {
			next.weights[pool] = w
		}
	}
	if len(next.weights) == 0 {
		return nil
	}
	for n := range nodes {
		w := next.weights[n.Pool]
		if w.CPU == 0 && w.Memory == 0 || n.Status == state.NodeLeft {
			continue
		}
		m, known := measure(n.ID)
		if !known {
			continue
		}
		was, use := old.use(n.ID), Use{Unknown, Unknown}
		if w.CPU > 0 {
			use.CPU = quantise(was.CPU, m.CPU)
		}
		if w.Memory > 0 {
			use.Memory = quantise(was.Memory, m.Memory)
		}
		next.uses[n.ID] = use
	}
	if old != nil && maps.Equal(old.weights, next.weights) && maps.Equal(old.uses, next.uses) {
		return old
	}
	return next
}

func (l *Load) use(id string) Use {
	if l != nil {
		if u, ok := l.uses[id]; ok {
			return u
		}
	}
	return Use{Unknown, Unknown}
}

// quantise returns a measured share in percent, as a multiple of step. was is the present value.
func quantise(was int8, share float64) int8 {
	if math.IsNaN(share) {
		return Unknown
	}
	percent := 100 * min(1, max(0, share))
	if was != Unknown && math.Abs(percent-float64(was)) <= slack {
		return was
	}
	return int8(step * math.Round(percent/step))
}
