package state

import (
	"slices"
	"strconv"
	"time"

	"github.com/nusa-scheduler/nusa/internal/folder"
	"github.com/nusa-scheduler/nusa/regional/state/retry"
)

// Position is a point in a resumable stream (package link).
type Position struct {
	Epoch    string
	Sequence uint64
}

// Resources are an amount that a node has or that an instance asks for.
type Resources struct {
	CPUMilli    int64 // thousandths of a core
	MemoryBytes int64
	DiskBytes   int64
}

// Add returns the component-wise sum.
func (r Resources) Add(o Resources) Resources {
	return Resources{r.CPUMilli + o.CPUMilli, r.MemoryBytes + o.MemoryBytes, r.DiskBytes + o.DiskBytes}
}

// Sub returns the component-wise difference.
func (r Resources) Sub(o Resources) Resources {
	return Resources{r.CPUMilli - o.CPUMilli, r.MemoryBytes - o.MemoryBytes, r.DiskBytes - o.DiskBytes}
}

// Cluster identifies the cluster and its region. It also has the numbers that the log knows about its
// federation and its leases.
type Cluster struct {
	ID     string // UUID; empty before Bootstrap
	Region string
	// Incarnation grows with every restore of the log. Orders compare by (incarnation, Raft index).
	Incarnation uint64
	// Orders is the position up to which the global tier's slot orders are stored.
	Orders Position
	// OrdersIncomplete is true between the parts of one change of slot orders. Until the change is
	// complete, nothing may be stopped as unwanted.
	OrdersIncomplete bool

	// FederationID is the federation to which the log is bound; empty before the first
	// JoinFederation.
	FederationID string
	// LeadershipTerm and LeadershipNonce are the greatest known term of an active global server.
	LeadershipTerm  uint64
	LeadershipNonce string
	// Fence is the greatest known fence of the region, StoreRevision the greatest known etcd
	// revision.
	Fence         uint64
	StoreRevision int64
	// RegionLeaseMax and NodeLeaseMax are the greatest lengths of the region's lease and of a node's
	// lease that may still last. 0: no master has stored one.
	RegionLeaseMax time.Duration
	NodeLeaseMax   time.Duration
	// FeatureLevel says which commands the log may have, because every server of the region can read
	// them. Level 1 has JoinFederation, RebindFederation and SetLimits. Level 2 has OrdersStored and
	// Alloc.BindingUnknown. Level 3 has ChangeDocuments. Level 4 has AuditEntry.Stored and
	// AuditEntry.Retain. From level 5 on, the state has events, and from 6 on, Group.MinHealthy. From 7 on, it has
	// retry policies: see RetryLevel, and from 8 on, Group.Stagger. From 9 on, it has
	// Group.Parallel, and from 10 on, Group.Rest and ApplyPlan.Resizes. From 11 on, retry
	// rules may raise the memory: see MemoryLevel, and drains have deadlines: see DrainLevel. From 12 on,
	// it has overrides: see OverrideLevel. From 13 on, the events include placements and starts: see TaskLevel.
	// From 14 on, attempts move with instances: see AttemptsLevel. From 15 on, a rebind ends overrides: see
	// RebindLevel, and a version becomes proven where the one before has just failed: see AgainLevel.
	// From 16 on, orders complete jobs: see FieldsLevel. From 17 on, it has earlier versions: see VersionLevel. From 18
	// on, the attempts of each slot of an order count: see EachSlotLevel.
	FeatureLevel uint32
	// Recovered is true from the beginning of an incarnation after a recovery until every lease of
	// earlier incarnations has ended. While it is true, nothing that a lease binds may start.
	Recovered bool
	// RestoreID is random. It distinguishes two restores that begin the same incarnation.
	RestoreID string
	// Former has the numbers of the federation to which the log was bound before the latest rebind.
	// They count again if the region returns to that federation.
	Former FederationNumbers
	// EpochBase is added to the generations of the region's own jobs. Another cluster of the
	// region, and another incarnation, has another base, so that no epoch repeats. 0: the log
	// had no feature level 2 yet.
	EpochBase int64
	// LevelIndex is the index of the command that raised FeatureLevel last. 0: it was raised to less than FieldsLevel.
	LevelIndex uint64
}

// FederationNumbers are the numbers that a log knows about a federation: see Cluster.
type FederationNumbers struct {
	FederationID    string
	LeadershipTerm  uint64
	LeadershipNonce string
	Fence           uint64
	StoreRevision   int64
}

// Driver is what a node's driver reported about itself.
type Driver struct {
	Name         string
	Healthy      bool
	Capabilities []string
}

