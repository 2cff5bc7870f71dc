package sched_test

import (
	"fmt"
	"math"
	"slices"

	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
	"pgregory.net/rapid"
)

// The oracle knows the rules by itself: it looks at every node of a view, with
// sums over allocations instead of kept charges, and loops instead of heaps.
type oracle struct {
	view *state.View
	key  state.GroupKey
	ask  *state.Ask
	// without is an allocation to look away from.
	without *state.Alloc
}

// score is what a node is worth for one more instance; false if it cannot take
// it.
func (o *oracle) score(n *state.Node, declined []string) (float64, bool) {
	free := n.Capacity
	var allocs, sameNode, sameValue int
	ports := map[int32]bool{}
	gpu := map[string]int32{}
	for a := range o.view.Allocs() {
		if o.without != nil && a.ID == o.without.ID {
			continue
		}
		if a.Key() == o.key && a.Live() && a.Desired == state.Run {
			if m, ok := o.view.Node(a.NodeID); ok && o.suits(m) && o.value(m) == o.value(n) {
				sameValue++
			}
			if a.NodeID == n.ID {
				sameNode++
			}
		}
		if a.NodeID != n.ID || !a.Charged {
			continue
		}
		allocs++
		free = free.Sub(a.Resources)
		for _, p := range a.Ports {
			ports[p.Port] = true
		}
		for _, g := range a.GPUs {
			gpu[g.Device] += g.ShareMilli
		}
		if (a.Dedicated || o.ask.Dedicated) && a.Key().JobKey() != o.key.JobKey() {
			return 0, false
		}
	}
	need := o.ask.Resources
	left := free.Sub(need)
	if !o.suits(n) || slices.Contains(declined, n.ID) || left.CPUMilli < 0 || left.MemoryBytes < 0 || left.DiskBytes < 0 ||
		n.InstanceQuota > 0 && allocs >= int(n.InstanceQuota) || !o.portsFit(n, ports) || !o.gpusFit(n, gpu) {
		return 0, false
	}
	s := (20 - math.Pow(10, ratio(left.CPUMilli, n.Capacity.CPUMilli)) - math.Pow(10, ratio(left.MemoryBytes, n.Capacity.MemoryBytes))) / 18
	var sum, weights float64
	for _, f := range o.ask.Affinities {
		weights += math.Abs(float64(f.Weight))
		if ok, _ := testFuncs.Match(f.Expr, n); ok {
			sum += float64(f.Weight)
		}
	}
	if weights > 0 {
		s += sum / weights
	}
	s -= 0.5 * float64(sameNode) / float64(sameNode+1)
	if o.ask.Spread != "" {
		s -= float64(sameValue)
	}
	return s, true
}

