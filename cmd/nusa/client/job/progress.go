package job

import (
	"fmt"
	"strings"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// progressLine returns a job's state on one line.
func progressLine(w *term.Screen, j *nusav1.Job) string {
	s := j.GetStatus()
	sum, regions := totalsOf(s)
	parts := []string{w.State(stateText(s))}
	for _, c := range []struct {
		n    int32
		what string
	}{
		{max(sum.Pending, sum.unowned), "pending"}, {sum.Starting, "starting"}, {sum.Running, "running"},
		{sum.Complete, "complete"}, {sum.Failed, "failed"}, {sum.Lost, "lost"}, {sum.Unknown, "unknown"}, {sum.Stopping, "stopping"}, {sum.Held, "held"},
	} {
		of := ""
		if c.what == "running" && sum.Stopping+sum.Unknown > 0 {
			of = fmt.Sprintf(" of %d", sum.desired)
		}
		if c.n > 0 {
			parts = append(parts, fmt.Sprintf("%d%s %s", c.n, of, w.State(c.what)))
		}
	}
	if r := sum.rollout(); r != "" {
		parts = append(parts, w.Wait(r))
	}
	line := strings.Join(parts, "  ")
	if sum.unowned > 0 {
		line += fmt.Sprintf("  %d without a region", sum.unowned)
	}
	if regions != "" {
		line += "  on " + regions
	}
	if sum.runningOrComplete() < sum.desired || sum.Starting > 0 {
		if p := pending(j); p != "" {
			line += "  " + w.Faint("waits: "+p)
		}
	}
	return line
}

// because returns " (REASON)" with the reason why the job is not running, or "" if no
// reason is known.
func because(j *nusav1.Job) string {
	message := term.OneLine(headline(j.GetStatus()))
	if reasons := pending(j); reasons != "" {
		message = reasons
	}
	if why := term.OneLine(j.GetStatus().GetMessage()); why != "" && j.GetStatus().GetState() == nusav1.JobState_JOB_STATE_FAILED {
		message = why // it says what the tasks reported, too
	}
	if message == "" {
		sum, _ := totalsOf(j.GetStatus())
		message = sum.rollout()
	}
	if message == "" {
		return ""
	}
	return " (" + message + ")"
}
