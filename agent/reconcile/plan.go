package reconcile

import (
	"fmt"
	"strings"
	"time"
)

// Reason is the reason of a decision. It is the name of the protocol's value in lower case,
// without REASON_.
type Reason string

// The reasons that an agent uses.
const (
	ReasonDriverMissing      Reason = "driver_missing"
	ReasonCapabilityMissing  Reason = "capability_missing"
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
	ReasonOutputInvalid      Reason = "output_invalid"
	ReasonLeaseExpired       Reason = "lease_expired"
	ReasonRegionLease        Reason = "region_lease"
	ReasonRestartsExhausted  Reason = "restarts_exhausted"
	ReasonNotAllowed         Reason = "not_allowed"
	ReasonSecretMissing      Reason = "secret_missing"
	ReasonHostRebooted       Reason = "host_rebooted"
	ReasonUnhealthy          Reason = "unhealthy"
	ReasonNotHealthyYet      Reason = "not_healthy_yet"
)

// Category is the kind of a failure: see driver.Category.
type Category string

// The categories.
const (
	CategoryApp      Category = "app"
	CategoryOOM      Category = "oom"
	CategoryImage    Category = "image"
	CategoryConfig   Category = "config"
	CategoryStart    Category = "start"
	CategoryTimeout  Category = "timeout"
	CategoryNodeLost Category = "node_lost"
)

// StoppedByAgent is the Reason of a run that ended because the agent stopped it. The
// protocol has no such value. There the reason of the allocation says why.
const StoppedByAgent = "stopped"

// Kind is the kind of an action.
type Kind int

// The actions.
const (
	// Adopt: continue a recorded run, in the state that its driver reports.
	Adopt Kind = iota
	// Accept: accept the allocation.
	Accept
	// Decline: decline the allocation, which then never starts on this node.
	Decline
	// Start: start a run of a task.
	Start
	// Close: from now on nothing of the allocation starts, and it will end with State and
	// Reason.
	Close
	// StopRun: ask a run to end, and kill it after Grace.
	StopRun
	// End: end the allocation. None of its tasks runs any more.
	End
	// Remove: remove the allocation's record and folders.
	Remove
	// Resize: change the limits of a run.
	Resize
)

var kindNames = [...]string{"adopt", "accept", "decline", "start", "close", "stop", "end", "remove", "resize"}

// String returns the action's lower-case name.
func (k Kind) String() string { return kindNames[k] }

// Action is one step of a plan.
type Action struct {
	Kind  Kind
	Alloc string
	// Task and Run belong to Adopt, Start, StopRun and Resize.
	Task string
	Run  int
	// Restart says that the run counts against the task's restart policy.
	Restart bool
	// Grace belongs to StopRun.
	Grace time.Duration
	// State belongs to Decline, Close and End.
	State   State
	Reason  Reason
	Message string
	// Failure belongs to Close and End of an allocation that has failed.
	Failure *Failure
	// Limits belong to Resize.
	Limits Limits
}

// String returns the action on one line, for example "start a1/web/2 [exited]: restart 1 of
// 3 …".
func (a Action) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", a.Kind, a.Alloc)
	if a.Task != "" {
		fmt.Fprintf(&b, "/%s/%d", a.Task, a.Run)
	}
	if a.Kind == Decline || a.Kind == Close || a.Kind == End {
		fmt.Fprintf(&b, " as %s", a.State)
	}
	if a.Kind == StopRun {
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

// Plan holds the actions to apply now and the time of the next plan.
type Plan struct {
	Actions []Action
	// Wake is the earliest time at which the plan may change without an event. The zero
	// time means never.
	Wake time.Time
}

func (p *Plan) add(a Action) { p.Actions = append(p.Actions, a) }

func (p *Plan) wakeAt(t time.Time) {
	if p.Wake.IsZero() || t.Before(p.Wake) {
		p.Wake = t
	}
}
