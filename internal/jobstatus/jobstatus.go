package jobstatus

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Facts holds what one tier knows of a job.
type Facts struct {
	// Stopped says that a user stopped the job.
	Stopped bool
	Version int64
	// Desired and Counts are the sums over all groups.
	Desired int32
	Counts  nusav1.InstanceCounts
	// Behind says that some instances may still have an earlier version, although Counts
	// counts none as outdated.
	Behind bool
	// Complete says that every instance of a batch job has ended successfully.
	Complete bool
	// NotBegun says that no instance exists yet although some are wanted.
	NotBegun bool
	// Stopping is a text that says how many instances still have to stop; "" = none.
	Stopping string
}

// Kind is the activity of a job, in more detail than its state.
type Kind int

// The kinds, in the order in which PhaseOf tries them.
const (
	Stopped   Kind = iota
	Stopping       // a user stopped the job, and some instances remain
	Failed         // an instance has failed and is not started again
	Updating       // instances of an earlier version remain
	Complete       // every instance of the batch job ended successfully
	Pending        // instances wait or are lost
	Unknown        // instances are in regions that are cut off
	Held           // overrides keep all instances stopped
	Replacing      // instances that are not wanted any more still stop
	Starting       // instances start
	Running        // all instances run
)

// Phase is the kind of a job's activity, and a summary without a reason. The summary may
// be empty.
type Phase struct {
	Kind    Kind
	Summary string
}

// State returns the state of the phase as the API shows it.
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
	case Pending, Unknown, Held:
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
	case c.Held > 0 && c.Running+c.Starting == 0 && f.Stopping == "":
		return Phase{Kind: Held}
	case f.Stopping != "":
		return Phase{Replacing, f.Stopping}
	case c.Starting > 0:
		return Phase{Kind: Starting}
	}
	return Phase{Kind: Running}
}

// HasEnded reports whether a job in the given state has ended, and stays so unless a user
// runs it again.
func HasEnded(s nusav1.JobState) bool {
	return s == nusav1.JobState_JOB_STATE_COMPLETE || s == nusav1.JobState_JOB_STATE_FAILED
}

// StoppingInstances returns the text that says that n instances are being stopped; "" if n
// is 0.
func StoppingInstances(n int32) string {
	switch n {
	case 0:
		return ""
	case 1:
		return "1 instance is being stopped"
	}
	return fmt.Sprintf("%d instances are being stopped", n)
}

// Waiting returns the text that says how many instances of a job wait, for example "300 done, 20 running,
// 680 wait". desired is the number of all instances.
func Waiting(c *nusav1.InstanceCounts, desired int32) string {
	wait := c.GetPending() + c.GetLost()
	if c.GetComplete() == 0 {
		return fmt.Sprintf("%d of %d instances wait", wait, desired)
	}
	return fmt.Sprintf("%d done, %d running, %d wait", c.GetComplete(), c.GetStarting()+c.GetRunning(), wait)
}

// OverrideText says what an override does, for example "stopped" or "web scaled to 2: the site is hot".
func OverrideText(o *nusav1.Override) string {
	var parts []string
	if o.GetStopped() {
		parts = append(parts, "stopped")
	}
	for _, g := range o.GetGroups() {
		if g.GetCount() < 0 {
			parts = append(parts, "but not "+g.GetGroup())
		} else {
			parts = append(parts, fmt.Sprintf("%s scaled to %d", g.GetGroup(), g.GetCount()))
		}
	}
	text := strings.Join(parts, ", ")
	if o.GetReason() != "" {
		text += ": " + o.GetReason()
	}
	return text
}

// WithOverrides adds to a summary how many instances the overrides of regions keep stopped, for example
// "2 held by an override at tokyo". Overrides that hold nothing now are left out.
func WithOverrides(summary string, all []*nusav1.Override) string {
	text, left, more := summary, int32(0), 0
	for _, o := range all {
		if o.GetHeld() == 0 {
			continue
		}
		if more++; more > maxNamed {
			left += o.GetHeld()
			continue
		}
		text = joinText(text, fmt.Sprintf("%d held by an override at %s", o.GetHeld(), o.GetRegion()))
	}
	if more > maxNamed {
		text = joinText(text, fmt.Sprintf("%d held in %d more regions", left, more-maxNamed))
	}
	return text
}

// joinText joins two texts that may be empty.
func joinText(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

// WithObstacle adds to a summary why a group cannot run: "summary: group: obstacle".
// obstacles holds such reasons by group. Only the first group with a reason, by name, is
// added.
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
