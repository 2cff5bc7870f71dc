package sched_test

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// oracle has its own implementation of the rules. It goes through every node of a view,
// uses sums over allocations instead of stored charges, and loops instead of heaps.
type oracle struct {
	view *state.View
	key  state.GroupKey
	ask  *state.Ask
	// without is an allocation that is ignored.
	without *state.Alloc
	// empty: all allocations are ignored. closed: a node counts although it takes no work
	// now.
	empty, closed bool
	// loads are what the pools weigh. nil: nothing.
	loads *loads
}

// score returns the score of a node for one more instance. It returns false if the node
// cannot take the instance.
func (o *oracle) score(n *state.Node, declined []string) (float64, bool) {
	free := n.Capacity
	var allocs, sameNode, sameValue int
	ports := map[int32]bool{}
	gpu := map[string]int32{}
	for a := range o.view.Allocs() {
		if o.empty || o.without != nil && a.ID == o.without.ID {
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
		if slices.ContainsFunc(a.Apart, func(tag string) bool { return slices.Contains(o.ask.Apart, tag) }) {
			return 0, false
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
	return s + o.loads.oracleScore(n, allocs), true
}

// failures counts an instance's failed attempts in a row, for each node.
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

// penalty returns the penalty of a node for each failure on it: 4 plus the greatest spread
// penalty.
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
	if !o.closed && (n.Status != state.NodeReady || n.Cordoned || n.Draining) || n.ControlPlane || n.Pool != o.ask.Pool {
		return false
	}
	for _, need := range o.ask.Drivers {
		has := false
		for _, d := range n.Drivers {
			has = has || d.Name == need.Name && d.Healthy && len(lacking(need.Capabilities, d.Capabilities)) == 0
		}
		if !has {
			return false
		}
	}
	for _, v := range o.ask.Volumes {
		has := !n.VolumesReported
		for _, dir := range n.VolumesAllow {
			has = has || strings.HasPrefix(v+"/", dir+"/")
		}
		if !has {
			return false
		}
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

func lacking(need, have []string) []string {
	return slices.DeleteFunc(slices.Clone(need), func(s string) bool { return slices.Contains(have, s) })
}

// gpuParts returns the devices and parts of devices in the ask.
func (o *oracle) gpuParts() (units []state.GPUAsk) {
	for _, g := range o.ask.GPUs {
		if g.Count <= 1 && g.ShareMilli > 0 && g.ShareMilli < 1000 {
			units = append(units, g)
			continue
		}
		for range max(g.Count, g.ShareMilli/1000) {
			units = append(units, state.GPUAsk{ShareMilli: 1000, Models: g.Models})
		}
	}
	return units
}

// gpusFit tries every assignment of devices.
func (o *oracle) gpusFit(n *state.Node, used map[string]int32) bool {
	units := o.gpuParts()
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

// missing returns how much a node must still release for one more instance: a share of the
// node's capacity, for the resource with the greatest share.
func (o *oracle) missing(n *state.Node) float64 {
	free, need := n.Capacity, o.ask.Resources
	gpu, needGPU := int64(len(n.GPUs)*1000), int64(0)
	for a := range o.view.NodeAllocs(n.ID) {
		if a.Charged {
			free = free.Sub(a.Resources)
			for _, g := range a.GPUs { // only devices that the node still has
				if slices.ContainsFunc(n.GPUs, func(d state.GPU) bool { return d.ID == g.Device }) {
					gpu -= int64(g.ShareMilli)
				}
			}
		}
	}
	if o.ask.Dedicated {
		need = n.Capacity
	}
	for _, u := range o.gpuParts() {
		needGPU += int64(u.ShareMilli)
	}
	all := [][3]int64{
		{need.CPUMilli, free.CPUMilli, n.Capacity.CPUMilli}, {need.MemoryBytes, free.MemoryBytes, n.Capacity.MemoryBytes},
		{need.DiskBytes, free.DiskBytes, n.Capacity.DiskBytes},
	}
	if needGPU > 0 {
		all = append(all, [3]int64{needGPU, gpu, int64(len(n.GPUs) * 1000)})
	}
	most := -1.0
	for _, of := range all {
		if of[2] > 0 {
			most = max(most, float64(of[0]-of[1])/float64(of[2]))
		}
	}
	return most
}

// late reports whether an allocation was placed on a node after the present choice of a
// node began. since is when the waiting instance lost its last node.
func (o *oracle) late(n *state.Node, since, now int64) bool {
	next := nextChoice(since, now)
	began := since + int64(time.Minute)
	for hold := int64(10 * time.Minute); began+hold < next; hold *= 2 {
		began += hold
	}
	for a := range o.view.NodeAllocs(n.ID) {
		if a.Charged && a.CreatedUnixNano > began {
			return true
		}
	}
	return false
}

// nextChoice returns when another node may be reserved: one minute after an instance began
// to wait, and then after 10, 20, 40 minutes and so on.
func nextChoice(since, now int64) int64 {
	next := since + int64(11*time.Minute)
	for hold := int64(20 * time.Minute); next <= now; hold *= 2 {
		next += hold
	}
	return next
}
