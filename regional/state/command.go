package state

import "errors"

// Errors of Result.Err. They say that the command changed nothing.
var (
	// ErrOtherCluster: the log belongs to another cluster or region.
	ErrOtherCluster = errors.New("log belongs to another cluster")
	// ErrUnknownNode: no node of that id is registered.
	ErrUnknownNode = errors.New("unknown node")
	// ErrNodeReady: a node that is ready cannot be removed.
	ErrNodeReady = errors.New("node is ready")
	// ErrInvalid: the command contradicts itself.
	ErrInvalid = errors.New("invalid command")
	// ErrNotFound: no such job or allocation.
	ErrNotFound = errors.New("not found")
	// ErrStillWanted: a job cannot be run again, since it has not ended or runs
	// for ever.
	ErrStillWanted = errors.New("cannot run again")
	// ErrOtherType: a job cannot become a system job, or cease to be one.
	ErrOtherType = errors.New("type cannot change")
	// ErrStaleRevision: check-revision is not the stored one.
	ErrStaleRevision = errors.New("stale revision")
	// ErrKeyReused: the idempotency key was used for another request.
	ErrKeyReused = errors.New("idempotency key was used for another request")
	// ErrFull: a bound of the state is reached; retry after something ended.
	ErrFull = errors.New("state is full")
	// ErrStalePosition: the batch is before the stored position.
	ErrStalePosition = errors.New("position already stored")
	// ErrUnknownCommand: the entry was written by a newer version.
	ErrUnknownCommand = errors.New("unknown command")
)

// Bounds of the state.
const (
	// MaxIdempotencyKeys are kept at once; more is ErrFull.
	MaxIdempotencyKeys = 100_000
	// MaxLocalJobs of the region's own; more is ErrFull.
	MaxLocalJobs = 250_000
	// MaxNodes of a region; more is ErrFull.
	MaxNodes = 65_536
	// MaxNodeAllocs that a node is charged for at once: nothing more is placed
	// there. With those that have ended and are kept for their logs it stays
	// below the 10,000 orders that an agent takes.
	MaxNodeAllocs = 8192
	// MaxInstances is the greatest To of a slot.
	MaxInstances = 100_000
)

// Command is one entry of the log: exactly one pointer is set. An entry with
// none, written by a newer version, is refused with ErrUnknownCommand.
type Command struct {
	// NowUnixNano is the proposer's clock: stored, never compared with a clock.
	NowUnixNano int64 `codec:"now"`

	Bootstrap       *Bootstrap       `codec:"bootstrap,omitempty"`
	BumpIncarnation *BumpIncarnation `codec:"bump,omitempty"`
	UpsertNode      *UpsertNode      `codec:"node,omitempty"`
	SetNodeStatus   *SetNodeStatus   `codec:"status,omitempty"`
	CordonNode      *CordonNode      `codec:"cordon,omitempty"`
	DrainNode       *DrainNode       `codec:"drain,omitempty"`
	RemoveNode      *RemoveNode      `codec:"remove,omitempty"`
	ApplyOrders     *ApplyOrders     `codec:"orders,omitempty"`
	ApplyPlan       *ApplyPlan       `codec:"plan,omitempty"`
	AgentReports    *AgentReports    `codec:"reports,omitempty"`
	AnswerSlots     *AnswerSlots     `codec:"answers,omitempty"`
	SubmitLocalJob  *SubmitLocalJob  `codec:"submit,omitempty"`
	StopLocalJob    *StopLocalJob    `codec:"stop,omitempty"`
	Purge           *Purge           `codec:"purge,omitempty"`
	// Batch applies each in order at the same index; Result.Batch has their
	// results. No batch inside a batch.
	Batch []Command `codec:"batch,omitempty"`
}

// Bootstrap names the cluster. A second one with the same id and region
// changes nothing; another is ErrOtherCluster.
type Bootstrap struct {
	ClusterID string
	Region    string
}

// BumpIncarnation sets the incarnation if it is greater than the stored one.
type BumpIncarnation struct {
	Incarnation uint64
}

// UpsertNode registers a node, or replaces its inventory, and makes it ready.
// Num, Cordoned, Draining, Status, times and indices of Node are ignored.
type UpsertNode struct {
	Node Node
}

// SetNodeStatus says that a node is ready, lost or left. Lost and left mark its
// live allocations disconnected, ready reconnects them.
type SetNodeStatus struct {
	ID     string
	Status NodeStatus
	// SinceUnixNano is when it became so: for lost, when it went silent; 0 =
	// the command's time.
	SinceUnixNano int64
}

// CordonNode sets or lifts "takes nothing new".
type CordonNode struct {
	ID     string
	Cordon bool
}

// DrainNode starts or ends moving work away; a draining node takes nothing
// new.
type DrainNode struct {
	ID    string
	Drain bool
}

// RemoveNode forgets a node that is lost or left; its live allocations become
// lost.
type RemoveNode struct {
	ID string
}

// SlotOrder is one slot as the region should have it.
type SlotOrder struct {
	// Slot: key, range, generation, revision, job version, desired and state
	// are used. Local slots cannot be ordered.
	Slot Slot
	// Job is the version the slot names; nil where this or an earlier command
	// brought it already.
	Job *Job
}

// ApplyOrders stores slot orders from the global tier: a whole link.Change or
// a part of one. An order with a lower revision than the stored slot's is
// skipped. One that cannot be run here is listed as skipped too, but held, as
// given back with SlotRejected: so the answer goes out until it has arrived.
type ApplyOrders struct {
	Orders []SlotOrder
	// Removed are SlotID keys that are no longer the region's.
	Removed []string
	// More says that the change goes on in the next command: until it is whole
	// nothing is stopped as unwanted, since a slot that was split is wanted
	// again by a later part.
	More bool
	// Position after the whole change, in each of its parts; stored unless More.
	// A part before the stored position of the same epoch is ErrStalePosition:
	// acknowledge the stored one.
	Position Position
}

