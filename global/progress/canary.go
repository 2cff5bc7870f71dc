package progress

// Canaries are the instances of a group that run a new version beside the earlier one. They have the
// indices From ≤ i < From + N. The instances below From keep the earlier version.
type Canaries struct {
	From, N          int
	Promoted, Failed bool
}

// Indices returns how many instances a group has whose spec asks for count, and the first index that
// gets the new version now; 0: every index takes its turn.
//
// A change of the count waits until the canaries are promoted, because new instances below From would
// run a version that nobody has promoted. After the promotion the canaries stay until the rollout is
// done, so that the replaced instances are not missed.
func (c Canaries) Indices(count int) (instances, first int) {
	switch {
	case c.Failed && !c.Promoted:
		return c.From, 0
	case !c.Promoted:
		return c.From + c.N, c.From
	case c.Failed || count < c.From:
		return count, 0
	}
	return max(count, c.From+c.N), 0
}
