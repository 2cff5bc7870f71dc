package state

import (
	"cmp"
	"iter"
	"strings"

	"github.com/nusa-scheduler/nusa/regional/state/persist"
)

// State is the writable state. It is not safe for concurrent use. Reads through its
// embedded View see the latest Apply.
type State struct {
	View
	own *persist.Owner
	// commands counts the commands. With it a group knows the last command that touched it.
	commands uint64
	touched  []*group // the groups that the latest command touched; its array is used again
	// newEvents are the events of the present call of Apply; its array is used again.
	newEvents []Event
}

// View is an immutable state that any goroutine may read.
type View struct {
	index   uint64
	cluster Cluster
	nextSeq uint64
	nextNum uint32
	nextGID uint32

	nodes   persist.Tree[str, *Node]
	uses    persist.Array[use]      // by Node.Num: one for each node
	reports persist.Array[Position] // by Node.Num: the position of the node's reports
	jobs    persist.Tree[JobKey, *jobEntry]
	groups  persist.Array[group]               // by gid
	ids     persist.Array[persist.List[idRef]] // by bucket of the id
	// ended are the allocations that Purge may remove, the oldest first.
	ended     persist.Tree[endedKey, allocKey]
	undecided persist.Tree[rank, struct{}]
	keys      persist.Tree[str, *KeyRecord]
	documents persist.Tree[str, *Document]
	// stored are the earlier versions of the region's own jobs, by version. Its slices are replaced, never
	// changed. storedAges has all of them, those that go first before the others.
	stored     persist.Tree[JobKey, []*StoredVersion]
	storedAges persist.Tree[storedAge, struct{}]

	localJobs     int // how many of the jobs are the region's own
	overrides     int // how many of the jobs have an override
	documentBytes int // the keys and values of all documents
	storedBytes   int // of all earlier versions
	// slotsRevision is the greatest revision of a global slot so far.
	slotsRevision int64

	trail  Trail
	events Events

	byState   [8]int
	allocated Resources
	// unsure counts the allocations that may run and whose binding is unknown.
	unsure int
}

// group is a group with counts of its instances.
type group struct {
	own      *persist.Owner
	gid      uint32
	key      GroupKey
	slots    []*Slot // replaced, never changed
	typ      JobType
	priority int32
	modify   uint64
	touched  uint64 // the number of the owner's command that last touched the group

	wanted    int32      // how many indices must run in this region
	held      int32      // how many indices an override keeps stopped
	recorded  int32      // how many of the wanted indices have an inst
	unsteady  int32      // how many insts may need a decision
	outdated  int32      // how many instances start or run in another version
	allocs    int32      // how many allocations, including ended ones
	placement *Placement // placement and why describe the latest allocation
	why       string
	byState   [8]int32

	insts insts
}

// use holds what a node is charged for, and all allocations of the node.
type use struct {
	own  *persist.Owner
	node *NodeRef // for the node's new allocations
	// allocs are the node's allocations by seq, including ended ones.
	allocs persist.List[allocKey]
	Use
}

type str string

func (a str) Compare(b str) int { return strings.Compare(string(a), string(b)) }

// Compare orders jobs by namespace and name. A region's own job comes after the
// federation's job of the same name.
func (k JobKey) Compare(o JobKey) int {
	if c := strings.Compare(k.Namespace, o.Namespace); c != 0 {
		return c
	}
	if c := strings.Compare(k.Job, o.Job); c != 0 {
		return c
	}
	switch {
	case k.Local == o.Local:
		return 0
	case o.Local:
		return -1
	}
	return 1
}

// Compare orders groups by job, then name.
func (k GroupKey) Compare(o GroupKey) int {
	if c := k.JobKey().Compare(o.JobKey()); c != 0 {
		return c
	}
	return strings.Compare(k.Group, o.Group)
}

// allocKey is the position of an allocation: its group, its index and its seq.
type allocKey struct {
	gid   uint32
	index int32
	seq   uint64
}

type endedKey struct {
	at  int64
	seq uint64
}

func (a endedKey) Compare(b endedKey) int {
	if a.at != b.at {
		return cmp.Compare(a.at, b.at)
	}
	return cmp.Compare(a.seq, b.seq)
}

// rank is the place of a group in the order of planning: groups with the highest priority
// first, then the oldest.
type rank struct {
	priority int32
	gid      uint32
}

func (a rank) Compare(b rank) int {
	if a.priority != b.priority {
		return cmp.Compare(b.priority, a.priority)
	}
	return cmp.Compare(a.gid, b.gid)
}

// New returns the empty state before the first command.
func New() *State {
	return &State{own: &persist.Owner{}, View: View{nextSeq: 1, nextNum: 1, nextGID: 1}}
}

// Snapshot freezes the present state in constant time.
func (s *State) Snapshot() *View {
	v := s.View
	s.own = &persist.Owner{}
	return &v
}

// Fork returns an independent writable state that equals the view. It takes constant time.
// A sequencer uses a fork to run ahead of the log, and a dry run to try commands. The view
// must come from Snapshot; a State is forked by s.Snapshot().Fork().
func (v *View) Fork() *State { return &State{View: *v, own: &persist.Owner{}} }

