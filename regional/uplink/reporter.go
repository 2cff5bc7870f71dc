package uplink

import (
	"maps"
	"slices"
	"strings"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

const (
	// maxFit bounds a fit count. No group has more instances.
	maxFit = state.MaxInstances
	// maxBins bounds the histogram of the nodes' free resources.
	maxBins = 64
	// maxFitMessage bounds, in bytes, the message about an ask that fits nowhere.
	maxFitMessage = 256
	// maxDrivers bounds the drivers that a report lists.
	maxDrivers = 64
	// maxModels bounds the models of accelerators that a report counts.
	maxModels = 64
)

// Subscription is an ask whose fit count the global tier wants.
type Subscription struct {
	hash uint64
	ask  *state.Ask
}

// Reporter makes reports of the region and summaries of its jobs. They are for the global
// tier and for the region's own API.
type Reporter struct {
	Region      string
	Incarnation uint64
	// View returns the committed state.
	View func() *state.View
	// PlanInput returns the input for a plan over the view.
	PlanInput func(*state.View) sched.Input
	// Plan gives access to the newest plan.
	Plan Plan
	// Stats returns a node's latest statistics, with their age at now, a time on Clock. It
	// returns false if the node has sent none.
	Stats func(nodeID string, now time.Duration) (wire.NodeStats, bool)
	Clock func() time.Duration
}

// Plan gives access to the newest plan.
type Plan struct {
	// Reasons returns why instances of a group have no node.
	Reasons func(state.GroupKey) []wire.CountedReason
	// Unplaced returns the instances of a group for which the plan found no node.
	Unplaced func(state.GroupKey) []sched.Unplaced
	// PlacedRevision returns the slot revision up to which all slots are placed as far as
	// possible.
	PlacedRevision func() int64
	// QueueLength returns how many instances wait for a node.
	QueueLength func() int32
}

// Report returns a report of the region, with the fit counts of the subscribed asks.
func (r *Reporter) Report(subs []Subscription) *nusav1.RegionReport {
	// The revision is read first, so that the view has all slots up to that revision.
	placed := r.Plan.PlacedRevision()
	view := r.View()
	t := sched.Sum(view)
	drivers, cut := healthyDrivers(view)
	out := &nusav1.RegionReport{
		NodesReady: t.Ready, NodesLost: t.Lost, NodesLeft: t.Left, NodesDraining: t.Draining, NodesCordoned: t.Cordoned,
		Capacity: wire.ResourcesToProto(t.Capacity), Free: wire.ResourcesToProto(t.Free),
		Allocated:     wire.ResourcesToProto(view.Allocated()),
		Utilisation:   r.utilisation(view),
		Shape:         &nusav1.RegionShape{},
		QueueLength:   r.Plan.QueueLength(),
		Allocations:   map[string]int32{},
		SlotsRevision: placed,
		Drivers:       drivers, DriversTruncated: cut,
		AuditEntries: view.Audit().Tree().Size,
		Gpus:         accelerators(view),
	}
	for s, n := range view.AllocCounts() {
		if n > 0 {
			out.Allocations[state.AllocState(s).String()] = int32(n)
		}
	}
	out.Shape.Fits = r.fits(view, subs)
	for _, b := range sched.Bins(view, maxBins) {
		out.Shape.Bins = append(out.Shape.Bins, &nusav1.ShapeBin{Nodes: b.Nodes, Pool: b.Pool, Free: wire.ResourcesToProto(b.Free)})
	}
	return out
}

// Fits returns how many instances of each ask fit now.
func (r *Reporter) Fits(subs []Subscription) []*nusav1.FitCount { return r.fits(r.View(), subs) }

func (r *Reporter) fits(view *state.View, subs []Subscription) (out []*nusav1.FitCount) {
	in := r.PlanInput(view)
	for _, s := range subs {
		fit := &nusav1.FitCount{Ask: s.hash, Count: int32(sched.FitCount(in, s.ask, maxFit))}
		if fit.Count == 0 {
			reason, message := sched.ExplainNoFit(in, s.ask)
			fit.Reason, fit.Message = wire.ReasonToProto(reason), strings.ToValidUTF8(message[:min(len(message), maxFitMessage)], "")
		}
		out = append(out, fit)
	}
	return out
}

// healthyDrivers returns the names of drivers that are healthy on any node. If there are more than a report may
// list, it returns no name and cut: an earlier version of the global tier takes any list for a complete one.
func healthyDrivers(view *state.View) (out []string, cut bool) {
	names := map[string]bool{}
	for n := range view.Nodes() {
		for _, d := range n.Drivers {
			if d.Healthy {
				names[d.Name] = true
			}
		}
	}
	if len(names) > maxDrivers {
		return nil, true
	}
	return slices.Sorted(maps.Keys(names)), false
}

// accelerators counts the accelerators by model. It returns nil if there are more models than a
// report may list.
func accelerators(view *state.View) *nusav1.GPUTotals {
	models := wire.Accelerators(view)
	if len(models) > maxModels {
		return nil
	}
	return &nusav1.GPUTotals{Models: models}
}

// utilisation returns the average of the latest statistics of ready nodes, weighted by
// capacity.
func (r *Reporter) utilisation(view *state.View) *nusav1.Utilisation {
	out, now := &nusav1.Utilisation{}, r.Clock() // read once, because each reading is a system call
	var cpu, memory, disk, cores, memoryTotal, diskTotal float64
	for n := range view.Nodes() {
		if n.Status != state.NodeReady {
			continue
		}
		s, known := r.Stats(n.ID, now)
		if !known {
			continue
		}
		weight := float64(n.Capacity.CPUMilli)
		cpu, cores = cpu+s.CPU*weight, cores+weight
		if all := s.MemoryUsed + s.MemoryAvailable; all > 0 {
			weight := float64(n.Capacity.MemoryBytes)
			memory += s.MemoryUsed / all * weight
			memoryTotal += weight
		}
		disk, diskTotal = disk+s.DiskUsed, diskTotal+s.DiskTotal
		out.NetworkIn += s.NetworkIn
		out.NetworkOut += s.NetworkOut
	}
	out.Cpu, out.Memory, out.Disk = fraction(cpu, cores), fraction(memory, memoryTotal), fraction(disk, diskTotal)
	return out
}

// fraction returns part/whole, or 0 if whole is not positive.
func fraction(part, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return part / whole
}
