package accept

import "github.com/nusa-scheduler/nusa/regional/state"

// Unordered counts the attempts of jobs of the federation that may run although the region
// has no order for their index, or the order to give the index up. A former owner gets that order
// again after a recovery, also for an attempt that no copy of the store knows. complete is false while the log cannot show all of them:
// while a change of slot orders is incomplete, and after a restore of the log, when a node
// that has not connected since may run attempts that the log does not have. It is also
// false until every server of the region has the feature level that shows which leases
// bind what runs.
func Unordered(view *state.View) (n int, complete bool) {
	c := view.Cluster()
	for g := range view.Groups() {
		if g.Key.Local {
			continue
		}
		for a := range view.AllocsIn(g) {
			if !ordered(view, g, a.Index) && (a.Live() || a.Charged && bindingOf(view, a) == state.BindNone) {
				n++
			}
		}
	}
	return n, !c.OrdersIncomplete && !c.Recovered && c.FeatureLevel >= state.BindingLevel
}

// ordered reports whether one of the slots of a group covers an index and is not to be given up.
// A slot of a system job covers every index.
func ordered(view *state.View, g *state.GroupView, index int32) bool {
	for _, s := range g.Slots {
		if s.Desired == state.Revoke {
			continue
		}
		job, ok := view.Job(g.Key.JobKey(), s.JobVersion)
		if index >= s.From && index < s.To || ok && job.Type == state.System {
			return true
		}
	}
	return false
}
