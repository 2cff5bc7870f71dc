package state

import (
	"slices"
	"strconv"
	"time"

	"github.com/nusa-scheduler/nusa/internal/folder"
)

// Position names a point in a resumable stream (package link).
type Position struct {
	Epoch    string
	Sequence uint64
}

// Resources is an amount that a node has or an instance asks for.
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

// Cluster binds this log to a region's name.
type Cluster struct {
	ID     string // UUID; empty before Bootstrap
	Region string
	// Incarnation grows at every snapshot restore or quorum recovery; orders
	// compare by (incarnation, Raft index).
	Incarnation uint64
	// Orders is the position up to which the global tier's slot orders are stored.
	Orders Position
	// OrdersIncomplete is true between the parts of one change of slot orders: nothing
	// may be stopped as unwanted before the change is complete.
	OrdersIncomplete bool

	// FederationID is the federation that the log is bound to; empty before the first
	// JoinFederation.
	FederationID string
	// LeadershipTerm and LeadershipNonce are the greatest known term of an active global
	// server.
	LeadershipTerm  uint64
	LeadershipNonce string
	// Fence is the greatest known fence of the region, and StoreRevision the greatest
	// known etcd revision.
	Fence         uint64
	StoreRevision int64
	// RegionLeaseMax and NodeLeaseMax are the greatest lengths of the region's lease and of a
	// node's lease that may be outstanding; 0 = no master has stored one.
	RegionLeaseMax time.Duration
	NodeLeaseMax   time.Duration
	// FeatureLevel says which commands the log may have, because every server of the
	// region reads them. 1: JoinFederation, RebindFederation and SetLimits.
	FeatureLevel uint32
	// Recovered is true from the begin of an incarnation after a recovery until every
	// lease of earlier incarnations is over: nothing that a lease binds may start.
	Recovered bool
	// RestoreID is random: it tells two restores apart that begin the same incarnation.
	RestoreID string
	// Former has the numbers of the federation that the log was bound to before the latest
	// rebind: they count again when the region returns to that federation.
	Former FederationNumbers
}

// FederationNumbers are the numbers that a log knows of a federation, as in Cluster.
type FederationNumbers struct {
	FederationID    string
	LeadershipTerm  uint64
	LeadershipNonce string
	Fence           uint64
	StoreRevision   int64
}

// Driver is the report of a node's driver about itself.
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

// LeaseBinding is a capability of the drivers of a node whose agent ends tasks when one of
// the leases that bind them ends, that of the region too.
const LeaseBinding = "lease_binding"

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

// Node is one agent. Capacity is what the agent offers; several agents of one
// machine (SharedMachine) each offer their own part.
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
	// StatusUnixNano is when Status began; for a lost node, when it was last seen.
	StatusUnixNano int64
	// InventoryIndex changes only with the inventory that UpsertNode brings: caches of
	// constraint results can be keyed by (ID, InventoryIndex).
	InventoryIndex uint64
	ModifyIndex    uint64

	// VolumesAllow are the folders below which jobs may have volumes. They count only
	// with VolumesReported: an agent that does not report them may allow any folder.
	VolumesAllow    []string
	VolumesReported bool `codec:"VolumesSaid"`
}

// Allows reports whether a job may have a folder of the node as a volume, according to
// the agent's report.
func (n *Node) Allows(path string) bool {
	return !n.VolumesReported || folder.Allowed(path, n.VolumesAllow)
}

// BindsLeases reports whether the node's agent ends tasks when the region's lease ends.
func (n *Node) BindsLeases() bool {
	return slices.ContainsFunc(n.Drivers, func(d Driver) bool { return slices.Contains(d.Capabilities, LeaseBinding) })
}

// Eligible reports whether the status of the node lets it take new work.
func (n *Node) Eligible() bool {
	return n.Status == NodeReady && !n.Cordoned && !n.Draining && !n.ControlPlane
}

// MaxAllocs returns how many allocations the node may be charged for at once: its
// quota, and never more than MaxNodeAllocs.
func (n *Node) MaxAllocs() int32 {
	if n.InstanceQuota > 0 {
		return min(n.InstanceQuota, MaxNodeAllocs)
	}
	return MaxNodeAllocs
}

// JobKey names a job. Local jobs (name@region) are distinct from jobs of the global
// tier with the same name.
type JobKey struct {
	Namespace string
	Job       string
	Local     bool
}

// In returns the job's name for users: "namespace/job", with "@region" for the
// region's own jobs.
func (k JobKey) In(region string) string {
	if k.Local {
		return k.Namespace + "/" + k.Job + "@" + region
	}
	return k.Namespace + "/" + k.Job
}

// String returns the key as the state uses it: "namespace/job", with "@local" for a
// region's own job. Messages to users use In.
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

// GPUAsk asks for accelerators of one task.
type GPUAsk struct {
	Count      int32    // whole devices; 0 = a part of one
	ShareMilli int32    // thousandths of one device, where Count is 0 (or 1)
	Models     []string // accepted models; empty = any
}

// DriverAsk names a driver that must be healthy, and the capabilities that it must
// have.
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

// Ask is what one instance of a group needs on its node: the sum over its tasks. The
// shell sorts the slices, so that equal asks compare equal.
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
	// Apart are tags, sorted: two instances with a common tag never share a node.
	Apart []string
	// Volumes are folders of the node, sorted: its operator must allow them.
	Volumes []string
}

// Reschedule is the policy for instances whose restarts on a node are used up.
type Reschedule struct {
	Attempts int32 // most replacements of a failed instance
	// The back-off doubles from From up to To.
	From time.Duration
	To   time.Duration
}