// GPU is one accelerator of a node.
type GPU struct {
	ID          string
	Model       string
	MemoryBytes int64
}

// LeaseBinding is a capability that all drivers of a node report if its agent ends tasks
// when a lease that binds them ends. That includes the region's lease.
const LeaseBinding = "lease_binding"

// Facts describe the machine of a node. Expressions read only Arch, OS, Kernel and AgentVersion.
type Facts struct {
	Hostname        string
	OS              string
	Platform        string
	PlatformVersion string
	Kernel          string
	Arch            string
	Virtualization  string
	CPUModel        string
	CPUCores        int32 // logical
	MemoryBytes     int64
	AgentVersion    string
}

// Node is one agent. Capacity is what the agent offers. Several agents of one machine (SharedMachine)
// each offer a part of the machine.
type Node struct {
	ID            string // UUID made by the agent
	Num           uint32 // dense number, set by Apply; the index of system instances
	Name          string
	Address       string
	Pool          string
	Labels        map[string]string
	Capacity      Resources
	Drivers       []Driver
	GPUs          []GPU
	InstanceQuota int32 // greatest number of allocations; 0: MaxNodeAllocs
	PortMin       int32 // PortMin..PortMax are the dynamic ports; 0, 0: none
	PortMax       int32
	ControlPlane  bool // hosts the control plane, so it takes no work
	SharedMachine string
	Facts         Facts
	Inventory     []byte // encoded NodeInventory, as the agent sent it

	Status   NodeStatus
	Cordoned bool
	Draining bool

	RegisteredUnixNano int64
	// StatusUnixNano is when Status began. For a lost node it is when the node was last seen.
	StatusUnixNano int64
	// InventoryIndex changes only when UpsertNode changes the inventory. Results of expressions can
	// be cached by (ID, InventoryIndex).
	InventoryIndex uint64
	ModifyIndex    uint64

	// VolumesAllow are the folders below which jobs may have volumes. They count only if
	// VolumesReported is true: an agent that does not report them may allow any folder.
	VolumesAllow    []string
	VolumesReported bool `codec:"VolumesSaid"`

	// DrainUntilUnixNano is the deadline of the node's drain: then instances that have not moved are
	// stopped by force. 0: none. KeepSystem says that the drain leaves instances of system jobs on the
	// node. Both need Cluster.FeatureLevel DrainLevel.
	DrainUntilUnixNano int64
	KeepSystem         bool
}

// Allows reports whether a job may have a folder of the node as a volume, according to the agent's
// report.
func (n *Node) Allows(path string) bool {
	return !n.VolumesReported || folder.Allowed(path, n.VolumesAllow)
}

// BindsLeases reports whether the node's agent ends tasks when the region's lease ends.
func (n *Node) BindsLeases() bool {
	return slices.ContainsFunc(n.Drivers, func(d Driver) bool { return slices.Contains(d.Capabilities, LeaseBinding) })
}

// Eligible reports whether the node takes new work: it is ready and nothing keeps work off it.
func (n *Node) Eligible() bool {
	return n.Status == NodeReady && !n.Cordoned && !n.Draining && !n.ControlPlane
}

// MaxAllocs returns how many allocations the node may be charged for at once: its quota, but at most
// MaxNodeAllocs.
func (n *Node) MaxAllocs() int32 {
	if n.InstanceQuota > 0 {
		return min(n.InstanceQuota, MaxNodeAllocs)
	}
	return MaxNodeAllocs
}

// JobKey names a job. A local job (name@region) and a job of the global tier may have the same name.
type JobKey struct {
	Namespace string
	Job       string
	Local     bool
}

// In returns the job's name for users: "namespace/job", with "@region" for the region's own jobs.
func (k JobKey) In(region string) string {
	if k.Local {
		return k.Namespace + "/" + k.Job + "@" + region
	}
	return k.Namespace + "/" + k.Job
}

// String returns "namespace/job", with "@local" for a region's own job. Messages to users use In.
func (k JobKey) String() string {
	if k.Local {
		return k.Namespace + "/" + k.Job + "@local"
	}
	return k.Namespace + "/" + k.Job
}

// GroupKey names a group of a job.
type GroupKey struct {
	Namespace string
	Job       string
	Group     string
	Local     bool
}

// JobKey returns the group's job.
func (k GroupKey) JobKey() JobKey { return JobKey{k.Namespace, k.Job, k.Local} }

// String returns "namespace/job/group", with "@local" after the name of a region's
// own job.
func (k GroupKey) String() string { return k.JobKey().String() + "/" + k.Group }

