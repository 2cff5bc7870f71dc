package reconcile

import (
	"fmt"
	"strings"
	"time"
)

// Reason is why something was decided; the wire's name without REASON_.
type Reason string

// The reasons an agent gives.
const (
	ReasonDriverMissing      Reason = "driver_missing"
	ReasonInsufficientCPU    Reason = "insufficient_cpu"
	ReasonInsufficientMemory Reason = "insufficient_memory"
	ReasonInsufficientDisk   Reason = "insufficient_disk"
	ReasonInsufficientGPU    Reason = "insufficient_gpu"
	ReasonInstanceQuota      Reason = "instance_quota"
	ReasonPortConflict       Reason = "port_conflict"
	ReasonAgentBusy          Reason = "agent_busy"
	ReasonAgentLeaving       Reason = "agent_leaving"
	ReasonUnsupported        Reason = "unsupported"
	ReasonStartFailed        Reason = "start_failed"
	ReasonExited             Reason = "exited"
	ReasonKilledBySignal     Reason = "killed_by_signal"
	ReasonMaxRuntime         Reason = "max_runtime"
	ReasonLeaseExpired       Reason = "lease_expired"
	ReasonRestartsExhausted  Reason = "restarts_exhausted"
	ReasonNotAllowed         Reason = "not_allowed"
	ReasonSecretMissing      Reason = "secret_missing"
	ReasonHostRebooted       Reason = "host_rebooted"
	ReasonUnhealthy          Reason = "unhealthy"
	ReasonNotHealthyYet      Reason = "not_healthy_yet"
)

// StoppedByAgent marks, as its Reason, a run that ended because it was asked to.
// It has no value on the wire, where the allocation says why.
const StoppedByAgent = "stopped"

// Kind of an action.
type Kind int

// The actions.
const (
	// Adopt asks the driver what became of a run that is on record.
	Adopt Kind = iota
	// Accept the allocation.
	Accept
	// Decline it: it never starts here.
	Decline
	// Start a run of a task.
	Start
	// Close the allocation: from now on it only ends, as State and Reason say.
	Close
	// Halt a run: ask, wait for Grace, kill.
	Halt
	// End the allocation: nothing of it runs any more.
	End
	// Remove its records and folders.
	Remove
)

var kindNames = [...]string{"adopt", "accept", "decline", "start", "close", "halt", "end", "remove"}

// String is the action's lower-case name.
func (k Kind) String() string { return kindNames[k] }

// Action is one thing to do.
type Action struct {
	Kind  Kind
	Alloc string
	// Task and Run of Adopt, Start and Halt.
	Task string
	Run  int
	// Restart: the run counts against the task's policy.
	Restart bool
	// Grace of Halt.
	Grace time.Duration
	// State of Decline, Close and End.
	State   State
	Reason  Reason
	Message string
}

// String is one line: "start a1/web/2 [exited]: restart 1 of 3 …".
func (a Action) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", a.Kind, a.Alloc)
	if a.Task != "" {
		fmt.Fprintf(&b, "/%s/%d", a.Task, a.Run)
	}
	if a.Kind == Decline || a.Kind == Close || a.Kind == End {
		fmt.Fprintf(&b, " as %s", a.State)
	}
	if a.Kind == Halt {
		fmt.Fprintf(&b, " within %s", a.Grace)
	}
	if a.Reason != "" {
		fmt.Fprintf(&b, " [%s]", a.Reason)
	}
	if a.Message != "" {
		fmt.Fprintf(&b, ": %s", a.Message)
	}
	return b.String()
}

// Plan is what to do now, and when to look again.
type Plan struct {
	Actions []Action
	// Wake is when time alone will change the plan; zero = never.
	Wake time.Time
}

func (p *Plan) add(a Action) { p.Actions = append(p.Actions, a) }

func (p *Plan) wakeAt(t time.Time) {
	if p.Wake.IsZero() || t.Before(p.Wake) {
		p.Wake = t
	}
}
