package global

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/place"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// replanBreach is how often a job with a sustained breach is planned again while
// there is nowhere better: another region may have come nearer, or have room.
const replanBreach = time.Minute

// HasNear says whether a job's placement depends on round trips.
func HasNear(j place.Job) bool {
	return slices.ContainsFunc(j.Groups, func(g place.Group) bool { return len(g.Regions.Near) > 0 })
}

// nearSnapshot is what the near rules of all jobs depend on. mu is held.
func (st *State) nearSnapshot() place.Snapshot {
	var jobs []place.Job
	for k := range st.Near {
		if j := st.Jobs[k]; j != nil {
			jobs = append(jobs, j.Spec)
		}
	}
	return st.nearSnapshotOf(jobs...)
}

// nearSnapshotOf is what the near rules of those jobs depend on. mu is held.
func (st *State) nearSnapshotOf(jobs ...place.Job) place.Snapshot {
	out := place.Snapshot{Topology: st.topologyView(), Jobs: jobs, Origins: st.Serving(jobs)}
	for _, name := range st.RegionNames() {
		out.Regions = append(out.Regions, place.Region{Name: name, Labels: st.Regions[name].Record.GetDefinition().GetLabels()})
	}
	return out
}

// updateInterest works out which pairs of regions jobs ask about, and has it
// told to the regions to which something else matters now. mu is held.
func (st *State) updateInterest() {
	st.ProbeDemandStale = false
	snapshot := st.nearSnapshot()
	for i := range snapshot.Jobs {
		j := &snapshot.Jobs[i]
		j.Slots = st.Jobs[JobKey{j.Namespace, j.Name}].SortedSlots()
	}
	next := place.ProbeDemand(snapshot)
	for name, r := range st.Regions {
		if r.Session != nil && !maps.Equal(st.ProbeDemand[name], next[name]) {
			r.Session.peersDirty = true
			r.Session.wake()
		}
	}
	st.ProbeDemand = next
}

// followBreaches looks how the bounds of jobs fare; those whose breach is
// sustained are planned anew. mu is held.
func (st *State) followBreaches(now time.Duration) {
	passed := now - st.followedAt
	if st.followedAt == 0 {
		passed = 0
	}
	st.followedAt = now
	if len(st.Near) == 0 {
		return
	}
	snapshot := st.nearSnapshot()
	follower := place.NewBoundTracker(snapshot)
	for i := range snapshot.Jobs {
		job := snapshot.Jobs[i]
		k := JobKey{job.Namespace, job.Name}
		j := st.Jobs[k]
		job.Slots, job.Breaches = slices.Collect(maps.Values(j.Slots)), j.Breaches
		next := follower.Step(&job, passed)
		changed := st.breachEvents(k, j.Breaches, next)
		if j.Breaches = next; !sustained(next) {
			j.Moves = nil
			continue
		}
		underWay := slices.ContainsFunc(j.Moves, func(m place.Move) bool { return m.InProgress })
		if changed || underWay || now-j.MovesAt >= replanBreach {
			st.Pending[k] = struct{}{}
		}
	}
}

func sustained(all []place.Breach) bool {
	return slices.ContainsFunc(all, func(b place.Breach) bool { return b.State == topology.Sustained })
}

// breachEvents tells of breaches that have become sustained, and of those that
// are healed or gone, and says whether there were any.
func (st *State) breachEvents(k JobKey, was, is []place.Breach) (changed bool) {
	find := func(in []place.Breach, b place.Breach) bool {
		return slices.ContainsFunc(in, func(o place.Breach) bool {
			return o.Group == b.Group && o.Region == b.Region && o.Near == b.Near && o.State == topology.Sustained
		})
	}
	for _, b := range is {
		if b.State == topology.Sustained && !find(was, b) {
			changed = true
			st.Events.Add("latency.breached", k.String(), "%s at %s, %s: %s", b.Group, b.Region, b.Near, b)
		}
	}
	for _, b := range was {
		if b.State == topology.Sustained && !find(is, b) {
			changed = true
			st.Events.Add("latency.kept", k.String(), "%s at %s, %s: kept again, or nothing is known any more", b.Group, b.Region, b.Near)
		}
	}
	return changed
}

