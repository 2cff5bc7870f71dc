package state

import (
	"errors"

	"github.com/nusa-scheduler/nusa/regional/state/retry"
)

// These are the errors in Result.Err. A command with an error changed nothing.
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
	// ErrStillWanted: a job cannot be run again, because it has not ended or never ends.
	ErrStillWanted = errors.New("cannot run again")
	// ErrOtherType: a system job cannot become a job of another type, and no other job can
	// become a system job.
	ErrOtherType = errors.New("type cannot change")
	// ErrStaleRevision: CheckRevision differs from the stored revision.
	ErrStaleRevision = errors.New("stale revision")
	// ErrBeyondSlots: an override cannot let the region run more instances than it owns.
	ErrBeyondSlots = errors.New("more than the region owns")
	// ErrNotService: only groups of services can be scaled in one region.
	ErrNotService = errors.New("no service")
	// ErrTagTaken: another version of the job has the tag.
	ErrTagTaken = errors.New("tag is taken")
	// ErrKeyReused: the idempotency key was used for another request.
	ErrKeyReused = errors.New("idempotency key was used for another request")
	// ErrFull: a bound of the state is reached. A retry may succeed after jobs have ended.
	ErrFull = errors.New("state is full")
	// ErrStalePosition: the position of the change is before the stored position.
	ErrStalePosition = errors.New("position already stored")
	// ErrOtherFederation: the log is bound to another federation.
	ErrOtherFederation = errors.New("log is bound to another federation")
	// ErrOldLeadership: the log knows a later term of an active global server, or another
	// term with the same number.
	ErrOldLeadership = errors.New("term of the global server is not the latest")
	// ErrUnknownCommand: a newer version wrote the entry.
	ErrUnknownCommand = errors.New("unknown command")
	// ErrNestedBatch: the command is a batch inside a batch. It changes nothing.
	ErrNestedBatch = errors.New("a batch inside a batch")
)

// These are the bounds of the state. A command that would exceed one fails with ErrFull.
const (
	// MaxIdempotencyKeys bounds the idempotency keys.
	MaxIdempotencyKeys = 100_000
	// MaxLocalJobs bounds the region's own jobs.
	MaxLocalJobs = 250_000
	// MaxNodes bounds the nodes of a region.
	MaxNodes = 65_536
	// MaxNodeAllocs bounds the allocations that a node is charged for at once. Together
	// with the ended allocations that the node keeps for their logs, they stay below the
	// 10,000 orders that an agent accepts.
	MaxNodeAllocs = 8192
	// MaxInstances is the greatest To of a slot.
	MaxInstances = 100_000
)

// Command is one entry of the log. Exactly one pointer besides Audit, or Batch, is set. An entry without
// any was written by a newer version and is refused with ErrUnknownCommand.
type Command struct {
	// NowUnixNano is the time on the proposer's clock. It is stored, but Apply never
	// compares it with a clock.
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
	// Batch applies its commands in order at the same index. Result.Batch has their
	// results. A batch inside a batch changes nothing: the master that wrote one made no change.
	Batch []Command `codec:"batch,omitempty"`

	// The following commands need Cluster.FeatureLevel 1. The only exception is a SetLimits
	// that raises the level.
	JoinFederation   *JoinFederation   `codec:"join,omitempty"`
	RebindFederation *RebindFederation `codec:"rebind,omitempty"`
	SetLimits        *SetLimits        `codec:"limits,omitempty"`

	// OrdersStored needs Cluster.FeatureLevel 2.
	OrdersStored *OrdersStored `codec:"stored,omitempty"`

	// ChangeDocuments needs Cluster.FeatureLevel 3.
	ChangeDocuments *ChangeDocuments `codec:"documents,omitempty"`

	// Audit is the entry that the command leaves in the audit trail if it changes something. It may
	// be in a command with another pointer. A command with Audit alone adds the entry. It needs
	// Cluster.FeatureLevel 3.
	Audit *AuditEntry `codec:"audit,omitempty"`

	// SetOverride needs Cluster.FeatureLevel OverrideLevel.
	SetOverride *SetOverride `codec:"override,omitempty"`

	// TagVersion needs Cluster.FeatureLevel VersionLevel.
	TagVersion *TagVersion `codec:"tag,omitempty"`
}

// Bootstrap stores the identity of the cluster. A second Bootstrap with the same id and
// region changes nothing. Another id or region fails with ErrOtherCluster.
type Bootstrap struct {
	ClusterID string
	Region    string
}