// failures counts the failed attempts in a row of an instance by node.
func (o *oracle) failures(inst state.Instance) map[string]int {
	var all []*state.Alloc
	for a := range o.view.Allocs() {
		if a.Key() == o.key && a.Index == inst.Index && a.GroupHash == inst.Hash && !a.Declined &&
			(a.State == state.Failed || a.State == state.Complete) {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, func(a, b *state.Alloc) int { return int(b.Epoch - a.Epoch) })
	out := map[string]int{}
	for i := 0; i < len(all) && i < int(inst.Failures); i++ {
		out[all[i].NodeID]++
	}
	return out
}

// penalty of a node for a failure on it: 4, and the greatest spread penalty.
func (o *oracle) penalty() float64 {
	values := map[string]float64{}
	most := 0.0
	for a := range o.view.Allocs() {
		if n, ok := o.view.Node(a.NodeID); ok && o.ask.Spread != "" && a.Key() == o.key && a.Live() && a.Desired == state.Run && o.suits(n) {
			values[o.value(n)]++
			most = max(most, values[o.value(n)])
		}
	}
	return 4 + most
}

func ratio(a, b int64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

func (o *oracle) value(n *state.Node) string {
	v, _ := testFuncs.Value(o.ask.Spread, n)
	return v
}

func (o *oracle) suits(n *state.Node) bool {
	if n.Status != state.NodeReady || n.Cordoned || n.Draining || n.ControlPlane || n.Pool != o.ask.Pool {
		return false
	}
	for _, c := range o.ask.Constraints {
		if ok, err := testFuncs.Match(c, n); !ok || err != nil {
			return false
		}
	}
	return true
}

func (o *oracle) portsFit(n *state.Node, used map[int32]bool) bool {
	dynamic := 0
	for _, p := range o.ask.Ports {
		if p.Static == 0 {
			dynamic++
			continue
		}
		if used[p.Static] {
			return false
		}
		used[p.Static] = true
	}
	for p := n.PortMin; p <= n.PortMax; p++ {
		if !used[p] {
			dynamic--
		}
	}
	return dynamic <= 0
}

// gpusFit tries every assignment.
func (o *oracle) gpusFit(n *state.Node, used map[string]int32) bool {
	var units []state.GPUAsk
	for _, g := range o.ask.GPUs {
		for range g.Count {
			units = append(units, state.GPUAsk{ShareMilli: 1000, Models: g.Models})
		}
		if g.Count == 0 {
			units = append(units, g)
		}
	}
	var try func(i int) bool
	try = func(i int) bool {
		if i == len(units) {
			return true
		}
		for _, d := range n.GPUs {
			if used[d.ID]+units[i].ShareMilli > 1000 || len(units[i].Models) > 0 && !slices.Contains(units[i].Models, d.Model) {
				continue
			}
			used[d.ID] += units[i].ShareMilli
			ok := try(i + 1)
			used[d.ID] -= units[i].ShareMilli
			if ok {
				return true
			}
		}
		return false
	}
	return try(0)
}

// judge walks through a plan: each choice must be as good as the oracle's best
// at that point, and what is unplaced must fit nowhere when its turn came.
// Resources only shrink within a plan, so the end of it is a fair time to ask.
func judge(t *rapid.T, in sched.Input, p *sched.Plan) {
	fork := in.View.Fork()
	index := in.View.Index()
	apply := func(c state.ApplyPlan) {
		index++
		if r := fork.Apply(index, state.Command{NowUnixNano: in.NowUnixNano, ApplyPlan: &c}); len(r.Skipped) > 0 {
			t.Fatalf("skipped: %v\n%s", r.Skipped, p)
		}
	}
	var stops sched.Plan
	stops.Stops = p.Stops
	for _, c := range stops.Commands(nil, 1000) {
		apply(c)
	}
	for i := range p.Places {
		pl := &p.Places[i]
		view := fork.Snapshot()
		job, _ := view.Job(pl.Key.JobKey(), pl.JobVersion)
		if job.Type != state.System {
			o := &oracle{view: view, key: pl.Key, ask: &job.Group(pl.Key.Group).Ask}
			inst := view.Instance(pl.Key, pl.Index)
			declined := declinedNow(in, inst)
			failed, penalty := o.failures(in.View.Instance(pl.Key, pl.Index)), o.penalty()
			best, chosen := math.Inf(-1), math.Inf(-1)
			for n := range view.Nodes() {
				if s, ok := o.score(n, declined); ok {
					s -= penalty * float64(failed[n.ID])
					best = max(best, s)
					if n.ID == pl.NodeID {
						chosen = s
					}
				}
			}
			if chosen < best-1e-9 || math.IsInf(best, -1) || math.Abs(pl.Score-chosen) > 1e-9 {
				t.Fatalf("%s[%d] on %s is worth %v (said %v), the best %v\n%s", pl.Key, pl.Index, pl.NodeName, chosen, pl.Score, best, p)
			}
		}
		one := sched.Plan{Places: []sched.Place{*pl}}
		for _, c := range one.Commands(func() string { return fmt.Sprint("judge", i) }, 1) {
			apply(c)
		}
	}
	view := fork.Snapshot()
	for _, u := range p.Unplaced {
		job, _ := view.Job(u.Key.JobKey(), u.JobVersion)
		o := &oracle{view: view, key: u.Key, ask: &job.Group(u.Key.Group).Ask}
		if u.System {
			continue
		}
		for n := range view.Nodes() {
			if _, ok := o.score(n, declinedNow(in, view.Instance(u.Key, u.Ranges[0].From))); ok {
				t.Fatalf("%s %v would fit %s\n%s", u.Key, u.Ranges, n.Name, p)
			}
		}
	}
}
