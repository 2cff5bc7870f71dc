package placer

import (
	"slices"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/topology"
)

// seen identifies the state of a job that a plan is based on.
type seen struct {
	changes  uint64
	revision int64
}

// regionsSnapshot returns the part of a snapshot that is the same for all jobs. The lock is held.
func regionsSnapshot(st *state.State) place.Snapshot {
	now := st.Clock()
	regions, returned := state.PlacedRegions(st, now)
	return place.Snapshot{Topology: st.TopologyView(), Charged: true, Now: now, Regions: regions, Returned: returned}
}

// snapshotOf returns the snapshot for the next plan. It has the listed jobs that are still
// pending. The lock is held.
func snapshotOf(st *state.State, keys []state.JobKey) (place.Snapshot, map[state.JobKey]seen) {
	out := regionsSnapshot(st)
	jobs := make(map[state.JobKey]seen, len(keys))
	for _, k := range keys {
		if _, pending := st.Pending[k]; !pending {
			continue
		}
		j := st.Jobs[k]
		if j == nil || j.Record == nil {
			delete(st.Pending, k)
			continue
		}
		jobs[k] = seen{j.Changes, j.Revision}
		job := j.WithSlots(st.Sight())
		job.Groups, job.Disconnected, job.Movable = j.Groups(st.Clock()), st.DisconnectedOf(j), st.Movable[k]
		job.KeepStable(job.Stable) // the groups need the level of either version
		state.AddRefusals(st, j.Record, &job)
		if job.Down == nil && leaves(st, j) {
			job.Down = j.NotRunning(st.Sight())
		}
		out.Jobs = append(out.Jobs, job)
	}
	if len(jobs) == 0 {
		return out, nil
	}
	out.Held = state.Held(st)
	out.Terse, out.Origins = !explainsAll(out.Jobs, len(out.Regions)), st.Origins.Serving(out.Jobs)
	return out, jobs
}

// copyRegion replaces a region of a snapshot by a copy, which the caller may change.
func copyRegion(s *place.Snapshot, i int) *place.Region {
	r := *s.Regions[i]
	s.Regions[i] = &r
	return &r
}

// explainSnapshot returns the present snapshot with one job, which the plan explains in full. The
// lock is held.
func explainSnapshot(st *state.State, j place.Job) place.Snapshot {
	j.Explain = true
	out := regionsSnapshot(st)
	out.Regions = slices.Clone(out.Regions) // callers may replace regions in it
	out.Jobs, out.Terse = []place.Job{j}, true
	out.Origins = st.Origins.Serving(out.Jobs)
	return out
}

// nearSnapshot returns the facts that the near rules of jobs depend on. regions are nearRegions. The
// lock is held.
func nearSnapshot(st *state.State, view *topology.View, regions []*place.Region, jobs ...place.Job) place.Snapshot {
	return place.Snapshot{Topology: view, Jobs: jobs, Origins: st.Origins.Serving(jobs), Regions: regions}
}

// nearRegions returns the regions for nearSnapshot. The lock is held.
func nearRegions(st *state.State) []*place.Region {
	names := st.RegionNames()
	all, out := make([]place.Region, len(names)), make([]*place.Region, len(names))
	for i, name := range names {
		all[i] = place.Region{Name: name, Labels: st.Regions[name].Record.GetDefinition().GetLabels()}
		out[i] = &all[i]
	}
	return out
}

// nearJobs returns the listed jobs without their slots. The lock is held.
func nearJobs(st *state.State, keys []state.JobKey) []place.Job {
	jobs := make([]place.Job, 0, len(keys))
	for _, k := range keys {
		if j := st.Jobs[k]; j != nil {
			jobs = append(jobs, j.Alone())
		}
	}
	return jobs
}
