package state

import (
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state/retry"
)

// HealthyLevel is the feature level from which on the state has Group.MinHealthy. Servers of a lower
// level do not know the field, and all servers of a region have equal states.
const HealthyLevel = 6

const (
	// defaultMinHealthy is the default of update.min_healthy: see job.MinHealthy.
	defaultMinHealthy = 10 * time.Second
	// batchHealthy is how long a batch instance must be up after a failed attempt.
	batchHealthy = time.Second
	// NoMinHealthy is the MinHealthy of a group whose instances count as running at once.
	NoMinHealthy = -time.Nanosecond
)

// HealthyAfter is how long an allocation of the group must be up without a restart before it counts
// as running. It applies to an allocation that was placed because of a rollout or a failure, or whose
// tasks were restarted. The first attempt of an instance counts at once.
func (g *Group) HealthyAfter(t JobType) time.Duration {
	switch {
	case t == Batch:
		return batchHealthy
	case g.MinHealthy == 0:
		return defaultMinHealthy
	}
	return max(0, g.MinHealthy)
}

// RetryLevel is the feature level from which on the state has Group.Retry and Instance.Retry, and
// reports have the failures that they describe.
const RetryLevel = 7

// StaggerLevel is the feature level from which on the state has Group.Stagger.
const StaggerLevel = 8

// ParallelLevel is the feature level from which on the state has Group.Parallel and Slot.Parallel.
const ParallelLevel = 9

// MemoryLevel is the feature level from which on rules of Group.Retry have MemoryMilli, and PlaceAlloc has
// MemoryBytes.
const MemoryLevel = 11

// hasMemory reports whether a rule of the group raises the memory.
func hasMemory(g *Group) bool {
	return g.Retry != nil && slices.ContainsFunc(g.Retry.Rules, func(r retry.Rule) bool { return r.MemoryMilli > 0 })
}

// withoutMemory returns the policy as servers below MemoryLevel know it.
func withoutMemory(p *retry.Policy) *retry.Policy {
	out := *p
	out.MemoryBytes, out.Rules = 0, slices.Clone(p.Rules)
	for i := range out.Rules {
		out.Rules[i].MemoryMilli, out.Rules[i].MemoryLimit = 0, 0
	}
	return &out
}

// forLevel returns the job as servers of a feature level know it.
func forLevel(j *Job, level uint32) *Job {
	unknown := func(g Group) bool {
		return level < HealthyLevel && g.MinHealthy != 0 || level < RetryLevel && g.Retry != nil || level < StaggerLevel && g.Stagger != 0 ||
			level < ParallelLevel && g.Parallel != 0 || level < ResizeLevel && g.Rest != 0 ||
			level < MemoryLevel && hasMemory(&g)
	}
	if !slices.ContainsFunc(j.Groups, unknown) {
		return j
	}
	out := *j
	out.Groups = slices.Clone(j.Groups)
	for i := range out.Groups {
		g := &out.Groups[i]
		if level < HealthyLevel {
			g.MinHealthy = 0
		}
		if level < RetryLevel {
			g.Retry = nil
		}
		if level < StaggerLevel {
			g.Stagger = 0
		}
		if level < ParallelLevel {
			g.Parallel = 0
		}
		if level < ResizeLevel {
			g.Rest = 0
		}
		if level < MemoryLevel && hasMemory(g) {
			g.Retry = withoutMemory(g.Retry)
		}
	}
	return &out
}
