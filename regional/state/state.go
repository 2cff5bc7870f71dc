package state

import (
	"cmp"
	"iter"
	"strings"

	"github.com/nusa-scheduler/nusa/regional/state/persist"
)

// State is the writable state. Not for concurrent use. Reads through its embedded
// View see the latest Apply.
type State struct {
	View
	own *persist.Owner
	// commands counts the commands, so that the last one that touched a group is known.
	commands uint64
	touched  []*group // by the latest command; its array is reused
}

// View is an immutable state that any goroutine may read.
type View struct {
	index   uint64
	cluster Cluster
	nextSeq uint64
	nextNum uint32
	nextGID uint32

	nodes   persist.Tree[str, *Node]
	uses    persist.Array[use]      // by Node.Num, one for each node
	reports persist.Array[Position] // by Node.Num
	jobs    persist.Tree[JobKey, *jobEntry]
	groups  persist.Array[group]               // by gid
	ids     persist.Array[persist.List[idRef]] // by bucket
	// ended are the allocations that Purge may remove, oldest first.
	ended     persist.Tree[endedKey, allocKey]
	undecided persist.Tree[rank, struct{}]
	keys      persist.Tree[str, *KeyRecord]

	localJobs int // how many of the jobs are the region's own
	// slotsRevision is the greatest revision of a slot of the global tier so far.
	slotsRevision int64

	byState   [8]int
	allocated Resources
}

// group is a group with the counts over its instances.
type group struct {
	own      *persist.Owner
	gid      uint32
	key      GroupKey
	slots    []*Slot // replaced, never written to
	typ      JobType
	priority int32
	modify   uint64
	touched  uint64 // number of the owner's command that touched it

	wanted    int32      // indices to run here
	recorded  int32      // how many of these have an inst
	unsteady  int32      // insts that may need a decision
	outdated  int32      // instances that start or run in another version
	allocs    int32      // ended ones included
	placement *Placement // of the latest allocation, as is why
	why       string
	byState   [8]int32

	insts insts
}

// use holds the resources and allocations that a node is charged for.
type use struct {
	own  *persist.Owner
	node *NodeRef // for new allocations
	// allocs are the node's allocations by seq, ended ones included.
	allocs persist.List[allocKey]
	Use
}

type str string

func (a str) Compare(b str) int { return strings.Compare(string(a), string(b)) }

// Compare orders jobs by namespace and name; a region's own job comes after the
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

// allocKey locates an allocation.
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

// rank orders groups for planning: highest priority first, then oldest.
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

// Fork returns an independent writable state that starts as the view, in constant time.
// A sequencer uses it to run ahead of the log, and a dry run to try commands. The view
// must come from Snapshot; fork a State by s.Snapshot().Fork().
func (v *View) Fork() *State { return &State{View: *v, own: &persist.Owner{}} }

// Index returns the index of the last command applied.
func (v *View) Index() uint64 { return v.index }

// Cluster returns the cluster and region of the log.
func (v *View) Cluster() Cluster { return v.cluster }

// Node finds a node by id.
func (v *View) Node(id string) (*Node, bool) { return v.nodes.Get(str(id)) }

// Nodes yields all nodes by id.
func (v *View) Nodes() iter.Seq[*Node] { return values(v.nodes.All()) }

// NodesInUse yields all nodes by id with their Use, which must not be written to.
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

// SlotsRevision returns the greatest revision of a slot of the global tier that this
// state, or the snapshot that it came from, has held.
func (v *View) SlotsRevision() int64 { return v.slotsRevision }

// NodeCount returns the number of nodes.
func (v *View) NodeCount() int { return v.nodes.Len() }

// Use returns the resources that a node is charged for; the zero value for an unknown
// node. Its slices must not be written to.
func (v *View) Use(nodeID string) Use {
	if n, ok := v.Node(nodeID); ok {
		return v.useOf(n.Num)
	}
	return Use{}
}

// UseOf is Use by the node's Num.
func (v *View) UseOf(num uint32) Use { return v.useOf(num) }

func (v *View) useOf(num uint32) Use {
	if u, ok := v.uses.Get(num); ok {
		return u.Use
	}
	return Use{}
}

// NodeAllocs yields the allocations of a node by Seq, ended ones included.
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

// AllocCounts returns the number of allocations (attempts) by state; the index is the
// AllocState.
func (v *View) AllocCounts() [8]int { return v.byState }

// Allocated returns the sum of the resources that all nodes are charged for.
func (v *View) Allocated() Resources { return v.allocated }

func values[K, V any](seq iter.Seq2[K, V]) iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, v := range seq {
			if !yield(v) {
				return
			}
		}
	}
}

// newestSlot updates the value of SlotsRevision.
func (v *View) newestSlot(slots []*Slot) {
	for _, s := range slots {
		if !s.Local {
			v.slotsRevision = max(v.slotsRevision, s.Revision)
		}
	}
}

// Charges returns a view that has only the nodes and their use. It can be compared with
// a later view (SameNodes, UsesSince), and it does not keep all allocations in memory,
// as a whole view would.
func (v *View) Charges() *View {
	return &View{index: v.index, cluster: v.cluster, nodes: v.nodes, uses: v.uses}
}

// SameNodes reports whether no node was registered, changed or removed between two
// views of one state. It may also return false when nothing changed.
func (v *View) SameNodes(old *View) bool { return v.nodes.Same(&old.nodes) }

// UsesSince yields the Num of every node whose use may differ from that in an older
// view of the same state, ascending. Nodes that were added or removed since are
// among them.
func (v *View) UsesSince(old *View) iter.Seq[uint32] {
	return v.uses.Since(&old.uses)
}
