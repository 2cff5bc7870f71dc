package reconcile

import (
	"fmt"
	"strings"
	"time"
)

// ofLease reports whether a reason says that a lease ended the run.
func ofLease(r Reason) bool { return r == ReasonLeaseExpired || r == ReasonRegionLease }

// Lapsed reports whether a lease ended the latest run, or ended before the run could begin.
// The task has not failed in that case, so it starts again when the lease is back.
func (t TaskActual) Lapsed() bool { return t.Phase == Ended && ofLease(t.Reason) }

// AwaitsLease reports whether a task of the allocation has not begun, or was ended by a
// lease.
func AwaitsLease(a Alloc, act Actual) bool {
	for _, t := range a.Tasks {
		if ta := act.Tasks[t.Name]; ta.Lapsed() || ta.Phase == Waiting && mayBegin(a, act, t) {
			return true
		}
	}
	return false
}

// lapsed reports whether a lease ended tasks of an allocation and no task of it is live.
// The time while no task is live does not count for max_runtime.
func lapsed(a Alloc, act Actual) bool {
	found := false
	for _, t := range a.Tasks {
		ta := act.Tasks[t.Name]
		if ta.live() {
			return false
		}
		found = found || ta.Lapsed()
	}
	return found
}

// failure returns the outcome if a task has failed and gets no further run, else nil.
func failure(a Alloc, act Actual) *Outcome {
	for _, t := range a.Tasks {
		ta := act.Tasks[t.Name]
		if ta.Phase != Ended || done(a, t, ta) || ta.Lapsed() || t.Hook == Poststop {
			continue
		}
		if ta.Final || ta.Reason == ReasonUnsupported {
			return &Outcome{State: Failed, Reason: ta.Reason, Message: fmt.Sprintf("task %s %s", t.Name, describe(ta)), Failure: failureOf(t, ta)}
		}
		if n := attemptsUsed(t.Restart, ta); n >= t.Restart.Attempts {
			if t.Restart.Attempts == 0 {
				return &Outcome{State: Failed, Reason: endReason(ta), Message: fmt.Sprintf("task %s %s", t.Name, describe(ta)), Failure: failureOf(t, ta)}
			}
			return &Outcome{State: Failed, Reason: ReasonRestartsExhausted,
				Message: fmt.Sprintf("task %s %s, after %d of %d restarts %s", t.Name, describe(ta), n, t.Restart.Attempts, countedOver(t.Restart, ta)),
				Failure: failureOf(t, ta)}
		}
	}
	return nil
}

// failureOf returns why the latest run of a task has failed.
func failureOf(task Task, t TaskActual) *Failure {
	f := &Failure{Task: task.Name, Category: t.Category, Permanent: t.Final || t.Reason == ReasonUnsupported}
	if f.Category == "" {
		switch t.Reason {
		case ReasonUnsupported:
			f.Category = CategoryConfig
		case ReasonStartFailed:
			f.Category = CategoryStart
		case ReasonHostRebooted:
			f.Category = CategoryNodeLost
		default:
			f.Category = CategoryApp
		}
	}
	if t.Reason == "" {
		f.ExitCode, f.Signal = t.ExitCode, t.Signal
		if t.Signal != 0 {
			f.ExitCode = 0
		}
	}
	return f
}

// recent counts the restarts within the window before the latest run's end. The window ends
// with that run and not at the present time, so the count for that end never changes.
func recent(r Restart, t TaskActual) int {
	n := 0
	for _, at := range t.Restarts {
		if at.After(t.Finished.Add(-r.Window)) {
			n++
		}
	}
	return n
}

// attemptsUsed counts the attempts of the policy that are used up. While no run becomes
// healthy, all runs count, because slow failures may be so rare that a window never holds
// many of them.
func attemptsUsed(r Restart, t TaskActual) int { return max(recent(r, t), t.RunsSinceHealthy-1) }

// countedOver describes the period that attemptsUsed covers.
func countedOver(r Restart, t TaskActual) string {
	if t.RunsSinceHealthy-1 > recent(r, t) {
		return "without a healthy run"
	}
	return "within " + r.Window.String()
}

// Recent returns the restarts that are within the window before a time.
func Recent(r Restart, restarts []time.Time, now time.Time) []time.Time {
	var out []time.Time
	for _, at := range restarts {
		if at.After(now.Add(-r.Window)) {
			out = append(out, at)
		}
	}
	return out
}

func restartMessage(r Restart, t TaskActual) string {
	return fmt.Sprintf("restart %d of %d %s: it %s", attemptsUsed(r, t)+1, r.Attempts, countedOver(r, t), describe(t))
}

// describe says how the latest run ended, for example "exited with code 1".
func describe(t TaskActual) string {
	switch {
	case t.Reason == ReasonStartFailed:
		return "did not start: " + strings.TrimPrefix(t.Message, "task did not start: ") // the driver's error begins with this text
	case t.Reason == ReasonUnsupported:
		return "cannot run: " + strings.TrimPrefix(t.Message, "task cannot run: ") // the driver's error begins with this text
	case t.Reason == ReasonHostRebooted:
		return "ended when the host restarted"
	case t.Reason == ReasonUnhealthy:
		return t.Message
	case t.Reason == ReasonOutputInvalid:
		return "succeeded with an output that cannot be used: " + t.Message
	case t.Signal != 0 && t.Message != "":
		return fmt.Sprintf("was killed by signal %d: %s", t.Signal, t.Message)
	case t.Signal != 0:
		return fmt.Sprintf("was killed by signal %d", t.Signal)
	}
	return fmt.Sprintf("exited with code %d", t.ExitCode)
}

// endReason returns the reason for the end of the latest run.
func endReason(t TaskActual) Reason {
	switch {
	case t.Reason != "":
		return t.Reason
	case t.Signal != 0:
		return ReasonKilledBySignal
	}
	return ReasonExited
}

func anyPhase(a Alloc, act Actual, phase Phase) bool {
	for _, t := range a.Tasks {
		if act.Tasks[t.Name].Phase == phase {
			return true
		}
	}
	return false
}

// StateOf returns the state of an allocation for its report. After Running it never returns
// Starting again, because states only advance.
func StateOf(a Alloc, act Actual) State {
	if act.End != nil {
		return act.End.State
	}
	if !act.Accepted {
		return Pending
	}
	up := len(a.Tasks) > 0
	for _, t := range a.Tasks {
		ta := act.Tasks[t.Name]
		up = up && (t.Hook >= Poststart && t.once() || done(a, t, ta) || !(t.Hook == Prestart && t.once()) && ta.serving(t))
	}
	if up {
		return Running
	}
	return max(act.Reached, Starting)
}

// awaitsOthers reports whether every task serves, waits for its check, for a lease or for other
// tasks, or is a task that ends by itself and is done. Such an allocation does not count as
// starting, because the agent has nothing to do for it.
func awaitsOthers(a Alloc, act Actual) bool {
	for _, t := range a.Tasks {
		ta := act.Tasks[t.Name]
		awaits := ta.Phase == Waiting && !mayBegin(a, act, t) || t.once() && done(a, t, ta)
		if !ta.serving(t) && !ta.AwaitsCheck(t) && !ta.Lapsed() && !awaits {
			return false
		}
	}
	return true
}
