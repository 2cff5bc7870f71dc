package accept

import (
	"time"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// bound reports whether the region's lease binds everything that may run for a slot: the
// slot's job version, and every attempt of another version that may still run. It returns
// the longest kill timeout of these versions.
func bound(view *state.View, s *state.Slot) (stop time.Duration, ok bool) {
	key := s.Key()
	if !binds(view, key, s.JobVersion) {
		return 0, false
	}
	job, _ := view.Job(key.JobKey(), s.JobVersion)
	stop = job.Group(key.Group).KillTimeout
	for a := range view.GroupAllocs(key) {
		inside := job.Type == state.System || a.Index >= s.From && a.Index < s.To
		if !inside || !a.Live() && !a.Charged || a.JobVersion == s.JobVersion && !a.BindingUnknown {
			continue
		}
		if a.BindingUnknown || !binds(view, key, a.JobVersion) {
			return 0, false
		}
		was, _ := view.Job(key.JobKey(), a.JobVersion)
		stop = max(stop, was.Group(key.Group).KillTimeout)
	}
	return stop, true
}

// unboundOnLostNode reports whether an attempt that was given up may still run, although nothing
// else may run for its index. Such an attempt may have no lease that binds it, and its node has
// not confirmed its end. Nothing else may run for the index if a lease binds the slot, or if the
// global tier waits for the attempt's end.
func unboundOnLostNode(view *state.View, s *state.Slot, a *state.Alloc) bool {
	return !a.Live() && a.Charged && bindingOf(view, a) == state.BindNone &&
		(s.Unbound || binding(view, s.Key(), s.JobVersion) != state.BindNone)
}

// onLostNodes returns the indices of a slot whose instances may still run on a lost node:
// their attempts were given up, and no lease ends them. It returns nil if there are none.
func onLostNodes(view *state.View, s *state.Slot) (left map[int32]bool) {
	if job, ok := view.Job(s.Key().JobKey(), s.JobVersion); ok && job.Type == state.System {
		return nil // each region has other instances of a system job
	}
	for a := range view.GroupAllocs(s.Key()) {
		if a.State == state.Lost && a.Charged && a.Index >= s.From && a.Index < s.To && bindingOf(view, a) == state.BindNone {
			if left == nil {
				left = map[int32]bool{}
			}
			left[a.Index] = true
		}
	}
	return left
}

// sayWhatMayRun adds an answer that gives instances up. It splits the answer, so that the
// instances that may still run on a lost node have an answer of their own.
func sayWhatMayRun(out []state.Answer, a state.Answer, left map[int32]bool) []state.Answer {
	if len(left) == 0 || a.State == state.SlotDone {
		return append(out, a)
	}
	end := a.To
	for from := a.From; from < end; from = a.To {
		a.From, a.To, a.MayRun = from, from+1, left[from]
		for a.To < end && left[a.To] == a.MayRun {
			a.To++
		}
		out = append(out, a)
	}
	return out
}

// binds reports whether the region's lease binds a group in a version of its job. The
// version matters because an agent follows the version that it was ordered to run.
func binds(view *state.View, key state.GroupKey, version int64) bool {
	b := binding(view, key, version)
	return b == state.BindRegion || b == state.BindBoth
}

// bindingOf returns the leases that certainly bind an attempt.
func bindingOf(view *state.View, a *state.Alloc) state.Binding {
	if a.BindingUnknown {
		return state.BindNone
	}
	return binding(view, a.Key(), a.JobVersion)
}

// binding returns the leases that bind a group in a version of its job.
func binding(view *state.View, key state.GroupKey, version int64) state.Binding {
	if job, ok := view.Job(key.JobKey(), version); ok {
		if spec := job.Group(key.Group); spec != nil {
			return spec.Binding(key.Local)
		}
	}
	return state.BindNone
}
