package state

import (
	"strconv"
	"time"

	"github.com/nusa-scheduler/nusa/internal/folder"
)

// Position names a point in a resumable stream (package link).
type Position struct {
	Epoch    string
	Sequence uint64
}

// Resources is an amount of what a node has or an instance asks for.
type Resources struct {
	CPUMilli    int64 // thousandths of a core
	MemoryBytes int64
	DiskBytes   int64
}

// Add is the component-wise sum.
func (r Resources) Add(o Resources) Resources {
	return Resources{r.CPUMilli + o.CPUMilli, r.MemoryBytes + o.MemoryBytes, r.DiskBytes + o.DiskBytes}
}

// Sub is the component-wise difference.
func (r Resources) Sub(o Resources) Resources {
	return Resources{r.CPUMilli - o.CPUMilli, r.MemoryBytes - o.MemoryBytes, r.DiskBytes - o.DiskBytes}
}

// Cluster binds this log to a region's name.
type Cluster struct {
	ID     string // UUID; empty before Bootstrap
	Region string
	// Incarnation grows at every snapshot restore or quorum recovery; orders
	// compare by (incarnation, Raft index).
	Incarnation uint64
	// Orders is how far the global tier's slot orders are stored.
	Orders Position
	// OrdersIncomplete is true between the parts of one change of slot orders:
	// nothing may be stopped as unwanted before it is whole.
	OrdersIncomplete bool
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

// Facts are what constraint expressions can ask about the machine.
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

// Node is one agent. Capacity is what it offers; several agents of one machine
// (SharedMachine) each offer their own part.
type Node struct {
	ID            string // UUID made by the agent
	Num           uint32 // dense, given by Apply; index of system instances
	Name          string
	Address       string
	Pool          string
	Labels        map[string]string
	Capacity      Resources
	Drivers       []Driver
	GPUs          []GPU
	InstanceQuota int32 // allocations at most; 0 = MaxNodeAllocs
	PortMin       int32 // dynamic ports, ends included; 0,0 = none
	PortMax       int32
	ControlPlane  bool // hosts the control plane: takes no work
	SharedMachine string
	Facts         Facts
	Inventory     []byte // encoded NodeInventory, as reported

	Status   NodeStatus
	Cordoned bool
	Draining bool

	RegisteredUnixNano int64
	// StatusUnixNano is since when Status holds; for a lost node since when it
	// is silent.
	StatusUnixNano int64
	// InventoryIndex changes only with what UpsertNode brings: caches of
	// constraint results can be keyed by (ID, InventoryIndex).
	InventoryIndex uint64
	ModifyIndex    uint64

	// VolumesAllow are the folders below which its jobs may have volumes, as far
	// as VolumesReported: an agent that does not say may take any.
	VolumesAllow    []string
	VolumesReported bool `codec:"VolumesSaid"`
}

// Allows says whether a job may have a folder of the node as a volume, as far as
// the agent said.
func (n *Node) Allows(path string) bool {
	return !n.VolumesReported || folder.Allowed(path, n.VolumesAllow)
}

// Eligible says that the node may take new work as far as its status goes.
func (n *Node) Eligible() bool {
	return n.Status == NodeReady && !n.Cordoned && !n.Draining && !n.ControlPlane
}

// MaxAllocs is how many allocations the node may be charged for at once: its
// quota, and never more than MaxNodeAllocs.
func (n *Node) MaxAllocs() int32 {
	if n.InstanceQuota > 0 {
		return min(n.InstanceQuota, MaxNodeAllocs)
	}
	return MaxNodeAllocs
}

// JobKey names a job. Local jobs (name@region) live in a namespace of their
// own, so they never clash with the global tier's.
type JobKey struct {
	Namespace string
	Job       string
	Local     bool
}

// In is the job's name as people in that region know it: "namespace/job", with
// "@region" for the region's own.
func (k JobKey) In(region string) string {
	if k.Local {
		return k.Namespace + "/" + k.Job + "@" + region
	}
	return k.Namespace + "/" + k.Job
}

// String is the key in the state: "namespace/job", with "@local" for a region's
// own job. For people there is In.
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

// JobKey is the group's job.
func (k GroupKey) JobKey() JobKey { return JobKey{k.Namespace, k.Job, k.Local} }

// String is "namespace/job/group", with "@local" after a region's own job.
func (k GroupKey) String() string { return k.JobKey().String() + "/" + k.Group }

// GPUAsk asks for accelerators of one task.
type GPUAsk struct {
	Count      int32    // whole devices; 0 = a part of one
	ShareMilli int32    // thousandths of one device, where Count is 0 (or 1)
	Models     []string // accepted models; empty = any
}

// DriverAsk names a driver that must be healthy, and what it must be able to
// do.
type DriverAsk struct {
	Name         string
	Capabilities []string
}

// PortAsk is one port of a group.
type PortAsk struct {
	Label  string
	Static int32 // fixed host port; 0 = dynamic
}

// Affinity prefers nodes for which the expression is true.
type Affinity struct {
	Expr   string
	Weight int32 // -100..100, not 0
}

// Ask is what one instance of a group needs of its node: the sum over its
// tasks. Slices are sorted by the shell, so that equal asks compare equal.
type Ask struct {
	Resources   Resources
	GPUs        []GPUAsk // one per task that asks
	Pool        string
	Dedicated   bool // shares its node with no other job
	Drivers     []DriverAsk
	Constraints []string // expressions over node, all must be true
	Affinities  []Affinity
	Spread      string // expression giving a string; empty = none
	Ports       []PortAsk
	// Apart are tags, sorted: no two instances that have one in common share a
	// node.
	Apart []string
	// Volumes are folders of the node, sorted: its operator must allow them.
	Volumes []string
}

// Reschedule is the policy once restarts on a node are used up.
type Reschedule struct {
	Attempts int32 // replacements of failed instances at most
	// Back-off doubles from From up to To.
	From time.Duration
	To   time.Duration
}

// Disconnect is the group's choice when its node is lost.
type Disconnect struct {
	After           time.Duration // since the node is silent
	StopRunning     bool          // running: stop; else keep
	Replace         bool
	KeepReplacement bool // reconcile: keep_replacement; else keep_original
}

// Group is what the master needs to know of a job's group.
type Group struct {
	Name string
	// Hash of everything whose change needs a restart (not the count): equal
	// hashes carry instances over to a new version as they are.
	Hash        uint64
	Count       int32 // used for local jobs only; slots say it otherwise
	Ask         Ask
	Reschedule  Reschedule
	Disconnect  Disconnect
	MaxParallel int32 // update.max_parallel; values below 1 count as 1
	Singleton   bool
	KillTimeout time.Duration // the longest of its tasks
	MaxRuntime  time.Duration // 0 = unlimited; kept by the agent
}

// Job is one version of a job. It is kept while a slot, an allocation or a
// LocalJob refers to it.
type Job struct {
	Key         JobKey
	Version     int64
	Type        JobType
	Priority    int32 // 0..100; greater goes first
	Spec        []byte
	Groups      []Group // sorted by name
	CreateIndex uint64
}

// Group finds a group by name; nil when there is none.
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
	Purge     bool // forget it once everything has ended
	// Run is the Raft index of the submit that began the present run.
	Run int64
	// Revision is the Raft index of the last change: the check-index.
	Revision          uint64
	SubmittedUnixNano int64
}