// GPUAsk is the ask of one task for accelerators.
type GPUAsk struct {
	Count      int32    // whole devices; 0: a part of one device
	ShareMilli int32    // thousandths of one device, if Count is 0 or 1
	Models     []string // accepted models; empty: any
}

// DriverAsk names a driver that must be healthy, and the capabilities that it must have.
type DriverAsk struct {
	Name         string
	Capabilities []string
}

// PortAsk is one port of a group.
type PortAsk struct {
	Label  string
	Static int32 // fixed host port; 0: dynamic
}

// Affinity prefers nodes for which the expression is true.
type Affinity struct {
	Expr   string
	Weight int32 // -100..100, not 0
}

// Ask is what one instance of a group needs on its node: the sum over its tasks. Its slices are
// sorted, so that equal asks compare equal.
type Ask struct {
	Resources   Resources
	GPUs        []GPUAsk // one for each task that asks for accelerators
	Pool        string
	Dedicated   bool // shares its node with no other job
	Drivers     []DriverAsk
	Constraints []string // expressions over the node; all must be true
	Affinities  []Affinity
	Spread      string // expression whose value is a string; empty: none
	Ports       []PortAsk
	// Apart are tags, sorted. Two instances with a common tag never share a node.
	Apart []string
	// Volumes are folders of the node, sorted. The node's operator must allow them.
	Volumes []string
}

// Reschedule is the policy for an instance whose restarts on a node are used up.
type Reschedule struct {
	Attempts int32 // most replacements of a failed instance
	// The back-off doubles from From up to To.
	From time.Duration
	To   time.Duration
}

// Disconnect says what happens to a group's instances when their node is lost.
type Disconnect struct {
	After           time.Duration // counts since the node became silent
	StopRunning     bool          // true: running: stop; false: running: keep
	Replace         bool
	KeepReplacement bool // true: reconcile: keep_replacement; false: keep_original
	// StopInRegion: the group stops when its region's lease ends (disconnect.region.running: stop).
	// It is never true in jobs from a version without region leases, because such a version refused
	// them.
	StopInRegion bool
}

// Group is the part of a job's group that the region needs.
type Group struct {
	Name string
	// Hash is a hash of every field whose change needs a restart. Instances with an equal hash get a
	// new version of the job without a restart.
	Hash        uint64
	Count       int32 // only of local jobs; for other jobs the slots decide
	Ask         Ask
	Reschedule  Reschedule
	Disconnect  Disconnect
	MaxParallel int32 // update.max_parallel; less than 1 counts as 1
	Singleton   bool
	KillTimeout time.Duration // the longest of the group's tasks
	MaxRuntime  time.Duration // 0: unlimited; the agent enforces it
	MinHealthy  time.Duration // update.min_healthy; 0: the default; less than 0: none; see HealthyLevel
	Retry       *retry.Policy // replaces Reschedule; nil: the group has no retry policy; see RetryLevel
	Stagger     time.Duration // update.stagger; see StaggerLevel
	Parallel    int32         // the slots bound how many instances run at once; 0: no bound; see ParallelLevel
	// Rest is a hash like Hash, without the CPU, memory and disk of the tasks. Versions with an equal Rest
	// may get their limits while they run. 0: the region does not know it; see ResizeLevel.
	Rest uint64
}

// Binding returns the leases that bind the instances of a group. local is true for a group of a
// region's own job.
func (g *Group) Binding(local bool) Binding {
	node, region := g.Singleton || g.Disconnect.StopRunning, g.Disconnect.StopInRegion && !local
	switch {
	case node && region:
		return BindBoth
	case node:
		return BindNode
	case region:
		return BindRegion
	}
	return BindNone
}

// Job is one version of a job. It is stored while a slot, an allocation or a LocalJob refers to it.
type Job struct {
	Key         JobKey
	Version     int64
	Type        JobType
	Priority    int32 // 0..100; the job with the greater priority comes first
	Spec        []byte
	Groups      []Group // sorted by name
	CreateIndex uint64
}

// Group returns the group that has the given name, or nil if there is none.
func (j *Job) Group(name string) *Group {
	for i := range j.Groups {
		if j.Groups[i].Name == name {
			return &j.Groups[i]
		}
	}
	return nil
}

// LocalJob is a region's own job (name@region).
type LocalJob struct {
	Namespace string
	Name      string
	Version   int64
	Stopped   bool
	Purge     bool // the job is removed once all its instances have ended
	// Run is the Raft index of the submit that started the present run.
	Run int64
	// Revision is the Raft index of the last change. CheckRevision of a command is compared with it.
	Revision          uint64
	SubmittedUnixNano int64
	// Notes need VersionLevel. nil: there are none.
	Notes *VersionNotes
}

