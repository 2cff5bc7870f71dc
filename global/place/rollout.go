package place

import "fmt"

// Rollout describes a job's present version, to decide whether to revert it.
type Rollout struct {
	Version int64
	// Healthy is the latest version of the run whose instances all ran; 0 = none is
	// known.
	Healthy int64
	// SameSpec: the healthy version and the present one have equal specs.
	SameSpec bool
	// Failed: instances of the present version failed for good. Why says how,
	// in one line.
	Failed bool
	Why    string
	// AllRunning: every instance runs, in the present version.
	AllRunning bool
	// AutoRevert: a group with failed instances has update.auto_revert.
	AutoRevert bool
}

// RolloutDecision says what to do about a rollout.
type RolloutDecision string

const (
	// RolloutWait keeps the stored healthy version, and waits.
	RolloutWait RolloutDecision = "keep"
	// RolloutSetHealthy stores the present version as the healthy one.
	RolloutSetHealthy RolloutDecision = "remember"
	// RolloutForgetHealthy removes the stored healthy version: it failed too.
	RolloutForgetHealthy RolloutDecision = "forget"
	// RolloutRevert submits the healthy version again.
	RolloutRevert RolloutDecision = "revert"
)

// Decide returns the decision with its reason. A version is reverted once: its
// replacement has the spec of the healthy version, and if that fails as well
// there is no version left to revert to.
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
