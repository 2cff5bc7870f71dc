package rotation

import "fmt"

// Phase is how far the change to another root is.
type Phase string

// The phases. In Trust all members trust two roots, and certificates come from the earlier one.
// In Issue they come from the later one.
const (
	Steady Phase = ""
	Trust  Phase = "trust"
	Issue  Phase = "issue"
)

// The steps between the phases.
const (
	ToTrust    = "trust"
	ToIssue    = "issue"
	ToDistrust = "distrust"
	Rollback   = "rollback"
)

// Authority are the roots of a federation.
type Authority struct {
	// Version counts the steps.
	Version uint64
	Phase   Phase
	// Issuer is the root from which new certificates come. Other is the other trusted root. It is
	// empty in the phase Steady.
	Issuer, Other string
}

// Roots returns the trusted roots.
func (a *Authority) Roots() []string {
	if a.Other == "" {
		return []string{a.Issuer}
	}
	return []string{a.Issuer, a.Other}
}

// Goal returns what each member should have.
func (a *Authority) Goal() State { return State{Roots: a.Roots(), Issuer: a.Issuer} }

// Name returns the name of the phase.
func (a *Authority) Name() string {
	if a.Phase == Steady {
		return "steady"
	}
	return string(a.Phase)
}

// Needs returns what each member must have before a step, so that no member is separated. Empty
// fields say nothing. ToTrust needs nothing, because it takes nothing from any member. The step back
// from Issue needs nothing either: all members of that phase trust both roots.
func (a *Authority) Needs(step string) State {
	switch {
	case a.Phase == Trust && step == ToIssue:
		return State{Roots: a.Roots()}
	case a.Phase == Issue && step == ToDistrust:
		return a.Goal()
	case a.Phase == Trust && step == Rollback:
		// Certificates of the other root may be in use after a step back from Issue.
		return State{Issuer: a.Issuer}
	}
	return State{}
}

// Step returns the roots after a step. next is the new root of the step ToTrust. waiting are the
// members that lack what the step needs. With force they hold nothing back.
func (a *Authority) Step(step, next string, waiting *Waiting, force bool) (Authority, error) {
	out := *a
	out.Version++
	possible := map[Phase]string{Steady: ToTrust, Trust: ToIssue + " or " + Rollback, Issue: ToDistrust + " or " + Rollback}
	switch {
	case a.Phase == Steady && step == ToTrust && next == a.Issuer:
		return *a, fmt.Errorf("%w: the new root is the present one", ErrStep)
	case a.Phase == Steady && step == ToTrust && next == "":
		return *a, fmt.Errorf("%w: there is no new root", ErrStep)
	case a.Phase == Steady && step == ToTrust:
		out.Phase, out.Other = Trust, next
	case a.Phase == Trust && step == ToIssue:
		out.Phase, out.Issuer, out.Other = Issue, a.Other, a.Issuer
	case a.Phase == Issue && step == ToDistrust, a.Phase == Trust && step == Rollback:
		out.Phase, out.Other = Steady, ""
	case a.Phase == Issue && step == Rollback:
		out.Phase, out.Issuer, out.Other = Trust, a.Other, a.Issuer
	default:
		return *a, fmt.Errorf("%w: the phase is %s, so the next step is %s, not %q", ErrStep, a.Name(), possible[a.Phase], step)
	}
	if needs := a.Needs(step); !needs.Empty() && !force {
		if err := waiting.check("the step " + step); err != nil {
			return *a, err
		}
	}
	return out, nil
}
