package sched_test

import (
	"fmt"
	"testing"

	policy "github.com/nusa-scheduler/nusa/regional/pools"
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
	"pgregory.net/rapid"
)

// loads are the policies of a world's pools, and what its nodes have measured.
type loads struct {
	weights  map[string]policy.Weights
	measured map[string]policy.Measured
	load     *policy.Load
}

// next returns the load for the next plan.
func (l *loads) next(view *state.View) *policy.Load {
	l.load = policy.Next(l.load, l.weights, view.Nodes(), func(id string) (policy.Measured, bool) {
		m, known := l.measured[id]
		return m, known
	})
	return l.load
}

// run follows a line of a script: policy POOL [cpu=] [memory=] [quota=], which removes the policy without
// weights, or use NODE [cpu=] [memory=] in percent, which forgets the use without them.
func (l *loads) run(a args) {
	if l.weights == nil {
		l.weights, l.measured = map[string]policy.Weights{}, map[string]policy.Measured{}
	}
	if a.word(0) == "policy" {
		l.weights[a.word(1)] = policy.Weights{CPU: int32(a.int("cpu", 0)), Memory: int32(a.int("memory", 0)), Quota: int32(a.int("quota", 0))}
		return
	}
	l.measured[a.word(1)] = policy.Measured{CPU: float64(a.int("cpu", 0)) / 100, Memory: float64(a.int("memory", 0)) / 100}
	if len(a.keys) == 0 {
		delete(l.measured, a.word(1))
	}
}

// oracleScore returns what the policy of a node's pool adds to its score. allocs is how many allocations
// the node is charged for. Measurements of the oracle's tests are multiples of 10 %, so they are used as
// they are.
func (l *loads) oracleScore(n *state.Node, allocs int) float64 {
	if l == nil {
		return 0
	}
	s, w := 0.0, l.weights[n.Pool]
	if m, known := l.measured[n.ID]; known {
		s += float64(w.CPU)*(0.5-m.CPU)/100 + float64(w.Memory)*(0.5-m.Memory)/100
	}
	if n.InstanceQuota > 0 {
		s += float64(w.Quota) * (0.5 - float64(allocs+1)/float64(n.InstanceQuota)) / 100
	}
	return s
}

// drawLoads changes policies and measurements, in a third of the cases none.
func (w *world) drawLoads(t *rapid.T, nodes int) {
	weight := rapid.SampledFrom([]int{0, 0, 1, 35, 100})
	for _, pool := range []string{"default", "batch"} {
		if rapid.IntRange(0, 2).Draw(t, "policy") == 0 {
			w.must(t, fmt.Sprintf("policy %s cpu=%d memory=%d quota=%d", pool, weight.Draw(t, "cpu"), weight.Draw(t, "memory"), weight.Draw(t, "quota")))
		}
	}
	for i := range nodes {
		switch rapid.IntRange(0, 3).Draw(t, "measures") {
		case 0:
			w.must(t, fmt.Sprintf("use n%02d cpu=%d memory=%d", i, 10*rapid.IntRange(0, 10).Draw(t, "used"), 10*rapid.IntRange(0, 10).Draw(t, "used")))
		case 1:
			w.must(t, fmt.Sprintf("use n%02d", i))
		}
	}
}

// TestLoadMovesNothing: while use changes, instances that run stay where they are, and plans are empty.
func TestLoadMovesNothing(t *testing.T) {
	w := newWorld()
	for _, line := range []string{"node n1", "node n2", "policy default cpu=100", "use n1 cpu=10", "use n2 cpu=90", "job api web", "order api 0-2", "apply", "converge"} {
		w.run(t, "test", line)
	}
	planner := sched.NewPlanner()
	for percent := range 101 {
		w.run(t, "test", fmt.Sprintf("use n1 cpu=%d", percent))
		if p := planner.Make(w.input()); !p.Empty() || p.Wake > 0 {
			t.Fatalf("n1 uses %d %%: %s", percent, p)
		}
	}
}

// TestPolicyOfOtherPoolCostsNothing: a node of a pool without a policy keeps its place in the rankings.
func TestPolicyOfOtherPoolCostsNothing(t *testing.T) {
	w := newWorld()
	for _, line := range []string{"node n1", "job api web", "policy batch cpu=100", "use n1 cpu=90", "order api 0-1"} {
		w.run(t, "test", line)
	}
	p := sched.Make(w.input())
	if len(p.Places) != 1 || p.Places[0].Why != "best of 1 fitting nodes of 1: fit 0.18" {
		t.Errorf("%s", p)
	}
}
