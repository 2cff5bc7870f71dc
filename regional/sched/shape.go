package sched

import (
	"cmp"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// FitCount returns how many instances of an ask fit now, at most max. For a dedicated ask,
// all of these instances count as instances of one job.
func FitCount(in Input, ask *state.Ask, max int) int {
	return fitCount(newNodeTable(in.View), in.Funcs, ask, max)
}

// ExplainNoFit returns why no instance of an ask fits. It is for asks whose FitCount is 0.
func ExplainNoFit(in Input, ask *state.Ask) (state.Reason, string) {
	f := newFilter(newNodeTable(in.View), in.Funcs, ask, state.JobKey{})
	why := neverFits(f)
	if why == nil {
		why = refusalsNow(f, nil, "")
	}
	return why.reason, why.message
}

// FitCounts returns the FitCount of each ask. It builds the table of nodes only once.
func FitCounts(in Input, asks []*state.Ask, max int) []int {
	t := newNodeTable(in.View)
	out := make([]int, len(asks))
	for i, ask := range asks {
		out[i] = fitCount(t, in.Funcs, ask, max)
	}
	return out
}

func fitCount(t *nodeTable, funcs Funcs, ask *state.Ask, limit int) int {
	f := newFilter(t, funcs, ask, state.JobKey{})
	total := 0
	for i := range t.nodes {
		if total >= limit {
			return limit
		}
		n := &t.nodes[i]
		if f.refuse(n) == "" {
			total += fitsOn(f, n, limit-total)
		}
	}
	return min(total, limit)
}

// fitsOn returns how many instances fit on a node that has room for at least one. The
// result is at most limit.
func fitsOn(f *filter, n *node, limit int) int {
	k, need := int64(limit), f.ask.Resources
	for _, p := range [][2]int64{
		{n.free.CPUMilli, need.CPUMilli},
		{n.free.MemoryBytes, need.MemoryBytes},
		{n.free.DiskBytes, need.DiskBytes},
	} {
		if p[1] > 0 {
			k = min(k, p[0]/p[1])
		}
	}
	k = min(k, int64(n.MaxAllocs()-n.allocs))
	if f.static > 0 || len(f.ask.Apart) > 0 {
		k = min(k, 1)
	}
	if dynamic := len(f.ask.Ports) - f.static; dynamic > 0 && f.static == 0 {
		k = min(k, int64(n.dynamicFree()/dynamic))
	}
	if len(f.units) > 0 {
		k = fitsGPU(f, n, k)
	}
	return int(k)
}

// fitsGPU returns for how many instances the node has devices. It gives devices to one
// instance after the other.
func fitsGPU(f *filter, n *node, limit int64) int64 {
	used := slices.Clone(n.gpu)
	for k := range limit {
		grants, ok := giveGPUs(n.GPUs, used, f.units)
		if !ok {
			return k
		}
		for _, g := range grants {
			used[slices.IndexFunc(n.GPUs, func(d state.GPU) bool { return d.ID == g.Device })] += g.ShareMilli
		}
	}
	return limit
}

// Bin is a group of nodes with about the same free resources.
type Bin struct {
	Nodes int32
	Pool  string
	Free  state.Resources // a lower bound of each node's free resources
}

type binKey struct {
	pool              string
	cpu, memory, disk int
}

// Bins returns the histogram of the free resources of nodes that take work. It has at most
// limit bins, sorted by pool and size. The bins are as fine as limit allows, at best a
// quarter of an octave. If there are more pools than limit, the bins with the most nodes
// remain.
func Bins(view *state.View, limit int) []Bin {
	var bins map[binKey]*Bin
	for step := 1; step <= 1024; step *= 2 {
		bins = binsBy(view, step)
		if len(bins) <= limit {
			break
		}
	}
	out := make([]Bin, 0, len(bins))
	for _, k := range slices.SortedFunc(maps.Keys(bins), compareBins) {
		out = append(out, *bins[k])
	}
	if len(out) > limit {
		slices.SortStableFunc(out, func(a, b Bin) int { return cmp.Compare(b.Nodes, a.Nodes) })
		out = out[:limit]
	}
	return out
}

func binsBy(view *state.View, step int) map[binKey]*Bin {
	bins := map[binKey]*Bin{}
	for n, u := range view.NodesInUse() {
		if !n.Eligible() || u.Dedicated > 0 || u.Allocs >= n.MaxAllocs() {
			continue
		}
		free := n.Capacity.Sub(u.Resources)
		if free.CPUMilli < 0 || free.MemoryBytes < 0 || free.DiskBytes < 0 {
			continue // after the inventory shrank below the charged allocations, the node takes nothing
		}
		k := binKey{n.Pool, level(free.CPUMilli) / step, level(free.MemoryBytes) / step, level(free.DiskBytes) / step}
		b, ok := bins[k]
		if !ok {
			b = &Bin{Pool: n.Pool, Free: state.Resources{CPUMilli: math.MaxInt64, MemoryBytes: math.MaxInt64, DiskBytes: math.MaxInt64}}
			bins[k] = b
		}
		b.Nodes++
		b.Free.CPUMilli = min(b.Free.CPUMilli, free.CPUMilli)
		b.Free.MemoryBytes = min(b.Free.MemoryBytes, free.MemoryBytes)
		b.Free.DiskBytes = min(b.Free.DiskBytes, free.DiskBytes)
	}
	return bins
}

func compareBins(a, b binKey) int {
	return cmp.Or(strings.Compare(a.pool, b.pool), cmp.Compare(b.cpu, a.cpu),
		cmp.Compare(b.memory, a.memory), cmp.Compare(b.disk, a.disk))
}

// level returns the position of n on a logarithmic scale with four steps for each octave.
// It consists of the integer logarithm and the next two bits of n.
func level(n int64) int {
	if n <= 0 {
		return 0
	}
	l := bits.Len64(uint64(n))
	return l<<2 | int(uint64(n)<<(64-l)>>61&3)
}

// Totals are sums over the nodes, for the region's report.
type Totals struct {
	Ready, Lost, Left  int32           // nodes that are connected, silent, left on purpose
	Draining, Cordoned int32           // how many of the ready nodes
	Capacity           state.Resources // sum over ready nodes
	Free               state.Resources // sum over nodes that take work
}

// Sum returns the sums over the region's nodes.
func Sum(view *state.View) Totals {
	var t Totals
	for n, u := range view.NodesInUse() {
		switch n.Status {
		case state.NodeReady:
			t.Ready++
		case state.NodeLeft:
			t.Left++
			continue
		default:
			t.Lost++
			continue
		}
		t.Capacity = t.Capacity.Add(n.Capacity)
		if n.Draining {
			t.Draining++
		}
		if n.Cordoned {
			t.Cordoned++
		}
		if n.Eligible() {
			t.Free = t.Free.Add(largest(state.Resources{}, n.Capacity.Sub(u.Resources)))
		}
	}
	return t
}

func largest(a, b state.Resources) state.Resources {
	return state.Resources{
		CPUMilli:    max(a.CPUMilli, b.CPUMilli),
		MemoryBytes: max(a.MemoryBytes, b.MemoryBytes),
		DiskBytes:   max(a.DiskBytes, b.DiskBytes),
	}
}
