package state

import "errors"

// Errors of Result.Err. A command with an error changed nothing.
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
	// ErrStillWanted: a job cannot be run again, since it has not ended or never
	// ends.
	ErrStillWanted = errors.New("cannot run again")
	// ErrOtherType: a system job cannot become another type, and no other type can
	// become a system job.
	ErrOtherType = errors.New("type cannot change")
	// ErrStaleRevision: check-revision differs from the stored revision.
	ErrStaleRevision = errors.New("stale revision")
	// ErrKeyReused: the idempotency key was used for another request.
	ErrKeyReused = errors.New("idempotency key was used for another request")
	// ErrFull: a bound of the state is reached; retry when jobs have ended.
	ErrFull = errors.New("state is full")
	// ErrStalePosition: the batch is before the stored position.
	ErrStalePosition = errors.New("position already stored")
	// ErrOtherFederation: the log is bound to another federation.
	ErrOtherFederation = errors.New("log is bound to another federation")
	// ErrOldLeadership: the log knows a later term of an active global server, or
	// another one of the same number.
	ErrOldLeadership = errors.New("term of the global server is not the latest")
	// ErrUnknownCommand: the entry was written by a newer version.
	ErrUnknownCommand = errors.New("unknown command")
)

// Bounds of the state.
const (
	// MaxIdempotencyKeys are stored at once; more is ErrFull.
	MaxIdempotencyKeys = 100_000
	// MaxLocalJobs of the region's own; more is ErrFull.
	MaxLocalJobs = 250_000
	// MaxNodes of a region; more is ErrFull.
	MaxNodes = 65_536
	// MaxNodeAllocs bounds the allocations that a node is charged for at once.
	// Together with the ended ones that are retained for their logs they stay below
	// the 10,000 orders that an agent accepts.
	MaxNodeAllocs = 8192
	// MaxInstances is the greatest To of a slot.
	MaxInstances = 100_000
)

// Command is one entry of the log: exactly one pointer is set. An entry with none
// was written by a newer version and is refused with ErrUnknownCommand.
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
	// Batch applies its commands in order at the same index; Result.Batch has their
	// results. A batch contains no batch.
	Batch []Command `codec:"batch,omitempty"`

	// The following commands need Cluster.FeatureLevel 1, except a SetLimits that
	// raises the level.
	JoinFederation   *JoinFederation   `codec:"join,omitempty"`
	RebindFederation *RebindFederation `codec:"rebind,omitempty"`
	SetLimits        *SetLimits        `codec:"limits,omitempty"`
}

// Bootstrap names the cluster. A second Bootstrap with the same id and region
// changes nothing; a different one is ErrOtherCluster.
type Bootstrap struct {
	ClusterID string
	Region    string
}

// BumpIncarnation begins an incarnation after a recovery, if it is greater than the
// stored one: see Cluster.Recovered.
type BumpIncarnation struct {
	Incarnation uint64
	// RestoreID replaces Cluster.RestoreID.
	RestoreID string
}

// UpsertNode registers a node, or replaces its inventory, and makes it ready.
// Num, Cordoned, Draining, Status, times and indices of Node are ignored.
type UpsertNode struct {
	Node Node
}

// SetNodeStatus sets a node's status to ready, lost or left. Lost and left mark its
// live allocations disconnected, ready reconnects them.
type SetNodeStatus struct {
	ID     string
	Status NodeStatus
	// SinceUnixNano is when the status began. For lost, it is when the node became
	// silent; 0 = the command's time.
	SinceUnixNano int64
}

// CordonNode starts or ends the cordon: a cordoned node takes no new work.
type CordonNode struct {
	ID     string
	Cordon bool
}

// DrainNode starts or ends a drain: work moves to other nodes, and the node takes
// no new work.
type DrainNode struct {
	ID    string
	Drain bool
}

// RemoveNode removes a node that is lost or left; its live allocations become lost.
type RemoveNode struct {
	ID string
}

// SlotOrder is one slot as the region should have it.
type SlotOrder struct {
	// Slot: only its key, range, generation, revision, run, job version, desired, state,
	// hold and UnlessConnected count. Local slots cannot be ordered.
	Slot Slot
	// Job is the version that the slot names; nil if this or an earlier command
	// contains it already.
	Job *Job
}

// ApplyOrders stores slot orders from the global tier: a whole link.Change or a part
// of one. An order with a lower revision than the stored slot's is skipped. An order
// that cannot run here is also listed as skipped. It is stored as given back with
// SlotRejected, so that the answer is repeated until it has arrived.
type ApplyOrders struct {
	Orders []SlotOrder
	// Removed are SlotID keys of slots that the region no longer owns.
	Removed []string
	// More says that the next command continues the change. Until the change is
	// complete no allocation is stopped as unwanted, since a later part may want a slot
	// again that was split.
	More bool
	// Position after the whole change, in each of its parts; stored unless More.
	// A part before the stored position of the same epoch is ErrStalePosition:
	// acknowledge the stored position.
	Position Position
}

