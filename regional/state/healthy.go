package state

import (
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/internal/plant"
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

// AttemptsLevel is the feature level from which on rules of Group.Retry have OtherRegion, and instances keep
// what they have used of their retry policy when they move.
const AttemptsLevel = 14

// EachSlotLevel is the feature level from which on attempts also count in the second slot of a group that gets one
// generation, and a return to the former federation ends the overrides of jobs of the other one.
const EachSlotLevel = 18

// LeaveFor is how long an instance whose next attempt is in another region waits to be returned. Then the
// region starts the attempt itself, because it has no contact to the global tier.
const LeaveFor = 30 * time.Second

// LeavesUntil returns until when the instance waits to be returned, because its next attempt is in another
// region. 0: it does not wait.
func (i *Instance) LeavesUntil(now int64) int64 {
	if i.Retry == nil || !i.Retry.Leave || i.Finished() {
		return 0
	}
	if until := max(i.NotBeforeUnixNano, i.EndedUnixNano) + int64(LeaveFor); now < until {
		return until
	}
	return 0
}

// keepsAttempts reports whether an instance keeps its count of attempts in a new generation of a slot.
func keepsAttempts(t *txn, in *inst, s *Slot, spec *Group) bool {
	return t.cluster.FeatureLevel >= AttemptsLevel && spec.Retry != nil && in.Version == s.JobVersion && in.Generation != 0
}

// carryAttempts counts what instances of a new generation of a slot have used in other regions. before are the slots of
// the group before the order: one of them may have been split, and its instances have been counted.
func carryAttempts(t *txn, s *Slot, job *Job, all []Attempts, before []*Slot) {
	spec := job.Group(s.Group)
	g, ok := t.group(s.Key())
	counted := func(index int32) bool {
		return slices.ContainsFunc(before, func(o *Slot) bool {
			return o.Generation == s.Generation && o.Run == s.Run && (t.cluster.FeatureLevel < EachSlotLevel || o.From <= index && index < o.To)
		})
	}
	if !ok || t.cluster.FeatureLevel < AttemptsLevel || spec.Retry == nil {
		return
	}
	for i := range all {
		a := &all[i]
		if a.Index < s.From || a.Index >= s.To || a.Used.Nothing() || counted(a.Index) || plant.Is(plant.AttemptsForgotten) {
			continue
		}
		in := t.instance(g, a.Index)
		if in.Done {
			continue
		}
		used := a.Used.Join(retry.UsedOf(in.Retry, in.Failures, in.Exhausted))
		in.Run, in.Generation, in.Hash, in.Version = s.Run, s.Generation, spec.Hash, s.JobVersion
		in.Failures, in.Exhausted, in.Retry = used.Failures, used.Exhausted, used.Record(spec.Retry)
		if in.Exhausted {
			in.Reason, in.Message = ReasonRetriesExhausted, "it used its attempts in another region"
		}
		t.refresh(g, a.Index)
	}
}

// withoutOther returns the policy as servers below AttemptsLevel know it.
func withoutOther(p *retry.Policy) *retry.Policy {
	out := *p
	out.Rules = slices.Clone(p.Rules)
	for i := range out.Rules {
		out.Rules[i].OtherRegion = false
	}
	return &out
}

// hasOther reports whether a rule of the group asks for another region.
func hasOther(g *Group) bool {
	return g.Retry != nil && slices.ContainsFunc(g.Retry.Rules, func(r retry.Rule) bool { return r.OtherRegion })
}

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
			level < MemoryLevel && hasMemory(&g) || level < AttemptsLevel && hasOther(&g)
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
		if level < AttemptsLevel && hasOther(g) {
			g.Retry = withoutOther(g.Retry)
		}
	}
	return &out
}