// Key is the local job's key.
func (l *LocalJob) Key() JobKey { return JobKey{l.Namespace, l.Name, true} }

// Count is a reason and how many nodes (or instances) it concerns.
type Count struct {
	Reason  Reason
	Count   int32
	Message string
}

// Answer is the region's word on a part From ≤ i < To of a slot.
type Answer struct {
	Namespace  string
	Job        string
	Group      string
	From, To   int32
	Generation int64
	State      SlotState
	Reason     Reason
	Message    string
	Counts     []Count // over the region's nodes
}

// Slot is a range From ≤ i < To of instances of a group, owned by this region;
// for system jobs 0..1. Local slots belong to the region's own jobs.
type Slot struct {
	Namespace  string
	Job        string
	Group      string
	Local      bool
	From, To   int32
	Generation int64 // local jobs: the Raft index of the submit
	// Run that the slot belongs to: what an instance did in another one counts
	// no more. 0 = the global tier is too old to say.
	Run        int64
	Revision   int64
	JobVersion int64
	Desired    Desired
	// State is what the global tier holds, as told by its latest order.
	State SlotState
	// Returned are the parts given back (rejected, returned) in this
	// generation: they are wanted no more, and the answers are repeated until
	// the order changes accordingly. Sorted by From, disjoint.
	Returned []Answer
	// CommittedUnixNano is when this generation was committed.
	CommittedUnixNano int64
	CreateIndex       uint64
	ModifyIndex       uint64
	// HoldNano is for how long from CommittedUnixNano on instances that fit
	// nowhere are kept before they are given back.
	HoldNano int64
	// UnlessConnected goes with desired Revoke: instances that are heard of stay, see
	// View.Keeps.
	UnlessConnected bool `codec:"UnlessHeard"`
}

