package global

import (
	"maps"
	"slices"

	"github.com/nusa-scheduler/nusa/global/place"
)

// hasNear says whether a job's placement depends on round trips.
func hasNear(j place.Job) bool {
	return slices.ContainsFunc(j.Groups, func(g place.Group) bool { return len(g.Regions.Near) > 0 })
}

// nearSnapshot is what the near rules of jobs depend on, with those jobs and
// their slots. mu is held.
func (st *state) nearSnapshot() place.Snapshot {
	out := place.Snapshot{Topology: st.topologyView()}
	for _, name := range st.regionNames() {
		out.Regions = append(out.Regions, place.Region{Name: name, Labels: st.regions[name].rec.GetDefinition().GetLabels()})
	}
	for k := range st.near {
		if j := st.jobs[k]; j != nil {
			out.Jobs = append(out.Jobs, j.forPlacer())
		}
	}
	out.Origins = st.serving(out.Jobs)
	return out
}

// updateInterest works out which pairs of regions jobs ask about, and has it
// told to the regions to which something else matters now. mu is held.
func (st *state) updateInterest() {
	st.interestDirty = false
	next := place.Interest(st.nearSnapshot())
	for name, r := range st.regions {
		if r.session != nil && !maps.Equal(st.interest[name], next[name]) {
			r.session.peersDirty = true
			r.session.wake()
		}
	}
	st.interest = next
}
