package global

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/internal/reason"
	"github.com/nusa-scheduler/nusa/internal/topo"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// maxSubscriptions is how many asks a report answers exactly, as in
// federation.proto.
const maxSubscriptions = 256

// askState is one distinct ask and how many groups have it.
type askState struct {
	sub    *nusav1.ShapeSubscription
	groups int
	// waiting counts groups that the latest plan left unplaced instances of.
	waiting int
}

// PlaceJob is a stored job as the placer sees it, without its slots.
func PlaceJob(rec *nusav1.JobRecord, revision int64) place.Job {
	j := rec.GetJob()
	spec := j.GetSpec()
	out := place.Job{
		Namespace: spec.GetNamespace(), Name: spec.GetName(), Version: j.GetVersion(), Run: RunOf(rec, revision),
		Type:     place.JobType(EnumWord(spec.GetType().String(), "JOB_TYPE_")),
		Priority: int(spec.GetPriority()), Revision: revision, Stopped: j.GetStopped(),
	}
	for _, name := range slices.Sorted(maps.Keys(spec.GetGroups())) {
		g := spec.GetGroups()[name]
		out.Groups = append(out.Groups, place.Group{
			Name: name, UnchangedSince: rec.GetSince()[name], Count: int(g.GetCount()), Ask: planAsk(g), Regions: planRegions(job.RegionsOf(spec, name)),
			MaxParallel: int(g.GetUpdate().GetMaxParallel()),
			OnDisconnect: place.OnDisconnect{
				After:   g.GetDisconnect().GetRegion().GetAfter().AsDuration(),
				Stop:    g.GetDisconnect().GetRegion().GetRunning() == nusav1.Running_RUNNING_STOP,
				Replace: g.GetDisconnect().GetRegion().GetReplace(),
			},
		})
	}
	for _, c := range spec.GetColocate() {
		out.Colocate = append(out.Colocate, c.GetGroups())
	}
	return out
}

func planAsk(g *nusav1.Group) place.Ask {
	a := job.AskOf(g)
	return place.Ask{
		CPUMilli: a.CPUMilli, MemoryBytes: a.MemoryBytes, DiskBytes: a.DiskBytes,
		GPU:  place.GPU{Count: int(a.GPUCount), Models: a.GPUModels, ShareMilli: int(a.GPUShareMilli)},
		Pool: a.Pool, Drivers: a.Drivers, Capabilities: a.Capabilities(), Constraints: a.Constraints,
		StaticPorts: ints(a.StaticPorts()), DynamicPorts: a.DynamicPorts(), Dedicated: a.Dedicated, Apart: a.Apart, Volumes: a.Volumes,
	}
}

func ints(in []int32) []int {
	out := make([]int, len(in))
	for i, v := range in {
		out[i] = int(v)
	}
	return out
}

func planRegions(r *nusav1.RegionsSpec) place.RegionsSpec {
	out := place.RegionsSpec{
		SpreadMin: int(r.GetSpread().GetMin()), SpreadMax: int(r.GetSpread().GetMax()),
		Divide: place.Divide(EnumWord(r.GetDivide().String(), "DIVIDE_")),
	}
	if r.GetDivide() == nusav1.Divide_DIVIDE_UNSPECIFIED {
		out.Divide = place.DivideCapacity
	}
	for _, a := range r.GetAllow() {
		out.Allow = append(out.Allow, planSelector(a))
	}
	for _, p := range r.GetPrefer() {
		out.Prefer = append(out.Prefer, place.Preference{Selector: planSelector(p.GetSelector()), Weight: int(p.GetWeight())})
	}
	for _, n := range r.GetNear() {
		near := place.Near{
			Selector: planSelector(n.GetSelector()), MaxRTT: n.GetMaxRtt().AsDuration(),
			Percentile: topology.Percentile(n.GetPercentile()), Required: n.GetRequired(),
			Unknown: place.UnknownRefuse, Weight: int(n.GetWeight()),
		}
		if n.GetUnknown() != nusav1.Unknown_UNKNOWN_UNSPECIFIED {
			near.Unknown = place.Unknown(EnumWord(n.GetUnknown().String(), "UNKNOWN_"))
		}
		if l := n.GetLocation(); l != nil {
			near.Location = topo.LocationFromProto(l)
		}
		near.Domain = n.GetDomain()
		out.Near = append(out.Near, near)
	}
	return out
}

func planSelector(s *nusav1.RegionSelector) place.Selector {
	return place.Selector{Name: s.GetName(), Labels: s.GetLabels()}
}

