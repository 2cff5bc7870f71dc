package progress

import (
	"fmt"
	"math"
	"time"

	"github.com/nusa-scheduler/nusa/internal/plant"
)

// Rollout holds the facts about how far the rollout of a version is.
type Rollout struct {
	// Version is the version that is rolled out: the latest one that changed the work of a group.
	Version int64
	// Begun, Done, Paused and Failed are what is stored about the rollout.
	Begun, Done, Paused, Failed bool
	// Canaries: the version has canaries that are not promoted. Groups are then the groups with
	// canaries, and Desired and Healthy count only these.
	Canaries bool
	// AutoPromote: healthy canaries are promoted. Steady is since when all of them have been healthy,
	// and MinHealthy how long they must be.
	AutoPromote        bool
	Steady, MinHealthy time.Duration
	// Held says why no deadline counts now, for example because a region is disconnected. Empty: they
	// count.
	Held string
	// Updating are the regions that have the version and in which its rollout has not ended, and Waiting
	// says that a region has not got the version yet.
	Updating []string
	Waiting  bool
	// PauseLeft is the time until the next region gets the version; 0: no pause. No deadline counts
	// while no region is being updated.
	PauseLeft time.Duration
	// Continue: the version goes on to the next regions even if it fails in one. FailedIn says where it
	// has failed, and Failing, by region, why it fails in regions that are being updated.
	Continue bool
	FailedIn string
	Failing  map[string]string
	// Groups are the groups whose work the version changed, sorted by name.
	Groups []Group
}

// Group is how far a group is.
type Group struct {
	Name string
	// Desired instances are wanted. Healthy of them run the version. Starting of them have it and are
	// not healthy yet, or wait in a back-off for their next attempt. Outdated instances still have an earlier version.
	Desired, Healthy, Starting, Outdated int
	// Best is the greatest number of healthy instances so far. Idle is the time since Best grew, and
	// Busy the part of it for which instances of the version have been starting: see Clock.
	Best       int
	Idle, Busy time.Duration
	// HealthyDeadline and ProgressDeadline bound Busy and Idle.
	HealthyDeadline, ProgressDeadline time.Duration
}

// rolling reports whether the group has not reached the version completely.
func (g *Group) rolling() bool { return g.Outdated > 0 || g.Healthy < g.Desired }

// left returns the time until the group misses a deadline, and which one it misses.
func (g *Group) left() (left time.Duration, why string) {
	progress := fmt.Sprintf("%s: no further instance became healthy within progress_deadline, %s: %d of %d run it",
		g.Name, g.ProgressDeadline, g.Healthy, g.Desired)
	left = g.ProgressDeadline - g.Idle
	if (g.Starting > 0 || g.Busy > 0) && g.HealthyDeadline-g.Busy <= left {
		return g.HealthyDeadline - g.Busy, fmt.Sprintf("%s: an instance was not healthy within healthy_deadline, %s: %d of %d run it",
			g.Name, g.HealthyDeadline, g.Healthy, g.Desired)
	}
	return left, progress
}

// Kind says what to store about a rollout.
type Kind string

const (
	// Keep changes nothing.
	Keep Kind = "keep"
	// Begin stores that the rollout has begun.
	Begin Kind = "begin"
	// Grew stores that more instances are healthy.
	Grew Kind = "grew"
	// Fail stores that the version has failed.
	Fail Kind = "fail"
	// Promote stores that the canaries are promoted.
	Promote Kind = "promote"
	// FailRegions stores that the version has failed in some regions. The rollout continues.
	FailRegions Kind = "fail regions"
	// Done stores that every instance ran the version.
	Done Kind = "done"
)

// Decision is a decision about a rollout, with its reason. Due is the time until the next
// deadline, or until a pause ends; 0: neither.
type Decision struct {
	Kind Kind
	Why  string
	Due  time.Duration
	// Left is the time until a group misses a deadline; 0: no deadline counts.
	Left time.Duration
	// Regions says, by region, why the version has failed there. Only with FailRegions.
	Regions map[string]string
}

// Decide returns the decision. A rollout begins when an instance has to be replaced, so a version
// that nothing runs yet, and one from before the servers stored rollouts, has none. A group that
// misses a deadline fails the version, or, with Continue, only the regions that are being updated; the
// version then fails once its rollout has ended in every region. A failed version that becomes healthy after all is done. No
// deadline counts while healthy canaries wait for an operator.
func (p Rollout) Decide() Decision {
	rolling, outdated, grew := false, false, false
	left, why := time.Duration(math.MaxInt64), ""
	for i := range p.Groups {
		g := &p.Groups[i]
		outdated = outdated || g.Outdated > 0
		if !g.rolling() {
			continue
		}
		rolling, grew = true, grew || g.Healthy > g.Best
		if l, reason := g.left(); l < left {
			left, why = l, reason
		}
	}
	switch {
	case p.Version == 0 || p.Done:
		return Decision{Kind: Keep}
	case !p.Begun && outdated:
		return Decision{Kind: Begin, Why: fmt.Sprintf("version %d replaces instances", p.Version)}
	case !p.Begun:
		return Decision{Kind: Keep}
	case !rolling && !p.Canaries:
		return Decision{Kind: Done, Why: fmt.Sprintf("every instance runs version %d", p.Version)}
	case p.Failed || p.Paused || p.Held != "":
		return Decision{Kind: Keep}
	case !rolling && p.Steady < p.MinHealthy && !plant.Is(plant.PromotedAtOnce):
		return Decision{Kind: Keep, Due: p.MinHealthy - p.Steady}
	case !rolling && p.AutoPromote:
		return Decision{Kind: Promote, Why: fmt.Sprintf("every canary has been healthy for %s", p.MinHealthy)}
	case !rolling: // it waits for an operator
		return Decision{Kind: Keep}
	}
	return p.decideRolling(grew, left, why)
}

// decideRolling decides about a rollout that replaces instances. grew: more instances are healthy. left is
// the time until the next deadline is missed, and why says which.
func (p *Rollout) decideRolling(grew bool, left time.Duration, why string) Decision {
	left = max(left, 0)
	due := max(left, 1)
	if p.PauseLeft > 0 {
		due = min(due, p.PauseLeft)
	}
	switch {
	case p.PauseLeft > 0 && len(p.Updating) == 0:
		return Decision{Kind: Keep, Due: p.PauseLeft}
	case p.FailedIn != "" && len(p.Updating) == 0 && !p.Waiting:
		return Decision{Kind: Fail, Why: p.FailedIn}
	case p.Continue && !p.Waiting && len(p.Failing) > 0:
		return Decision{Kind: FailRegions, Regions: p.Failing}
	case grew:
		return Decision{Kind: Grew, Due: due, Left: max(left, 1)}
	case left <= 0 && p.Continue && len(p.Updating) > 0:
		failed := map[string]string{}
		for _, name := range p.Updating {
			failed[name] = why
		}
		return Decision{Kind: FailRegions, Regions: failed}
	case left <= 0:
		return Decision{Kind: Fail, Why: why}
	}
	return Decision{Kind: Keep, Due: due, Left: left}
}
