package place

import "fmt"

// Rollout is what is known of a job's present version when it is decided
// whether to take it back.
type Rollout struct {
	Version int64
	// Healthy is the latest version of the same run that ran whole; 0 = none is
	// known.
	Healthy int64
	// Same: that version says what the present one says.
	SameSpec bool
	// Failed says that instances of the present version were given up, Why in one
	// line.
	Failed bool
	Why    string
	// AllRunning says that every instance runs, in the present version.
	AllRunning bool
	// AutoRevert says that a group with update.auto_revert is among those with
	// failed instances.
	AutoRevert bool
}

// RolloutDecision is what follows of a rollout.
type RolloutDecision string

const (
	// RolloutWait the healthy version in mind that there is, and wait.
	RolloutWait RolloutDecision = "keep"
	// RolloutSetHealthy the present version: it is healthy.
	RolloutSetHealthy RolloutDecision = "remember"
	// RolloutForgetHealthy the healthy version: it has failed too.
	RolloutForgetHealthy RolloutDecision = "forget"
	// RolloutRevert to the healthy version.
	RolloutRevert RolloutDecision = "revert"
)

// Decide decides over a rollout, with the reason. A version is taken back once:
// what it is replaced by says what the healthy one says, and when that fails as
// well there is nothing to go back to any more.
func (r Rollout) Decide() (RolloutDecision, string) {
	switch {
	case r.AllRunning && r.Healthy != r.Version:
		return RolloutSetHealthy, fmt.Sprintf("every instance runs version %d", r.Version)
	case !r.Failed || r.Healthy == 0:
		return RolloutWait, ""
	case r.SameSpec:
		return RolloutForgetHealthy, fmt.Sprintf("version %d, which was healthy, has failed: %s", r.Healthy, r.Why)
	case !r.AutoRevert:
		return RolloutWait, ""
	}
	return RolloutRevert, fmt.Sprintf("version %d failed: %s", r.Version, r.Why)
}
