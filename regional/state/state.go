package state

import "iter"

// State is the writable state; one goroutine at a time.
type State struct {
	View
}

// View is an immutable state; read it from any goroutine.
type View struct{}

// New is the empty state before the first command.
func New() *State { panic("todo") }

// Apply changes the state by one committed command. Equal states, indices and
// commands give equal states and results. index must grow.
func (s *State) Apply(index uint64, cmd Command) Result { panic("todo") }

// Snapshot freezes the present state in constant time.
func (s *State) Snapshot() *View { panic("todo") }

// Fork is a writable state of its own that starts as the view: for a
// sequencer that runs ahead of the log, and for what-ifs. Constant time.
func (v *View) Fork() *State { panic("todo") }

// Restore builds a state from the records of a snapshot.
func Restore(records iter.Seq2[Record, error]) (*State, error) { panic("todo") }

// Record is one entity of a snapshot: exactly one pointer is set.
type Record struct {
	Header   *Header         `codec:"header,omitempty"`
	Node     *Node           `codec:"node,omitempty"`
	Reports  *ReportsRecord  `codec:"reports,omitempty"`
	Job      *Job            `codec:"job,omitempty"`
	Local    *LocalJob       `codec:"local,omitempty"`
	Group    *GroupRecord    `codec:"group,omitempty"`
	Slot     *Slot           `codec:"slot,omitempty"`
	Instance *InstanceRecord `codec:"instance,omitempty"`
	Alloc    *Alloc          `codec:"alloc,omitempty"`
	Key      *KeyRecord      `codec:"key,omitempty"`
}

// Header is the first record.
type Header struct {
	Index   uint64
	Cluster Cluster
	NextSeq uint64
	NextNum uint32
	NextGID uint32
}

// ReportsRecord is how far a node's reports are stored.
type ReportsRecord struct {
	NodeID   string
	Position Position
}

// GroupRecord is the number of a group.
type GroupRecord struct {
	Key         GroupKey
	GID         uint32
	ModifyIndex uint64
}

// InstanceRecord is an instance and its group's number.
type InstanceRecord struct {
	GID      uint32
	Instance Instance
}

// KeyRecord is a used idempotency key and the answer given.
type KeyRecord struct {
	Idempotency Idempotency
	Version     int64
	Revision    uint64
}

// Records yields every entity, a Header first, in a deterministic order.
func (v *View) Records() iter.Seq[Record] { panic("todo") }

// Hash is a digest over all records: equal on every server at an equal index.
func (v *View) Hash() string { panic("todo") }

// Index of the last command applied.
func (v *View) Index() uint64 { panic("todo") }

// Cluster says whose log this is.
func (v *View) Cluster() Cluster { panic("todo") }

// Node finds a node by id.
func (v *View) Node(id string) (*Node, bool) { panic("todo") }

// Nodes yields all nodes by id.
func (v *View) Nodes() iter.Seq[*Node] { panic("todo") }

// NodeCount is the number of nodes.
func (v *View) NodeCount() int { panic("todo") }

// Use is what a node is charged for; the zero value for an unknown node.
func (v *View) Use(nodeID string) Use { panic("todo") }

// NodeAllocs yields the allocations of a node by Seq, ended ones included.
func (v *View) NodeAllocs(nodeID string) iter.Seq[*Alloc] { panic("todo") }

// Reports is how far a node's reports are stored.
func (v *View) Reports(nodeID string) Position { panic("todo") }

// Job finds a version of a job.
func (v *View) Job(key JobKey, version int64) (*Job, bool) { panic("todo") }

// LocalJob finds one of the region's own jobs.
func (v *View) LocalJob(namespace, name string) (*LocalJob, bool) { panic("todo") }

// LocalJobs yields the region's own jobs by namespace and name.
func (v *View) LocalJobs() iter.Seq[*LocalJob] { panic("todo") }

// Groups yields every group that has slots or allocations, by String.
func (v *View) Groups() iter.Seq[*GroupView] { panic("todo") }

// JobGroups yields the groups of one job by name.
func (v *View) JobGroups(key JobKey) iter.Seq[*GroupView] { panic("todo") }

// Group finds a group.
func (v *View) Group(key GroupKey) (*GroupView, bool) { panic("todo") }

// Unsettled yields the groups that may need a decision: an index without its
// one live allocation, an allocation that is not wanted or not of the slot's
// version, every system group. Highest priority first, then oldest.
func (v *View) Unsettled() iter.Seq[*GroupView] { panic("todo") }

// GroupView is a group as the view has it.
type GroupView struct {
	Key         GroupKey
	Slots       []*Slot // sorted by From
	Counts      Counts  // instances by state; unplaced ones are pending
	Wanted      int32   // indices to run here
	ModifyIndex uint64  // orders summaries within an incarnation
}

// Slots yields every slot, local ones included, by group and From.
func (v *View) Slots() iter.Seq[*Slot] { panic("todo") }

// Instances yields the remembered instances of a group by index.
func (v *View) Instances(key GroupKey) iter.Seq[Instance] { panic("todo") }

// Instance is what is remembered of an index; the zero value if nothing is.
func (v *View) Instance(key GroupKey, index int32) Instance { panic("todo") }

// Alloc finds an allocation by its full id.
func (v *View) Alloc(id string) (*Alloc, bool) { panic("todo") }

// AllocsByPrefix yields allocations whose id starts with prefix, by id.
func (v *View) AllocsByPrefix(prefix string) iter.Seq[*Alloc] { panic("todo") }

// Allocs yields all allocations by job, group, index and Seq.
func (v *View) Allocs() iter.Seq[*Alloc] { panic("todo") }

// GroupAllocs yields a group's allocations by index and Seq.
func (v *View) GroupAllocs(key GroupKey) iter.Seq[*Alloc] { panic("todo") }

// InstanceAllocs yields one instance's allocations by Seq.
func (v *View) InstanceAllocs(key GroupKey, index int32) iter.Seq[*Alloc] { panic("todo") }

// AllocCounts counts the region's allocations (attempts) by state; the index
// is the AllocState.
func (v *View) AllocCounts() [8]int { panic("todo") }

// Allocated is the sum of what all nodes are charged for.
func (v *View) Allocated() Resources { panic("todo") }

// Key finds a used idempotency key.
func (v *View) Key(key string) (*KeyRecord, bool) { panic("todo") }
