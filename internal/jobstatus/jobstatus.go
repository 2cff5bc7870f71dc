package jobstatus

import (
	"fmt"
	"maps"
	"slices"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Facts holds one tier's knowledge of a job.
type Facts struct {
	// Stopped says that a user stopped the job.
	Stopped bool
	Version int64
	// Desired and Counts are the sums over all groups.
	Desired int32
	Counts  nusav1.InstanceCounts
	// Behind says that some instances may still have an earlier version although
	// Counts does not show them as outdated.
	Behind bool
	// Complete says that every instance of a batch job has ended well.
	Complete bool
	// NotBegun says that no instance exists although some are wanted.
	NotBegun bool
	// Stopping lists the instances that still have to stop, "" for none.
	Stopping string
}

// Kind is the activity of a job, in more detail than its state.
type Kind int

// The kinds, in the order in which PhaseOf tries them.
const (
	Stopped   Kind = iota
	Stopping       // a user stopped the job, and some instances remain
	Failed         // an instance failed for good
	Updating       // instances of an earlier version remain
	Complete       // a batch job whose every instance ended well
	Pending        // instances wait or are lost
	Unknown        // instances of regions that are cut off
	Replacing      // surplus instances still stop
	Starting       // instances start
	Running        // everything runs
)

// Phase is the kind of a job's activity, and a summary without a reason; the summary is
// "" if there is nothing to say.
type Phase struct {
	Kind    Kind
	Summary string
}

// State returns the state of job.proto for the phase.
func (p Phase) State() nusav1.JobState {
	switch p.Kind {
	case Stopped:
		return nusav1.JobState_JOB_STATE_STOPPED
	case Stopping:
		return nusav1.JobState_JOB_STATE_STOPPING
	case Failed:
		return nusav1.JobState_JOB_STATE_FAILED
	case Complete:
		return nusav1.JobState_JOB_STATE_COMPLETE
	case Pending, Unknown:
		return nusav1.JobState_JOB_STATE_PENDING
	case Running:
		return nusav1.JobState_JOB_STATE_RUNNING
	}
	return nusav1.JobState_JOB_STATE_STARTING
}

// PhaseOf returns the phase of a job.
func PhaseOf(f *Facts) Phase {
	c := &f.Counts
	switch {
	case f.Stopped && f.Stopping == "":
		return Phase{Kind: Stopped}
	case f.Stopped:
		return Phase{Stopping, f.Stopping}
	case c.Failed > 0:
		return Phase{Failed, fmt.Sprintf("%d of %d instances failed", c.Failed, f.Desired)}
	case c.Outdated > 0, f.Behind && c.Pending+c.Lost+c.Unknown == 0:
		return Phase{Updating, fmt.Sprintf("updating: %d of %d instances run version %d", max(0, c.Running-c.Outdated), f.Desired, f.Version)}
	case f.Complete:
		return Phase{Kind: Complete}
	case c.Pending+c.Lost > 0, f.NotBegun:
		return Phase{Kind: Pending}
	case c.Unknown > 0:
		return Phase{Kind: Unknown}
	case f.Stopping != "":
		return Phase{Replacing, f.Stopping}
	case c.Starting > 0:
		return Phase{Kind: Starting}
	}
	return Phase{Kind: Running}
}

// HasEnded says whether a job in the given state has ended for good, unless a user runs
// it again.
func HasEnded(s nusav1.JobState) bool {
	return s == nusav1.JobState_JOB_STATE_COMPLETE || s == nusav1.JobState_JOB_STATE_FAILED
}

// StoppingInstances returns the text that n instances are being stopped, "" for none.
func StoppingInstances(n int32) string {
	switch n {
	case 0:
		return ""
	case 1:
		return "1 instance is being stopped"
	}
	return fmt.Sprintf("%d instances are being stopped", n)
}

// WithObstacle adds the obstacle of the first group, by name, that has one:
// "summary: group: obstacle". Obstacles are by group.
func WithObstacle(summary string, obstacles map[string]string) string {
	for _, name := range slices.Sorted(maps.Keys(obstacles)) {
		if obstacles[name] == "" {
			continue
		}
		text := name + ": " + obstacles[name]
		if summary != "" {
			text = summary + ": " + text
		}
		return text
	}
	return summary
}
