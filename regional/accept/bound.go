package accept

import "github.com/nusa-scheduler/nusa/regional/state"

// bound reports whether the region's lease binds everything that may run for a slot: the
// version that the slot names, and each attempt that has not surely ended.
func bound(view *state.View, s *state.Slot) bool {
	key := s.Key()
	if !binds(view, key, s.JobVersion) {
		return false
	}
	job, _ := view.Job(key.JobKey(), s.JobVersion)
	for a := range view.GroupAllocs(key) {
		inside := job.Type == state.System || a.Index >= s.From && a.Index < s.To
		if inside && (a.Live() || a.Charged) && a.JobVersion != s.JobVersion && !binds(view, key, a.JobVersion) {
			return false
		}
	}
	return true
}

// binds reports whether the region's lease binds a group in a version of its job. An agent
// follows the version that it was ordered to run.
func binds(view *state.View, key state.GroupKey, version int64) bool {
	job, ok := view.Job(key.JobKey(), version)
	if !ok {
		return false
	}
	spec := job.Group(key.Group)
	if spec == nil {
		return false
	}
	b := spec.Binding(key.Local)
	return b == state.BindRegion || b == state.BindBoth
}