// addAsks counts a job's asks in. mu is held.
func (st *State) addAsks(j *Job) {
	st.asksDirty = true
	for _, g := range j.Spec.Groups {
		hash := g.Ask.Hash()
		a := st.asks[hash]
		if a == nil {
			a = &askState{sub: subscription(hash, g.Ask)}
			st.asks[hash] = a
		}
		a.groups++
		j.asks = append(j.asks, hash)
	}
}

func (st *State) dropAsks(j *Job) {
	for _, hash := range j.asks {
		if a := st.asks[hash]; a != nil {
			if a.groups--; a.groups <= 0 {
				delete(st.asks, hash)
			}
		}
	}
	j.asks, st.asksDirty = nil, true
}

func subscription(hash uint64, a place.Ask) *nusav1.ShapeSubscription {
	s := &nusav1.ShapeSubscription{
		Ask: hash, Constraints: a.Constraints, Pool: a.Pool, Drivers: a.Drivers, Capabilities: a.Capabilities,
		Dedicated: a.Dedicated, DynamicPorts: int32(a.DynamicPorts), Apart: a.Apart, Volumes: a.Volumes,
		Resources: &nusav1.Resources{CpuMilli: a.CPUMilli, MemoryBytes: a.MemoryBytes, DiskBytes: a.DiskBytes},
	}
	if a.GPU.Count > 0 || a.GPU.ShareMilli > 0 {
		s.Resources.Gpu = &nusav1.GPU{Count: int32(a.GPU.Count), Models: a.GPU.Models, ShareMilli: int32(a.GPU.ShareMilli)}
	}
	for _, p := range a.StaticPorts {
		s.StaticPorts = append(s.StaticPorts, int32(p))
	}
	return s
}

// Subscriptions are the asks that reports shall answer exactly: those that
// wait first, then those that most groups have. mu is held.
func (st *State) Subscriptions() []uint64 {
	hashes := slices.Collect(maps.Keys(st.asks))
	slices.SortFunc(hashes, func(a, b uint64) int {
		x, y := st.asks[a], st.asks[b]
		return cmp.Or(cmp.Compare(y.waiting, x.waiting), cmp.Compare(y.groups, x.groups), cmp.Compare(a, b))
	})
	if len(hashes) > maxSubscriptions {
		hashes = hashes[:maxSubscriptions]
	}
	slices.Sort(hashes)
	return hashes
}

// placeRegion is a region as the placer sees it. mu is held.
func (st *State) placeRegion(r *Region, now time.Duration) place.Region {
	out := place.Region{
		Name: r.Name, Labels: r.Record.GetDefinition().GetLabels(), Cordoned: r.Record.GetCordoned(),
		Connected: r.Session != nil, NeverConnected: r.Record.GetClusterId() == "", DisconnectedFor: r.Life.DisconnectedFor(now),
		ReportSequence: r.Reports,
	}
	rep := r.Report
	if rep == nil {
		return out
	}
	out.HasReport, out.ReportAge, out.SlotsRevision = true, now-r.ReportAt, rep.GetSlotsRevision()
	out.Fits = make(map[uint64]int, len(rep.GetShape().GetFits()))
	for _, f := range rep.GetShape().GetFits() {
		out.Fits[f.GetAsk()] = int(f.GetCount())
		if f.GetCount() == 0 && f.GetReason() != nusav1.Reason_REASON_UNSPECIFIED {
			if out.NoFitReasons == nil {
				out.NoFitReasons = map[uint64]place.Returned{}
			}
			out.NoFitReasons[f.GetAsk()] = place.Returned{
				Region: r.Name, Reason: ReasonFromProto(f.GetReason()), Message: f.GetMessage(), ReasonText: reason.WithMessage(f.GetReason(), f.GetMessage()),
			}
		}
	}
	for _, b := range rep.GetShape().GetBins() {
		out.Bins = append(out.Bins, place.Bin{Nodes: max(0, int(b.GetNodes())), Free: planResources(b.GetFree()), Pool: b.GetPool()})
	}
	out.Free, out.Capacity = planResources(rep.GetFree()), planResources(rep.GetCapacity())
	out.CPUUtilisation, out.MemoryUtilisation = rep.GetUtilisation().GetCpu(), rep.GetUtilisation().GetMemory()
	out.Drivers = rep.GetDrivers()
	out.NodesReady, out.QueueLength = int(rep.GetNodesReady()), int(rep.GetQueueLength())
	return out
}

func planResources(r *nusav1.Resources) place.Resources {
	return place.Resources{
		CPUMilli: r.GetCpuMilli(), MemoryBytes: r.GetMemoryBytes(), DiskBytes: r.GetDiskBytes(),
		GPUMilli: int64(r.GetGpu().GetCount())*1000 + int64(r.GetGpu().GetShareMilli()),
	}
}
