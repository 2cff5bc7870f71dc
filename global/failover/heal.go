package failover

// Return is what decides whether a region that is connected again may keep what it runs
// of a slot that a verdict moved away from it.
type Return struct {
	// Unsteady: see Unsteady. Holds: the region understands the order to hold.
	// Draining: an operator moves everything away from it.
	Unsteady, Holds, Draining bool
	// Allowed: the job allows the region.
	Allowed bool
	// Stop: the region's lease binds the group. KeepReplacement is its
	// disconnect.reconcile.
	Stop, KeepReplacement bool
	// Stopping: the slot has to go. Done: every instance of it has ended.
	Stopping, Done bool
	// Home: the slot is where it was before the first verdict.
	Home bool
}

// Keep decides whether the region holds the slot, which returns to it then; otherwise it
// ends what it runs. Why says so in a few words.
func (r Return) Keep() (keep bool, why string) {
	switch {
	case r.Stopping:
		return false, "nothing of it shall run any more"
	case r.Done:
		return false, "its instances have ended elsewhere"
	case r.Home:
		return false, "it is back where it was before"
	case r.Stop:
		return false, "the region's lease binds it: the new owner stays"
	case r.KeepReplacement:
		return false, "disconnect.reconcile is keep_replacement"
	case !r.Allowed:
		return false, "the job does not allow the region"
	case r.Draining:
		return false, "the region is draining"
	case r.Unsteady:
		return false, "the region was lost three times within an hour"
	case !r.Holds:
		return false, "the region's servers are too old to hold it"
	}
	return true, "disconnect.reconcile is keep_original"
}