// BumpIncarnation begins an incarnation after a recovery, if Incarnation is greater than
// the stored one: see Cluster.Recovered.
type BumpIncarnation struct {
	Incarnation uint64
	// RestoreID replaces Cluster.RestoreID.
	RestoreID string
}

// UpsertNode registers a node, or replaces its inventory, and makes it ready. It ignores
// Num, Cordoned, Draining, Status, times and indices of Node.
type UpsertNode struct {
	Node Node
}

// SetNodeStatus sets a node's status to ready, lost or left. With lost and left the node's
// live allocations become disconnected. With ready they become connected again.
type SetNodeStatus struct {
	ID     string
	Status NodeStatus
	// SinceUnixNano is when the status began. For lost it is when the node became silent. 0
	// stands for the command's time.
	SinceUnixNano int64
}

// CordonNode begins or ends a cordon. A cordoned node takes no new work.
type CordonNode struct {
	ID     string
	Cordon bool
}

// DrainNode begins or ends a drain. In a drain, work moves to other nodes and the node
// takes no new work.
type DrainNode struct {
	ID    string
	Drain bool
	// DeadlineUnixNano and KeepSystem are those of Node. A drain that has begun keeps its deadline and its
	// KeepSystem where the command has none. Both need Cluster.FeatureLevel DrainLevel.
	DeadlineUnixNano int64
	KeepSystem       bool
}

// RemoveNode removes a node that is lost or left. Its live allocations become lost.
type RemoveNode struct {
	ID string
}

// SlotOrder is the global tier's order about one slot.
type SlotOrder struct {
	// Slot is the slot as it should be. Only these fields count: key, range, generation,
	// revision, run, job version, desired, state, hold, UnlessConnected and Unbound. A
	// local slot cannot be ordered.
	Slot Slot
	// Job is the job version that the slot names. It is nil if this or an earlier command
	// already contains that version.
	Job *Job
	// Attempts are what instances have used of their retry policy in other regions, by index. They count
	// if the order begins a new generation of the slot. It needs AttemptsLevel.
	Attempts []Attempts
}

// Attempts is what an instance has used of its retry policy.
type Attempts struct {
	Index int32
	Used  retry.Used
}

// ApplyOrders stores slot orders from the global tier: a whole link.Change or a part of
// one. An order with a lower revision than that of the stored slot is skipped. An order
// that cannot run in this region is stored as given back with SlotRejected, so that the
// answer is repeated until it has arrived. The result lists it as skipped too.
type ApplyOrders struct {
	Orders []SlotOrder
	// Removed are the SlotID keys of slots that the region no longer owns.
	Removed []string
	// More is true when the next command continues the change. Until the change is
	// complete, no allocation is stopped as unwanted: a slot may have been split, and a
	// later part may want its indices again.
	More bool
	// Position is the position after the whole change. Each part of the change has it, but
	// only the last part stores it. A part before the stored position of the same epoch
	// fails with ErrStalePosition. The caller then acknowledges the stored position.
	Position Position
}

// ApplyPlan applies a plan of package sched. Parts that are no longer valid are skipped and
// listed in Result.Skipped.
type ApplyPlan struct {
	Stops  []StopAlloc
	Places []PlaceGroup
	Proven []ProveAlloc
	// Resizes come after Stops and before Places. They need Cluster.FeatureLevel ResizeLevel.
	Resizes []ResizeAlloc
}

// ProveAlloc ends Alloc.Proving, because the allocation has been up long enough since
// UpUnixNano. It is skipped if UpUnixNano has changed.
type ProveAlloc struct {
	ID         string
	UpUnixNano int64
}

// StopAlloc sets an allocation's desired state to stop. An operator's stop of a single
// allocation is the same command with ReasonStoppedByUser. The scheduler then replaces the
// allocation.
type StopAlloc struct {
	ID      string
	Reason  Reason
	Message string
	// GiveUp makes the allocation lost at once if its node is not ready.
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
	// MemoryBytes is the memory of the allocation, if it has more than its group asks for: see
	// retry.Record.MemoryBytes. 0: it has not. It needs MemoryLevel.
	MemoryBytes int64
}

// AgentReports are a node's reports about its allocations: a whole link.Change or a part of
// one.
type AgentReports struct {
	NodeID string
	// Position is the position after the whole change. Each part of the change has it, but
	// only the last part stores it. A part before the stored position of the same epoch
	// fails with ErrStalePosition. The caller then acknowledges the stored position.
	Position Position
	// More is true when the next command continues the change.
	More bool
	// Released are allocations that have ended and that the node's full set does not
	// mention. The node is no longer charged for them.
	Released []string
	// Full is true when Reports has all allocations that the agent holds. Charged
	// allocations that have ended (lost ones) and are not mentioned are released. No
	// present master sets Full: it lists these allocations in Released.
	Full    bool
	Reports []AllocReport
}