// movesPlanned keeps what a plan said of sustained breaches. mu is held.
func (st *State) movesPlanned(plan place.Plan, jobs map[JobKey]seen, now time.Duration) {
	for k := range jobs {
		if j := st.Jobs[k]; j != nil && len(j.Breaches) > 0 {
			j.Moves, j.MovesAt = nil, now
		}
	}
	for _, m := range plan.Moves {
		k := JobKey{m.Namespace, m.Job}
		if _, asked := jobs[k]; asked && st.Jobs[k] != nil {
			st.Jobs[k].Moves = append(st.Jobs[k].Moves, m)
		}
	}
}

// NotRunning counts, by group, the instances that have an owner, shall run, and do
// not. Those that are being revoked are not among them.
func (j *Job) NotRunning() map[string]int {
	out := map[string]int{}
	for name, g := range j.Status().GetGroups() {
		owned := g.GetDesired() - g.GetUnowned()
		out[name] = max(0, int(owned-g.GetCounts().GetRunning()))
	}
	return out
}

// bounds are the breaches as Explain shows them, by group. mu is held.
func (j *Job) bounds() map[string][]*nusav1.NearBound {
	out := map[string][]*nusav1.NearBound{}
	for _, b := range j.Breaches {
		left := topology.BreachSustain - b.Balance
		n := &nusav1.NearBound{
			Region: b.Region, Bound: b.Near, State: b.State.String(), Since: durationpb.New(b.Since),
			Latest: durationpb.New(b.Latest), Worst: durationpb.New(b.Worst), SustainedIn: durationpb.New(left),
		}
		switch {
		case !j.runsAt(b.Group, b.Region):
			n.Message = "nothing of it is there any more, and nothing comes until the bound is kept again"
		case b.State == topology.Broken:
			n.Message = fmt.Sprintf("stays for now: it counts once it was broken for %s more than kept", left.Round(time.Second))
		default:
			n.Message = "whether another region is better is seen next"
		}
		for _, m := range j.Moves {
			if b.State == topology.Sustained && m.Breach.Group == b.Group && m.Breach.Region == b.Region && m.Breach.Near == b.Near {
				n.Message = m.Why
			}
		}
		out[b.Group] = append(out[b.Group], n)
	}
	return out
}

// maxFares bounds those of a group's explanation.
const maxFares = 4096

// fares are how the clauses of near of a group fare in the regions that its
// explanation lists.
func (d *lastDecision) fares(g *nusav1.GroupExplanation) []*nusav1.NearFare {
	i := slices.IndexFunc(d.job.Groups, func(p place.Group) bool { return p.Name == g.GetGroup() })
	if d.near == nil || i < 0 {
		return nil
	}
	var out []*nusav1.NearFare
	for _, r := range g.GetRegions() {
		for _, f := range d.near.NearResults(&d.job.Groups[i], r.GetRegion()) {
			w := &nusav1.NearFare{
				Region: r.GetRegion(), Bound: f.Near.String(), Required: f.Near.Required, Percentile: int32(max(f.Near.Percentile, 50)),
				Target: f.Target, Source: nusav1.RTTSource(f.Source), State: nusav1.EdgeState(f.State), Verdict: f.Verdict, Message: f.Why,
			}
			if f.Near.MaxRTT > 0 {
				w.MaxRtt = durationpb.New(f.Near.MaxRTT)
			}
			if f.Known() {
				w.Rtt, w.Error = durationpb.New(f.RTT), f.Error
			}
			if f.Source == topology.Measured {
				w.Age, w.Method = durationpb.New(f.Age), f.Method
			}
			if out = append(out, w); len(out) == maxFares {
				return out
			}
		}
	}
	return out
}

// runsAt says whether a region owns instances of a group.
func (j *Job) runsAt(group, name string) bool {
	for _, s := range j.Slots {
		if s.Group == group && s.Region == name {
			return true
		}
	}
	return false
}