// Key returns the local job's key.
func (l *LocalJob) Key() JobKey { return JobKey{l.Namespace, l.Name, true} }

// Count is a reason and the number of nodes or instances to which it applies.
type Count struct {
	Reason  Reason
	Count   int32
	Message string
}

// Answer is a message of the region to the global tier about the part From ≤ i < To of a slot.
type Answer struct {
	Namespace  string
	Job        string
	Group      string
	From, To   int32
	Generation int64
	State      SlotState
	Reason     Reason
	Message    string
	Counts     []Count // counts the region's nodes by reason
	// Bound: the region's lease binds everything that may run for the part.
	Bound bool
	// MayRun: a lost node may still run an attempt that no lease ends.
	MayRun bool
	// StopTime, with Bound, is the longest kill timeout of everything that may run for the part.
	StopTime time.Duration
}

// Slot is a range From ≤ i < To of instances of a group that this region owns. For a system job it is
// 0..1. A local slot belongs to one of the region's own jobs.
type Slot struct {
	Namespace  string
	Job        string
	Group      string
	Local      bool
	From, To   int32
	Generation int64 // of a local job: the Raft index of the submit plus Cluster.EpochBase
	// Run is the run to which the slot belongs. Results of another run no longer count. 0: the
	// version of the global tier has no runs.
	Run        int64
	Revision   int64
	JobVersion int64
	Desired    Desired
	// State is the slot's state in the global tier, according to its latest order.
	State SlotState
	// Returned are the parts that were given back (rejected, returned) in this generation. They are
	// no longer wanted. Their answers are repeated until the order changes. Sorted by From, without
	// overlap.
	Returned []Answer
	// CommittedUnixNano is when this generation was committed.
	CommittedUnixNano int64
	CreateIndex       uint64
	ModifyIndex       uint64
	// HoldNano is how long after CommittedUnixNano the region holds instances that fit nowhere before
	// it gives them back.
	HoldNano int64
	// UnlessConnected goes with desired Revoke. Instances on connected nodes then stay: see
	// View.ExemptFromRevoke.
	UnlessConnected bool `codec:"UnlessHeard"`
	// Unbound: the global tier waits for the answer that the region's lease binds everything that may
	// run (Answer.Bound). With desired Hold or Revoke, the answer that nothing runs also waits for
	// attempts on lost nodes that no lease binds.
	Unbound bool
	// Parallel is the slot's part of Group.Parallel. See ParallelLevel.
	Parallel int32
	// Held is how many of the last indices an override keeps stopped. Apply sets it. See OverrideLevel.
	Held int32
}

// Key returns the slot's group.
func (s *Slot) Key() GroupKey { return GroupKey{s.Namespace, s.Job, s.Group, s.Local} }

// ID returns the slot's key on the wire: "namespace/job/group/from".
func (s *Slot) ID() string {
	return SlotID(s.Namespace, s.Job, s.Group, s.From)
}

// SlotID returns a slot's key on the wire: "namespace/job/group/from".
func SlotID(namespace, job, group string, from int32) string {
	return namespace + "/" + job + "/" + group + "/" + strconv.Itoa(int(from))
}

// OfRun reports whether a run equals the run of the slot.
func (s *Slot) OfRun(run int64) bool { return sameRun(s.Run, run) }

func (s *Slot) returned(i int32) bool {
	for _, a := range s.Returned {
		if i >= a.From && i < a.To {
			return true
		}
	}
	return false
}

// PortGrant is a host port that an allocation got.
type PortGrant struct {
	Label string
	Port  int32
}

// GPUGrant is a device, or a part of one, that an allocation got.
type GPUGrant struct {
	Device     string
	ShareMilli int32 // thousandths; 1000: the whole device
}

// Counts are numbers of instances (not attempts) by state. An instance is lost if its only live
// attempts are on lost nodes.
type Counts struct {
	Pending, Starting, Running, Complete, Failed, Stopped, Lost int32
	// Outdated counts the starting and running instances that do not have the version of their slot.
	Outdated int32
	// Held counts the instances that an override keeps stopped, also those that still stop, but none that
	// have ended. A system job counts as one.
	Held int32
}

// Use is what a node is charged for.
type Use struct {
	Resources Resources
	Allocs    int32
	// Ports are the host ports in use, sorted.
	Ports []int32
	// GPUMilli is the used share of each device, in the order of the node's devices.
	GPUMilli []int32
	// Dedicated counts the charged allocations of dedicated groups. All of them belong to
	// DedicatedJob.
	Dedicated    int32
	DedicatedJob JobKey
	// Apart are the tags of the node's allocations, sorted.
	Apart []string
}