// Index returns the index of the last command that was applied.
func (v *View) Index() uint64 { return v.index }

// Audit returns the audit trail.
func (v *View) Audit() *Trail { return &v.trail }

// Events returns the latest events.
func (v *View) Events() *Events { return &v.events }

// Cluster returns the cluster of the log.
func (v *View) Cluster() Cluster { return v.cluster }

// Node finds a node by id.
func (v *View) Node(id string) (*Node, bool) { return v.nodes.Get(str(id)) }

// Nodes yields all nodes, sorted by id.
func (v *View) Nodes() iter.Seq[*Node] { return values(v.nodes.All()) }

// NodesInUse yields all nodes with their Use, sorted by id. The Use must not be changed.
func (v *View) NodesInUse() iter.Seq2[*Node, *Use] {
	return func(yield func(*Node, *Use) bool) {
		for _, n := range v.nodes.All() {
			u, _ := v.uses.Get(n.Num)
			if !yield(n, &u.Use) {
				return
			}
		}
	}
}

// SlotsRevision returns the greatest revision of a global slot that this state has held. A
// restored state begins with the slots of its snapshot.
func (v *View) SlotsRevision() int64 { return v.slotsRevision }

// NodeCount returns the number of nodes.
func (v *View) NodeCount() int { return v.nodes.Len() }

// Use returns the resources that a node is charged for. It is the zero value for an unknown
// node. Its slices must not be changed.
func (v *View) Use(nodeID string) Use {
	if n, ok := v.Node(nodeID); ok {
		return v.useOf(n.Num)
	}
	return Use{}
}

// UseOf is like Use, but takes the node's Num.
func (v *View) UseOf(num uint32) Use { return v.useOf(num) }

func (v *View) useOf(num uint32) Use {
	if u, ok := v.uses.Get(num); ok {
		return u.Use
	}
	return Use{}
}

// NodeAllocs yields the allocations of a node by Seq, including ended ones.
func (v *View) NodeAllocs(nodeID string) iter.Seq[*Alloc] {
	n, ok := v.Node(nodeID)
	if !ok {
		return func(func(*Alloc) bool) {}
	}
	return v.allocsOn(n.Num)
}

func (v *View) allocsOn(num uint32) iter.Seq[*Alloc] {
	return func(yield func(*Alloc) bool) {
		u, ok := v.uses.Get(num)
		if !ok {
			return
		}
		for _, ref := range u.allocs.All() {
			if a := v.alloc(ref); a != nil && !yield(a) {
				return
			}
		}
	}
}

// Reports returns the position up to which a node's reports are stored.
func (v *View) Reports(nodeID string) Position {
	if n, ok := v.Node(nodeID); ok {
		return v.reportsOf(n.Num)
	}
	return Position{}
}

func (v *View) reportsOf(num uint32) Position {
	if p, ok := v.reports.Get(num); ok {
		return *p
	}
	return Position{}
}

// Key finds a used idempotency key.
func (v *View) Key(key string) (*KeyRecord, bool) { return v.keys.Get(str(key)) }

// AllocCounts returns the number of allocations in each state. The index is the AllocState.
func (v *View) AllocCounts() [8]int { return v.byState }

// Allocated returns the sum of the resources that all nodes are charged for.
func (v *View) Allocated() Resources { return v.allocated }

// UnknownBindings returns for how many allocations that may run it is unknown which leases
// bind them: see Placement.BindingUnknown.
func (v *View) UnknownBindings() int { return v.unsure }

// BindingUnknownUpTo reports whether OrdersStored with these arguments would change anything.
func (v *View) BindingUnknownUpTo(nodeID string, index uint64) bool {
	if v.unsure == 0 {
		return false
	}
	for a := range v.NodeAllocs(nodeID) {
		if a.unsure() && a.OrderIndex <= index {
			return true
		}
	}
	return false
}

func values[K, V any](seq iter.Seq2[K, V]) iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, v := range seq {
			if !yield(v) {
				return
			}
		}
	}
}

// newestSlot updates the value that SlotsRevision returns.
func (v *View) newestSlot(slots []*Slot) {
	for _, s := range slots {
		if !s.Local {
			v.slotsRevision = max(v.slotsRevision, s.Revision)
		}
	}
}

// Charges returns a view that has only the nodes and their use. It can be compared with a
// later view (SameNodes, UsesSince). Unlike a whole view, it does not keep all allocations
// in memory.
func (v *View) Charges() *View {
	return &View{index: v.index, cluster: v.cluster, nodes: v.nodes, uses: v.uses}
}

// SameNodes reports whether no node was registered, changed or removed between two views of
// one state. It may also return false although nothing changed.
func (v *View) SameNodes(old *View) bool { return v.nodes.Same(&old.nodes) }

// UsesSince yields, in ascending order, the Num of every node whose use may differ from its
// use in an older view of the same state. It includes nodes that were added or removed
// since.
func (v *View) UsesSince(old *View) iter.Seq[uint32] {
	return v.uses.Since(&old.uses)
}
