package regional

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
	// maxBins bounds the histogram of free node vectors.
	maxBins = 64
	// maxFit bounds an exact fit count: no group has more instances.
	maxFit = state.MaxInstances
	// maxWhy bounds, in bytes, why an ask fits nowhere.
	maxWhy = 256
	// reportShare bounds the time spent on urgent reports: one tenth.
	reportShare = 10
)

// sendReport sends the aggregate each interval, and at once when something
// critical changed: a node more or less, or room where the last report had none
// for an ask.
func (ss *upSession) sendReport(now time.Time) (time.Time, error) {
	due := ss.reportAt.Add(ss.every)
	soon := ss.reportAt.Add(max(coalesce, reportShare*ss.lastTook))
	ss.mu.Lock()
	urgent, maybe := ss.reportNow, ss.critical
	ss.mu.Unlock()
	if now.Before(due) {
		if !urgent && maybe {
			if check := ss.checkedAt.Add(coalesce / 2); now.Before(check) {
				return earlier(due, check), nil
			}
			ss.checkedAt = now
			ss.take(&ss.critical)
			urgent = ss.isCritical()
			if urgent {
				ss.mu.Lock()
				ss.reportNow = true
				ss.mu.Unlock()
			}
		}
		if !urgent {
			return due, nil
		}
		if now.Before(soon) {
			return soon, nil
		}
	}
	ss.take(&ss.reportNow)
	ss.take(&ss.critical)
	began := time.Now()
	r := ss.u.l.makeReport(ss.u.subscriptions())
	ss.lastTook = time.Since(began)
	r.Sequence = ss.last.GetSequence() + 1
	ss.last, ss.reportAt = r, now
	return now.Add(ss.every), ss.stream.Send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Report{Report: r}})
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// isCritical compares with the last report what the placer must know at once.
func (ss *upSession) isCritical() bool {
	t := sched.Sum(ss.u.l.s.fsm.View())
	last := ss.last
	if t.Ready != last.GetNodesReady() || t.Lost != last.GetNodesLost() || t.Left != last.GetNodesLeft() ||
		t.Draining != last.GetNodesDraining() || t.Cordoned != last.GetNodesCordoned() {
		return true
	}
	full := slices.ContainsFunc(last.GetShape().GetFits(), func(f *nusav1.FitCount) bool { return f.GetCount() == 0 })
	free := last.GetFree()
	freed := t.Free.CPUMilli > free.GetCpuMilli() || t.Free.MemoryBytes > free.GetMemoryBytes() || t.Free.DiskBytes > free.GetDiskBytes()
	return full && freed
}

func (u *uplink) subscriptions() []subscription {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.subs
}

// makeReport sums the region up.
func (l *leader) makeReport(subs []subscription) *nusav1.RegionReport {
	// In this order: what is settled is in the view that follows.
	settled := l.sched.settledRevision()
	view := l.s.fsm.View()
	t := sched.Sum(view)
	r := &nusav1.RegionReport{
		NodesReady: t.Ready, NodesLost: t.Lost, NodesLeft: t.Left, NodesDraining: t.Draining, NodesCordoned: t.Cordoned,
		Capacity: wire.ResourcesToProto(t.Capacity), Free: wire.ResourcesToProto(t.Free),
		Allocated:     wire.ResourcesToProto(view.Allocated()),
		Utilisation:   l.utilisation(view),
		Shape:         &nusav1.RegionShape{},
		QueueLength:   l.sched.queueLength(),
		Allocations:   map[string]int32{},
		SlotsRevision: settled,
		Drivers:       healthyDrivers(view),
	}
	for s, n := range view.AllocCounts() {
		if n > 0 {
			r.Allocations[state.AllocState(s).String()] = int32(n)
		}
	}
	in := l.input(view)
	for _, s := range subs {
		fit := &nusav1.FitCount{Ask: s.hash, Count: int32(sched.FitCount(in, s.ask, maxFit))}
		if fit.Count == 0 {
			reason, message := sched.ExplainNoFit(in, s.ask)
			fit.Reason, fit.Message = wire.ReasonToProto(reason), strings.ToValidUTF8(message[:min(len(message), maxWhy)], "")
		}
		r.Shape.Fits = append(r.Shape.Fits, fit)
	}
	for _, b := range sched.Bins(view, maxBins) {
		r.Shape.Bins = append(r.Shape.Bins, &nusav1.ShapeBin{Nodes: b.Nodes, Pool: b.Pool, Free: wire.ResourcesToProto(b.Free)})
	}
	return r
}

// maxDrivers that a report names.
const maxDrivers = 64

// healthyDrivers are the names of those that are healthy on some node.
func healthyDrivers(view *state.View) []string {
	names := map[string]bool{}
	for n := range view.Nodes() {
		for _, d := range n.Drivers {
			if d.Healthy {
				names[d.Name] = true
			}
		}
	}
	if len(names) > maxDrivers { // which is more than it could say
		return nil
	}
	return slices.Sorted(maps.Keys(names))
}

// utilisation averages what ready nodes last reported, weighted by capacity.
func (l *leader) utilisation(view *state.View) *nusav1.Utilisation {
	out, now := &nusav1.Utilisation{}, l.s.cfg.Clock()
	var cpu, memory, disk, cores, memoryAll, diskAll float64
	for n := range view.Nodes() {
		if n.Status != state.NodeReady {
			continue
		}
		s, told := l.agents.Stats(n.ID, now)
		if !told {
			continue
		}
		weight := float64(n.Capacity.CPUMilli)
		cpu, cores = cpu+s.CPU*weight, cores+weight
		if all := s.MemoryUsed + s.MemoryAvailable; all > 0 {
			weight := float64(n.Capacity.MemoryBytes)
			memory += s.MemoryUsed / all * weight
			memoryAll += weight
		}
		disk, diskAll = disk+s.DiskUsed, diskAll+s.DiskTotal
		out.NetworkIn += s.NetworkIn
		out.NetworkOut += s.NetworkOut
	}
	out.Cpu, out.Memory, out.Disk = share(cpu, cores), share(memory, memoryAll), share(disk, diskAll)
	return out
}

func share(part, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return part / whole
}
