package state

import "strconv"

// Reason says why something was refused, moved or ended. It is the lower-case name of a
// value of the wire's enum without the prefix, for example "insufficient_memory". Empty:
// nothing was refused.
type Reason string

// These are the reasons at the levels of nodes, tasks and life cycles. A test of the wire
// package compares them with the wire's enum.
const (
	ReasonNodeLost             Reason = "node_lost"
	ReasonNodeDraining         Reason = "node_draining"
	ReasonNodeCordoned         Reason = "node_cordoned"
	ReasonPoolMismatch         Reason = "pool_mismatch"
	ReasonDedicated            Reason = "dedicated"
	ReasonKeptApart            Reason = "kept_apart"
	ReasonDriverMissing        Reason = "driver_missing"
	ReasonCapabilityMissing    Reason = "capability_missing"
	ReasonConstraint           Reason = "constraint"
	ReasonNotAllowed           Reason = "not_allowed"
	ReasonInsufficientCPU      Reason = "insufficient_cpu"
	ReasonInsufficientMemory   Reason = "insufficient_memory"
	ReasonInsufficientDisk     Reason = "insufficient_disk"
	ReasonInsufficientGPU      Reason = "insufficient_gpu"
	ReasonPortConflict         Reason = "port_conflict"
	ReasonPortsExhausted       Reason = "ports_exhausted"
	ReasonInstanceQuota        Reason = "instance_quota"
	ReasonDeclined             Reason = "declined"
	ReasonControlPlaneHost     Reason = "control_plane_host"
	ReasonNoNodes              Reason = "no_nodes"
	ReasonReserved             Reason = "reserved"
	ReasonLowerScore           Reason = "lower_score"
	ReasonExited               Reason = "exited"
	ReasonLeaseExpired         Reason = "lease_expired"
	ReasonReschedulesExhausted Reason = "reschedules_exhausted"
	ReasonRetriesExhausted     Reason = "retries_exhausted"
	ReasonPermanentFailure     Reason = "permanent_failure"
	ReasonOtherRegion          Reason = "other_region"
	ReasonAgentLeaving         Reason = "agent_leaving"
	ReasonAgentBusy            Reason = "agent_busy"
	ReasonUnsupported          Reason = "unsupported"
	ReasonStaleOrder           Reason = "stale_order"
	ReasonNotHealthyYet        Reason = "not_healthy_yet"
	ReasonStoppedByUser        Reason = "stopped_by_user"
	ReasonSuperseded           Reason = "superseded"
	ReasonOutOfRange           Reason = "out_of_range"
	ReasonRevoked              Reason = "revoked"
	ReasonRescheduled          Reason = "rescheduled"
	ReasonBackoff              Reason = "backoff"
	ReasonParallel             Reason = "parallel"
	ReasonRegionLease          Reason = "region_lease"
)

// AttemptsOver reports whether a reason says that an instance has no attempts left.
func (r Reason) AttemptsOver() bool {
	return r == ReasonReschedulesExhausted || r == ReasonRetriesExhausted || r == ReasonPermanentFailure
}

// JobType is the type of a job. It decides when its instances are done. The numbers are
// those of the wire.
type JobType uint8

const (
	Service JobType = 1
	Batch   JobType = 2
	// System runs one instance on every feasible node of the region. The instance's index
	// is the node's Num.
	System JobType = 3
)

// AllocState is the state of an allocation. It only advances: pending → starting → running
// → a terminal state. The numbers are those of the wire.
type AllocState uint8

const (
	Pending  AllocState = 1
	Starting AllocState = 2
	Running  AllocState = 3
	Complete AllocState = 4
	Failed   AllocState = 5
	Stopped  AllocState = 6
	Lost     AllocState = 7
)

var allocStateNames = [...]string{"unspecified", "pending", "starting", "running", "complete", "failed", "stopped", "lost"}

// String returns the state's lower-case name.
func (s AllocState) String() string {
	if int(s) < len(allocStateNames) {
		return allocStateNames[s]
	}
	return "state(" + strconv.Itoa(int(s)) + ")"
}

// Terminal reports whether an allocation in the state has ended.
func (s AllocState) Terminal() bool { return s >= Complete }

// Desired is the wanted state of a slot or of an allocation. An allocation has only Run or
// Stop. The numbers are those of the wire.
type Desired uint8

const (
	Run    Desired = 1
	Stop   Desired = 2
	Revoke Desired = 3
	// Hold: another region owns the slot. Running instances continue in this region, but
	// nothing is started or replaced.
	Hold Desired = 4
)

// SlotState is the state of a slot in the global tier, and the kind of an Answer. The
// numbers are those of the wire.
type SlotState uint8

const (
	SlotOffered  SlotState = 1
	SlotAccepted SlotState = 2
	SlotRejected SlotState = 3
	SlotReturned SlotState = 4
	SlotRevoked  SlotState = 5
	SlotStopped  SlotState = 6
	SlotDone     SlotState = 7
	SlotKept     SlotState = 8
)

var slotStateNames = [...]string{"unspecified", "offered", "accepted", "rejected", "returned", "revoked", "stopped", "done", "kept"}

// String returns the state's lower-case name.
func (s SlotState) String() string {
	if int(s) < len(slotStateNames) {
		return slotStateNames[s]
	}
	return "slot_state(" + strconv.Itoa(int(s)) + ")"
}

// NodeStatus says whether a node is connected. The numbers are those of the wire.
type NodeStatus uint8

const (
	NodeReady NodeStatus = 1
	NodeLost  NodeStatus = 2
	NodeLeft  NodeStatus = 3
)

var nodeStatusNames = [...]string{"unspecified", "ready", "lost", "left"}

// String returns the status's lower-case name.
func (s NodeStatus) String() string {
	if int(s) < len(nodeStatusNames) {
		return nodeStatusNames[s]
	}
	return "node_status(" + strconv.Itoa(int(s)) + ")"
}

// Binding says which leases bind an allocation. The allocation's tasks stop when one of
// these leases ends. The numbers are those of the wire.
type Binding uint8

const (
	BindNone   Binding = 1
	BindNode   Binding = 2 // the lease of its node
	BindRegion Binding = 3 // the lease of its region
	BindBoth   Binding = 4
)