// ApplyPlan carries a plan of package sched out. Parts that no longer hold
// are skipped and listed in Result.Skipped.
type ApplyPlan struct {
	Stops  []StopAlloc
	Places []PlaceGroup
	Proven []ProveAlloc
}

// ProveAlloc says that an allocation has proved itself: it is up since
// UpUnixNano, long enough. Skipped if that is no longer so.
type ProveAlloc struct {
	ID         string
	UpUnixNano int64
}

// StopAlloc wants an allocation stopped. An operator's stop of a single
// allocation is the same command with ReasonStoppedByUser: sched replaces it.
type StopAlloc struct {
	ID      string
	Reason  Reason
	Message string
	// GiveUp makes it lost at once; only where its node is not ready.
	GiveUp bool
}

// PlaceGroup places instances of one group.
type PlaceGroup struct {
	Key        GroupKey
	JobVersion int64
	Allocs     []PlaceAlloc
}

// PlaceAlloc places one instance.
type PlaceAlloc struct {
	ID     string // UUID
	Index  int32
	NodeID string
	Ports  []PortGrant
	GPUs   []GPUGrant
	Why    string // one line
}

// AgentReports are a node's words on its allocations: a whole link.Change or a
// part of one.
type AgentReports struct {
	NodeID string
	// Position after the whole change, in each of its parts; stored unless More.
	// A part before the stored position of the same epoch is ErrStalePosition:
	// acknowledge the stored one.
	Position Position
	// More says that the change goes on in the next command.
	More bool
	// Released are allocations that have ended, which the node's full set does
	// not mention: it is no longer charged for them.
	Released []string
	// Full says that Reports, in this one command, are everything the agent
	// holds: charged allocations that have ended (lost ones) and are not
	// mentioned are released.
	Full    bool
	Reports []AllocReport
}

// AllocReport is the agent's latest word on one allocation. A report that
// would move a state back is skipped.
type AllocReport struct {
	ID       string
	State    AllocState
	Declined bool
	Reason   Reason
	Message  string
	Tasks    []byte
	// Restarts of its tasks so far; Down: a task of a running allocation has
	// ended and is to be restarted.
	Restarts int32
	Down     bool
}

// AnswerSlots records parts of slots as given back (SlotRejected or
// SlotReturned). Only parts of the present generation without live allocations
// on connected nodes are accepted; others are skipped.
type AnswerSlots struct {
	Answers []Answer
}

// Idempotency makes a retry harmless.
type Idempotency struct {
	Key string // empty = none
	// Request is a hash of the request, so that a reuse is seen.
	Request string
	// ExpiresUnixNano is when Purge may forget it.
	ExpiresUnixNano int64
}

// SubmitLocalJob stores a job of the region's own. Job.Key.Local must be true;
// Job.Version is given by Apply. The same spec again changes nothing.
type SubmitLocalJob struct {
	Job Job
	// CheckRevision: 0 = do not check, -1 = must not exist.
	CheckRevision int64
	// Again runs a batch job again whose spec is the same and whose every
	// instance has ended; ErrStillWanted otherwise.
	Again       bool
	Idempotency Idempotency
}

// StopLocalJob ends a job of the region's own; the record stays until purged.
type StopLocalJob struct {
	Namespace     string
	Name          string
	Purge         bool
	CheckRevision int64
	Idempotency   Idempotency
}

// JobVersion names one version of a job.
type JobVersion struct {
	Key     JobKey
	Version int64
}

// Purge forgets what has ended: allocations that ended before, and what its
// proposer found unused (View.Purgeable).
type Purge struct {
	EndedBeforeUnixNano int64
	// Max allocations at once; 0 = 10,000.
	Max int
	// SeenIndex is the index of the view in which Jobs were unused; those whose
	// jobs changed since are kept.
	SeenIndex uint64
	Jobs      []JobVersion
	// Keys are idempotency keys; those that have not expired are kept.
	Keys []string
}

// Skip is a part of a command that no longer held.
type Skip struct {
	ID     string // of the allocation, or SlotID of the slot
	Reason Reason
	// Message says what stood against it.
	Message string
}

// Result is what Apply did.
type Result struct {
	// Err wraps one of the package's errors; nothing was changed then.
	Err error
	// Changed is false when the command changed nothing.
	Changed bool
	// Version and Revision of a local job after Submit or Stop.
	Version  int64
	Revision uint64
	// Same says that the submitted job was stored already, and nothing begins.
	Same bool
	// Incarnation after the command.
	Incarnation uint64
	// Skipped parts of the command, in its order.
	Skipped []Skip
	// Orders are the allocations that an agent has to hear of, in the order of
	// the command.
	Orders []*Alloc
	// Nodes with allocations that ended or were purged, which they need not hold
	// any more; sorted.
	Nodes []string
	// Groups whose slots, counts or allocations changed, sorted by String.
	Groups []GroupKey
	// ReportedChange are allocations of which an agent told a new state, or another restart.
	Reported []ReportedChange
	// Purged are local jobs that the command forgot.
	Purged []JobKey
	// Batch has the results of a batch's commands.
	Batch []Result
}

// ReportedChange is an allocation of which an agent told something new, and how many of
// its restarts are: agents send the latest state, so one report may be of many.
type ReportedChange struct {
	*Alloc
	NewRestarts int32
}