// Disconnect is the group's choice when its node is lost.
type Disconnect struct {
	After           time.Duration // since the node became silent
	StopRunning     bool          // running: stop; else keep
	Replace         bool
	KeepReplacement bool // reconcile: keep_replacement; else keep_original
	// StopInRegion: the group stops when its region's lease ends
	// (disconnect.region.running: stop). Never set in jobs that a version without region
	// leases stored: it refused them.
	StopInRegion bool
}

// Group is the part of a job's group that the master needs.
type Group struct {
	Name string
	// Hash is a hash of every field whose change needs a restart (not the count). With
	// equal hashes instances are carried over to a new version without a restart.
	Hash        uint64
	Count       int32 // only of local jobs; other jobs have counts in their slots
	Ask         Ask
	Reschedule  Reschedule
	Disconnect  Disconnect
	MaxParallel int32 // update.max_parallel; values below 1 count as 1
	Singleton   bool
	KillTimeout time.Duration // the longest of its tasks
	MaxRuntime  time.Duration // 0 = unlimited; the agent enforces it
}

// Binding returns the leases that bind the instances of a group. local: the group is of
// a region's own job.
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

// Job is one version of a job. It is stored while a slot, an allocation or a LocalJob
// refers to it.
type Job struct {
	Key         JobKey
	Version     int64
	Type        JobType
	Priority    int32 // 0..100; greater goes first
	Spec        []byte
	Groups      []Group // sorted by name
	CreateIndex uint64
}

// Group finds a group by name; nil if there is none.
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
	Purge     bool // remove it once everything has ended
	// Run is the Raft index of the submit that started the present run.
	Run int64
	// Revision is the Raft index of the last change: the check-index.
	Revision          uint64
	SubmittedUnixNano int64
}

// Key returns the local job's key.
func (l *LocalJob) Key() JobKey { return JobKey{l.Namespace, l.Name, true} }

// Count is a reason and how many nodes (or instances) it concerns.
type Count struct {
	Reason  Reason
	Count   int32
	Message string
}

// Answer is a message of the region to the global tier about a part From ≤ i < To of a
// slot.
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
	// Bound: the region's lease binds everything that may run for the part.
	Bound bool
	// MayRun: a lost node may still run an attempt that no lease ends.
	MayRun bool
	// StopTime goes with Bound: the longest kill timeout of what may run for the part.
	StopTime time.Duration
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
	// Run that the slot belongs to: results of another run no longer count. 0 = the
	// global tier is too old to have runs.
	Run        int64
	Revision   int64
	JobVersion int64
	Desired    Desired
	// State is the slot's state in the global tier, from its latest order.
	State SlotState
	// Returned are the parts given back (rejected, returned) in this generation: they
	// are no longer wanted, and the answers are repeated until the order changes
	// accordingly. Sorted by From, disjoint.
	Returned []Answer
	// CommittedUnixNano is when this generation was committed.
	CommittedUnixNano int64
	CreateIndex       uint64
	ModifyIndex       uint64
	// HoldNano is how long after CommittedUnixNano instances that fit nowhere are held
	// back instead of given back.
	HoldNano int64
	// UnlessConnected goes with desired Revoke: instances on connected nodes stay, see
	// View.ExemptFromRevoke.
	UnlessConnected bool `codec:"UnlessHeard"`
	// Unbound: the global tier waits for the answer that the region's lease binds
	// everything that may run, see Answer.Bound. With desired Hold or Revoke the answer that
	// nothing runs waits for what no lease binds, on lost nodes, too.
	Unbound bool
}

// Key returns the slot's group.
func (s *Slot) Key() GroupKey { return GroupKey{s.Namespace, s.Job, s.Group, s.Local} }

// ID returns the key of the slot on the wire: "namespace/job/group/from".
func (s *Slot) ID() string {
	return SlotID(s.Namespace, s.Job, s.Group, s.From)
}

// SlotID returns the key of a slot on the wire: "namespace/job/group/from".
func SlotID(namespace, job, group string, from int32) string {
	return namespace + "/" + job + "/" + group + "/" + strconv.Itoa(int(from))
}

// OfRun reports whether something of a run belongs to the run of the slot.
func (s *Slot) OfRun(run int64) bool { return sameRun(s.Run, run) }

// Wants reports whether index i of the slot must run here: desired run, inside the
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

// PortGrant is a host port of an allocation.
type PortGrant struct {
	Label string
	Port  int32
}

// GPUGrant is a device, or a part of one, of an allocation.
type GPUGrant struct {
	Device     string
	ShareMilli int32 // 1000 = the whole device
}

// Instance is the record of one index of a group across its attempts.
type Instance struct {
	Index int32
	// Generation and Run of the slot, and Hash of the group, that the fields below
	// belong to. A new generation resets the attempts; a new hash or run also resets Done.
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
	// Exhausted: the instance failed and is not tried again in this version.
	Exhausted bool
	// Declined are the ids of nodes that declined the instance in this version.
	Declined []string
	// Reason and Message of the newest attempt's end.
	Reason  Reason
	Message string
}

// CompletedIn reports whether a batch instance has completed in a run.
func (i *Instance) CompletedIn(run int64) bool { return i.Done && sameRun(i.Run, run) }

// Finished reports whether nothing more must run for this index.
func (i *Instance) Finished() bool { return i.Done || i.Exhausted }

// Counts are instances (not attempts) by state. An instance is lost if its only live
// attempts are on lost nodes.
type Counts struct {
	Pending, Starting, Running, Complete, Failed, Stopped, Lost int32
	// Outdated counts the starting and running instances whose version is not the one
	// that their slot wants.
	Outdated int32
}

// Use is the sum of the resources that a node is charged for.
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
	// Apart are the tags of its allocations, sorted.
	Apart []string
}