// Key is the slot's group.
func (s *Slot) Key() GroupKey { return GroupKey{s.Namespace, s.Job, s.Group, s.Local} }

// ID is the wire's key "namespace/job/group/from".
func (s *Slot) ID() string {
	return SlotID(s.Namespace, s.Job, s.Group, s.From)
}

// SlotID is the wire's key of a slot: "namespace/job/group/from".
func SlotID(namespace, job, group string, from int32) string {
	return namespace + "/" + job + "/" + group + "/" + strconv.Itoa(int(from))
}

// Wants says that index i of the slot shall run here: desired run, inside the
// range and not given back.
func (s *Slot) Wants(i int32) bool {
	return s.Desired == Run && i >= s.From && i < s.To && !s.returned(i)
}

func (s *Slot) returned(i int32) bool {
	for _, a := range s.Returned {
		if i >= a.From && i < a.To {
			return true
		}
	}
	return false
}

// PortGrant is a host port given to an allocation.
type PortGrant struct {
	Label string
	Port  int32
}

// GPUGrant is a device, or a part of one, given to an allocation.
type GPUGrant struct {
	Device     string
	ShareMilli int32 // 1000 = the whole device
}

// Instance is what is remembered of one index of a group across its attempts.
type Instance struct {
	Index int32
	// Generation and run of the slot, and hash of the group, that what follows is
	// about. A new generation starts the attempts anew, a new hash or run also
	// what is done.
	Generation int64
	Run        int64
	Hash       uint64
	// Epoch of the newest attempt; 0 before the first.
	Epoch int64
	// Failures in a row: failed attempts that count against reschedule.
	Failures int32
	// NotBeforeUnixNano is the end of the back-off; 0 = none.
	NotBeforeUnixNano int64
	// EndedUnixNano is when the newest attempt ended; 0 = it has not.
	EndedUnixNano int64 `codec:"FreedUnixNano"`
	// Done: a batch instance has completed.
	Done bool
	// Exhausted: it failed and will not be tried again in this version.
	Exhausted bool
	// Declined are the ids of nodes that declined it in this version.
	Declined []string
	// Reason and Message of the newest attempt's end.
	Reason  Reason
	Message string
}

// Finished says that nothing is to be run for this index any more.
func (i *Instance) Finished() bool { return i.Done || i.Exhausted }

// Counts are instances (not attempts) by state; lost are those of which only
// an attempt on a lost node is left.
type Counts struct {
	Pending, Starting, Running, Complete, Failed, Stopped, Lost int32
	// Outdated are those of Starting and Running that are of another version
	// than their slot wants.
	Outdated int32
}

// Use is what the allocations of a node are charged for.
type Use struct {
	Resources Resources
	Allocs    int32
	// Ports are the host ports in use, sorted.
	Ports []int32
	// GPUMilli is the used share of each device, in the node's order.
	GPUMilli []int32
	// Dedicated counts charged allocations of dedicated groups, all of
	// DedicatedJob.
	Dedicated    int32
	DedicatedJob JobKey
	// Apart are the tags that are taken, sorted.
	Apart []string
}
