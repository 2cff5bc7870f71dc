package failover

// Return holds the facts that decide whether a returning region may keep what it runs of a slot
// that a verdict moved to another region.
type Return struct {
	// Unsteady: see the function Unsteady. Holds: the region understands the order to hold.
	// Draining: an operator drains the region.
	Unsteady, Holds, Draining bool
	// Allowed: the job allows the region.
	Allowed bool
	// Stop: the region's lease binds the group. KeepReplacement: the group's disconnect.reconcile
	// is keep_replacement.
	Stop, KeepReplacement bool
	// Stopping: the slot has the order to stop. Done: every instance of the slot has ended.
	Stopping, Done bool
	// Home: the slot is in the region from which the first verdict moved it.
	Home bool
}

// Keep decides whether the returning region holds the slot until the slot returns to it. Otherwise
// the region ends what it runs. why gives the reason in a few words.
func (r Return) Keep() (keep bool, why string) {
	switch {
	case r.Stopping:
		return false, "the slot has the order to stop"
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
