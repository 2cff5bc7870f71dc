package recovery

import (
	"github.com/nusa-scheduler/nusa/global/region"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Keeps returns how many instances of a region's work the store lets the region run.
func Keeps(s region.Slot, name string, w *nusav1.RegionWork) int32 {
	owns := s.Region == name && !s.Vacant && s.Desired == region.DesiredRun
	for i, f := range s.Former {
		owns = owns || f.Region == name && s.DesiredOfFormer(i) == region.DesiredHold
	}
	if !owns || s.Group != w.GetGroup() {
		return 0
	}
	return max(0, min(int32(s.To), w.GetTo())-max(int32(s.From), w.GetFrom()))
}

// Starts returns how many instances of a region's slots a recovery starts, by job and group. work
// lists what the region runs, so all other instances of the slots start. The slots are sorted by
// job and group.
func Starts(name string, slots []region.Slot, work []*nusav1.RegionWork) (out []*nusav1.LostWork) {
	type key struct{ namespace, job, group string }
	runs := map[key][]*nusav1.RegionWork{}
	for _, w := range work {
		k := key{w.GetNamespace(), w.GetJob(), w.GetGroup()}
		runs[k] = append(runs[k], w)
	}
	for _, s := range slots {
		missing := int32(s.Count())
		for _, w := range runs[key{s.Namespace, s.Job, s.Group}] {
			missing -= Keeps(s, name, w)
		}
		if missing <= 0 {
			continue
		}
		if k := len(out) - 1; k >= 0 && out[k].GetNamespace() == s.Namespace && out[k].GetJob() == s.Job && out[k].GetGroup() == s.Group {
			out[k].Instances += missing
			continue
		}
		out = append(out, &nusav1.LostWork{
			Region: name, Namespace: s.Namespace, Job: s.Job, Group: s.Group, Instances: missing, StoredVersion: s.JobVersion,
		})
	}
	return out
}
