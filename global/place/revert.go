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
	Same bool
	// Failed says that instances of the present version were given up, Why in one
	// line.
	Failed bool
	Why    string
	// Whole says that every instance runs, in the present version.
	Whole bool
	// AutoRevert says that a group with update.auto_revert is among those with
	// failed instances.
	AutoRevert bool
}

// Verdict is what follows of a rollout.
type Verdict string

const (
	// Keep the healthy version in mind that there is, and wait.
	Keep Verdict = "keep"
	// Remember the present version: it is healthy.
	Remember Verdict = "remember"
	// Forget the healthy version: it has failed too.
	Forget Verdict = "forget"
	// Revert to the healthy version.
	Revert Verdict = "revert"
)

// Judge decides over a rollout, with the reason. A version is taken back once:
// what it is replaced by says what the healthy one says, and when that fails as
// well there is nothing to go back to any more.
func (r Rollout) Judge() (Verdict, string) {
	switch {
	case r.Whole && r.Healthy != r.Version:
		return Remember, fmt.Sprintf("every instance runs version %d", r.Version)
	case !r.Failed || r.Healthy == 0:
		return Keep, ""
	case r.Same:
		return Forget, fmt.Sprintf("version %d, which was healthy, has failed: %s", r.Healthy, r.Why)
	case !r.AutoRevert:
		return Keep, ""
	}
	return Revert, fmt.Sprintf("version %d failed: %s", r.Version, r.Why)
}