// AllocReport is the agent's latest report about one allocation. A report is skipped if its
// state is earlier than the stored one.
type AllocReport struct {
	ID       string
	State    AllocState
	Declined bool
	Reason   Reason
	Message  string
	Tasks    []byte
	// Restarts is how often tasks were restarted so far. Down is true when a task of a
	// running allocation has ended and will be restarted.
	Restarts int32
	Down     bool
	// Failure says why the allocation has failed. nil: it has not, or the agent does not say. Servers
	// below RetryLevel do not read it.
	Failure *retry.Failure
	// Limits says what became of a ResizeAlloc, if the report is about the order with the index Order.
	// Message says why the agent refused it.
	Limits Limits
	Order  uint64
}

// AnswerSlots records parts of slots as given back (SlotRejected or SlotReturned). A part
// must belong to the slot's present generation and have no live allocation on a connected
// node. Other parts are skipped.
type AnswerSlots struct {
	Answers []Answer
}

// Idempotency makes a retry of a request harmless.
type Idempotency struct {
	Key string // empty: the request has no key
	// Request is a hash of the request. It shows when the key is used again for another
	// request.
	Request string
	// ExpiresUnixNano is when Purge may remove the key.
	ExpiresUnixNano int64
}

// SubmitLocalJob stores one of the region's own jobs. Job.Key.Local must be true. Apply
// sets Job.Version. The same spec again changes nothing.
type SubmitLocalJob struct {
	Job Job
	// CheckRevision is the revision that the stored job must have. 0: no check. -1: the job
	// must not exist.
	CheckRevision int64
	// Again runs a batch job again. All instances of the job must have ended, otherwise the
	// command fails with ErrStillWanted. The spec may be the same.
	Again       bool
	Idempotency Idempotency
	// Tag is the tag of the new version. Errors: ErrTagTaken. It needs Cluster.FeatureLevel VersionLevel.
	Tag string
}

// StopLocalJob stops one of the region's own jobs. The record stays until it is purged.
type StopLocalJob struct {
	Namespace     string
	Name          string
	Purge         bool
	CheckRevision int64
	Idempotency   Idempotency
}

// TagVersion gives a stored version of one of the region's own jobs a tag, or removes its tag.
// Errors: ErrNotFound, ErrTagTaken, ErrInvalid.
type TagVersion struct {
	Namespace string
	Name      string
	Version   int64  // 0: the present version
	Tag       string // empty: none
}

// JobVersion names one version of a job.
type JobVersion struct {
	Key     JobKey
	Version int64
}

// Purge removes allocations that ended before a time. It also removes the job versions and
// keys that the proposer found unused (View.Purgeable).
type Purge struct {
	EndedBeforeUnixNano int64
	// Max bounds the allocations that are removed at once. 0 stands for 10,000.
	Max int
	// SeenIndex is the index of the view in which Jobs were unused. A version is not
	// removed if its job has changed since.
	SeenIndex uint64
	Jobs      []JobVersion
	// Keys are idempotency keys. A key that has not expired is not removed.
	Keys []string
}

// Skip describes a part of a command that was no longer valid.
type Skip struct {
	ID     string // id of the allocation, or SlotID of the slot
	Reason Reason
	// Message says why the part was skipped.
	Message string
}

// Result is the effect of a command.
type Result struct {
	// Err wraps one of the errors of this package. If it is set, the command changed
	// nothing.
	Err error
	// Changed is false when the command changed nothing.
	Changed bool
	// Version and Revision describe a local job after its submit or stop.
	Version  int64
	Revision uint64
	// Same is true when the submitted job was already stored, so nothing starts. tagged is true if the
	// submit has set its tag.
	Same, tagged bool
	// Incarnation is the incarnation after the command.
	Incarnation uint64
	// Skipped lists the skipped parts, in the order of the command.
	Skipped []Skip
	// Orders are the allocations with a change that an agent must know, in the order of the
	// command.
	Orders []*Alloc
	// Nodes are the nodes that may forget allocations, because these ended or were purged;
	// sorted.
	Nodes []string
	// Groups are the groups whose slots, counts or allocations changed; sorted.
	Groups []GroupKey
	// Batch has the results of the commands in a batch.
	Batch []Result
}
