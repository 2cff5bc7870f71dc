package progress

import (
	"fmt"
	"math"
	"time"
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
	// Groups are the groups whose work the version changed, sorted by name.
	Groups []Group
}

// Group is how far a group is.
type Group struct {
	Name string
	// Desired instances are wanted. Healthy of them run the version. Starting of them have it and are
	// not healthy yet. Outdated instances still have an earlier version.
	Desired, Healthy, Starting, Outdated int
	// Best is the greatest number of healthy instances so far. Idle is the time since Best grew, and
	// Busy the part of it in which an instance of the version was starting.
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
	if g.Starting > 0 && g.HealthyDeadline-g.Busy <= left {
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
	// Done stores that every instance ran the version.
	Done Kind = "done"
)

// Decision is a decision about a rollout, with its reason. Due is the time until the next
// deadline; 0: none counts.
type Decision struct {
	Kind Kind
	Why  string
	Due  time.Duration
}

// Decide returns the decision. A rollout begins when an instance has to be replaced, so a version
// that nothing runs yet, and one from before the servers stored rollouts, has none. A group that
// misses a deadline fails the version. A failed version that becomes healthy after all is done. No
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
	case !rolling && p.Steady < p.MinHealthy:
		return Decision{Kind: Keep, Due: p.MinHealthy - p.Steady}
	case !rolling && p.AutoPromote:
		return Decision{Kind: Promote, Why: fmt.Sprintf("every canary has been healthy for %s", p.MinHealthy)}
	case !rolling: // it waits for an operator
		return Decision{Kind: Keep}
	case grew:
		return Decision{Kind: Grew, Due: max(left, 1)}
	case left <= 0:
		return Decision{Kind: Fail, Why: why}
	}
	return Decision{Kind: Keep, Due: left}
}