// ApplyPlan applies a plan of package sched. Parts that are no longer valid are skipped
// and listed in Result.Skipped.
type ApplyPlan struct {
	Stops  []StopAlloc
	Places []PlaceGroup
	Proven []ProveAlloc
}

// ProveAlloc ends Alloc.Proving: the allocation has been up long enough, since
// UpUnixNano. The command is skipped if UpUnixNano has changed.
type ProveAlloc struct {
	ID         string
	UpUnixNano int64
}

// StopAlloc sets an allocation's desired state to stop. An operator's stop of a single
// allocation is the same command with ReasonStoppedByUser: sched replaces it.
type StopAlloc struct {
	ID      string
	Reason  Reason
	Message string
	// GiveUp makes the allocation lost at once, if its node is not ready.
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

// AgentReports are a node's reports about its allocations: a whole link.Change or a
// part of one.
type AgentReports struct {
	NodeID string
	// Position after the whole change, in each of its parts; stored unless More.
	// A part before the stored position of the same epoch is ErrStalePosition:
	// acknowledge the stored position.
	Position Position
	// More says that the next command continues the change.
	More bool
	// Released are allocations that have ended and that the node's full set does not
	// mention: the node is no longer charged for them.
	Released []string
	// Full says that Reports are all allocations that the agent holds. Charged
	// allocations that have ended (lost ones) and are not mentioned are released.
	Full    bool
	Reports []AllocReport
}

// AllocReport is the agent's latest report about one allocation. A report with an
// earlier state than the stored one is skipped.
type AllocReport struct {
	ID       string
	State    AllocState
	Declined bool
	Reason   Reason
	Message  string
	Tasks    []byte
	// Restarts of its tasks so far. Down: a task of a running allocation has ended and
	// will be restarted.
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
	// Request is a hash of the request, so that reuse of the key for another request is
	// detected.
	Request string
	// ExpiresUnixNano is when Purge may remove the key.
	ExpiresUnixNano int64
}

// SubmitLocalJob stores a job of the region's own. Job.Key.Local must be true;
// Job.Version is given by Apply. The same spec again changes nothing.
type SubmitLocalJob struct {
	Job Job
	// CheckRevision: 0 = do not check, -1 = must not exist.
	CheckRevision int64
	// Again runs a batch job again that has the same spec and whose instances have all
	// ended; ErrStillWanted otherwise.
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

// Purge removes allocations that ended before a time, and the job versions and keys
// that the proposer found unused (View.Purgeable).
type Purge struct {
	EndedBeforeUnixNano int64
	// Max bounds the allocations removed at once; 0 = 10,000.
	Max int
	// SeenIndex is the index of the view in which Jobs were unused. Versions of jobs
	// that have changed since are not removed.
	SeenIndex uint64
	Jobs      []JobVersion
	// Keys are idempotency keys; those that have not expired are not removed.
	Keys []string
}

// Skip is a part of a command that was no longer valid.
type Skip struct {
	ID     string // of the allocation, or SlotID of the slot
	Reason Reason
	// Message says why the part was skipped.
	Message string
}

// Result is the effect of a command.
type Result struct {
	// Err wraps one of the package's errors; nothing was changed then.
	Err error
	// Changed is false when the command changed nothing.
	Changed bool
	// Version and Revision of a local job after Submit or Stop.
	Version  int64
	Revision uint64
	// Same says that the submitted job was stored already, and nothing starts.
	Same bool
	// Incarnation after the command.
	Incarnation uint64
	// Skipped parts of the command, in its order.
	Skipped []Skip
	// Orders are the allocations whose change an agent must know, in the order of the
	// command.
	Orders []*Alloc
	// Nodes have allocations that ended or were purged, and that they may forget;
	// sorted.
	Nodes []string
	// Groups whose slots, counts or allocations changed, sorted by String.
	Groups []GroupKey
	// Reported are allocations for which an agent reported a new state or another
	// restart.
	Reported []ReportedChange
	// Purged are local jobs that the command removed.
	Purged []JobKey
	// Batch has the results of a batch's commands.
	Batch []Result
}

// ReportedChange is an allocation with a changed state or new restarts. Agents send
// only the latest state, so one report may cover several restarts.
type ReportedChange struct {
	*Alloc
	NewRestarts int32
}
