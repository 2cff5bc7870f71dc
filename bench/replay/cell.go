package replay

import (
	"cmp"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
)

// nodeSize is the capacity of each node of an emulated region.
var nodeSize = place.Resources{CPUMilli: 64_000, MemoryBytes: 512 << 30}

// cell is an emulated region: the free resources of its nodes, and what the global tier
// knows of the region.
type cell struct {
	region  *place.Region
	account place.Account
	nodes   []place.Resources // the free resources of each node
	// owned is the sum of what the region's instances reserve. Ended instances do not
	// count.
	owned place.Resources
	// report is the time of the next report; 0 = nothing has changed since the latest
	// report.
	report time.Duration
	// lag shifts the report times of the region, so that the regions report at different
	// times.
	lag time.Duration
}

func newCell(name string, nodes int, lag time.Duration) *cell {
	c := &cell{region: &place.Region{
		Name: name, Connected: true, HasReport: true, ReportAge: time.Second, ReportSequence: 1, FeatureLevel: 1, NodesReady: nodes,
		Capacity: place.Resources{CPUMilli: nodeSize.CPUMilli * int64(nodes), MemoryBytes: nodeSize.MemoryBytes * int64(nodes)},
	}, nodes: make([]place.Resources, nodes), lag: lag}
	for i := range c.nodes {
		c.nodes[i] = nodeSize
	}
	c.send(0, nil)
	return c
}

// start puts an instance on the node with the least free CPU on which it fits. It returns
// the number of the node, or -1 if the instance fits on no node.
func (c *cell) start(a place.Ask) int {
	best := -1
	for i, free := range c.nodes {
		if free.CPUMilli >= a.CPUMilli && free.MemoryBytes >= a.MemoryBytes && (best < 0 || free.CPUMilli < c.nodes[best].CPUMilli) {
			best = i
		}
	}
	if best >= 0 {
		c.add(best, a, -1)
	}
	return best
}

// add returns the resources of n instances to a node. A negative n reserves resources.
func (c *cell) add(node int, a place.Ask, n int64) {
	c.nodes[node].CPUMilli += n * a.CPUMilli
	c.nodes[node].MemoryBytes += n * a.MemoryBytes
}

// own adds the resources of n instances to the sum c.owned.
func (c *cell) own(a place.Ask, n int64) {
	c.owned.CPUMilli += n * a.CPUMilli
	c.owned.MemoryBytes += n * a.MemoryBytes
}

// demand returns the resources of the region's instances as a share of its capacity: the
// larger share of CPU and memory.
func (c *cell) demand() float64 {
	return max(float64(c.owned.CPUMilli)/float64(c.region.Capacity.CPUMilli), float64(c.owned.MemoryBytes)/float64(c.region.Capacity.MemoryBytes))
}

// charge updates what the placer charges the region for: the instances that were offered
// to the region since its latest report.
func (c *cell) charge() {
	changed := *c.region
	changed.Charged = c.account.Charges()
	c.region = &changed
}

// send makes a report of the region that includes all offers up to a revision. The report
// has the exact fit counts of the asks.
func (c *cell) send(revision int64, asks map[uint64]place.Ask) {
	changed := *c.region // the index of the placer recognises a changed region by a new pointer
	c.region = &changed
	r := c.region
	r.ReportSequence++
	r.SlotsRevision, r.Free, c.report = revision, place.Resources{}, 0
	free := slices.Clone(c.nodes)
	slices.SortFunc(free, func(a, b place.Resources) int {
		return cmp.Or(cmp.Compare(a.CPUMilli, b.CPUMilli), cmp.Compare(a.MemoryBytes, b.MemoryBytes))
	})
	r.Bins = nil
	for _, f := range free {
		r.Free.CPUMilli += f.CPUMilli
		r.Free.MemoryBytes += f.MemoryBytes
		if n := len(r.Bins); n > 0 && r.Bins[n-1].Free == f {
			r.Bins[n-1].Nodes++
		} else {
			r.Bins = append(r.Bins, place.Bin{Nodes: 1, Free: f})
		}
	}
	r.Fits = make(map[uint64]int, len(asks))
	for hash, a := range asks {
		n := int64(0)
		for _, f := range free {
			n += min(f.CPUMilli/max(1, a.CPUMilli), f.MemoryBytes/max(1, a.MemoryBytes))
		}
		r.Fits[hash] = int(n)
	}
	c.account.Reported(r)
	r.Charged = c.account.Charges()
}
