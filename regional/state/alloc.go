package state

// Alloc is one attempt of one instance on one node. A region may have more than a hundred
// thousand allocations. So values that many of them share are stored once, and the embedded
// pointers refer to them. A changed allocation is a copy. Shared values are never changed.
type Alloc struct {
	ID string
	*Placement
	*NodeRef
	*Grants
	Seq uint64 // grows with each allocation of the region
	// Epoch, together with the Generation of the slot, is the fencing epoch. A later
	// attempt has a greater one.
	Epoch       int64
	CreateIndex uint64
	// OrderIndex is the Raft index of the last change that the agent must know.
	OrderIndex       uint64
	ModifyIndex      uint64 // versions of an allocation are ordered by (Incarnation, ModifyIndex)
	CreatedUnixNano  int64
	ModifiedUnixNano int64
	RunningUnixNano  int64 // when it was first reported running; 0: never
	// UpUnixNano is the time since which every task has been up. 0: some task is not up.
	UpUnixNano    int64
	Reason        Reason
	Message       string
	PlacedBecause string
	Tasks         []byte // encoded task states; the state does not read them
	Index         int32
	Restarts      int32 // how often tasks were restarted on this node
	Attempt       int32 // how many attempts of the instance failed before this one
	// Desired is Run or Stop. It is Stop once the allocation has ended. An agent keeps an
	// order for every allocation of its node until the allocation is purged.
	Desired Desired
	State   AllocState
	// Disconnected is true while the node is lost or has left. State is then the last
	// reported state.
	Disconnected bool
	// Proving is true for an allocation that replaced another version or a failed attempt,
	// and for one whose tasks were restarted. Such an allocation counts as starting, and a
	// rollout waits for it, until it has been up for Group.HealthyAfter without a restart.
	Proving bool
	// Moving is true while the node is being drained: the instance must move to another
	// node.
	Moving   bool
	Declined bool // the agent refused it; State is Failed
	// Charged is true while the allocation's resources count as used on the node: until its
	// end is certain. A lost allocation stays charged until its node confirms the end.
	Charged bool
	// Limits says what became of the latest ResizeAlloc. 0: there was none.
	Limits Limits
}

// Key returns the allocation's group.
func (a *Alloc) Key() GroupKey { return GroupKey{a.Namespace, a.Job, a.Group, a.Local} }

// Binding returns the leases that certainly bind the allocation. g is its group in the
// version of the allocation.
func (a *Alloc) Binding(g *Group) Binding {
	if a.BindingUnknown {
		return BindNone
	}
	return g.Binding(a.Local)
}

// unsure reports whether it matters that the allocation's binding is unknown: while
// the allocation may run.
func (a *Alloc) unsure() bool { return a.BindingUnknown && a.Charged }

// Live reports whether the allocation has not ended.
func (a *Alloc) Live() bool { return !a.State.Terminal() }

// Serving reports whether the allocation runs and is not Proving.
func (a *Alloc) Serving() bool { return a.State == Running && !a.Proving }

// DisplayState returns the state that users see. A live allocation is shown as lost while
// its node is.
func (a *Alloc) DisplayState() AllocState {
	if a.Disconnected && a.Live() {
		return Lost
	}
	return a.State
}

// Placement holds the fields that are equal for all allocations that were placed in one
// generation of a slot. It is never changed.
type Placement struct {
	gid       uint32 // internal number of the group
	Namespace string
	Job       string
	Group     string
	Local     bool
	Dedicated bool
	// JobVersion is at most 0 for an allocation of an old specification if another one now has
	// the same name and version. The old specification is then stored as that version.
	JobVersion  int64
	GroupHash   uint64
	Run         int64 // the slot's run when the allocation was placed
	Generation  int64
	Incarnation uint64
	Resources   Resources
	// BindingUnknown is true while the agent may have only the order of an earlier version of
	// the job, which other leases bind. No lease then certainly ends the allocation.
	BindingUnknown bool
	// Resized is true once a ResizeAlloc changed the allocation.
	Resized bool
}

// NodeRef names an allocation's node, by the name that the node had when the allocation was
// placed. It is shared and never changed.
type NodeRef struct {
	NodeID   string
	NodeName string
	NodeNum  uint32
}

// Grants are the ports and devices that an allocation got on its node, and its tags. They
// are shared and never changed.
type Grants struct {
	Ports []PortGrant
	GPUs  []GPUGrant
	Apart []string // tags: see Ask
}

// noGrants is shared by all allocations without grants. Most allocations have none.
var noGrants = &Grants{}

func grants(ports []PortGrant, gpus []GPUGrant, apart []string) *Grants {
	if len(ports) == 0 && len(gpus) == 0 && len(apart) == 0 {
		return noGrants
	}
	return &Grants{ports, gpus, apart}
}

// AllocRecord is the form of an Alloc in a snapshot.
type AllocRecord struct {
	ID               string
	Seq              uint64
	Namespace        string
	Job              string
	Group            string
	Local            bool
	Index            int32
	NodeID           string
	NodeName         string
	NodeNum          uint32
	JobVersion       int64
	GroupHash        uint64
	Run              int64
	Desired          Desired
	State            AllocState
	Disconnected     bool
	Proving          bool
	UpUnixNano       int64
	Restarts         int32
	Moving           bool
	Declined         bool
	Charged          bool
	Reason           Reason
	Message          string
	Tasks            []byte
	Generation       int64
	Epoch            int64
	Incarnation      uint64
	CreateIndex      uint64
	OrderIndex       uint64
	ModifyIndex      uint64
	Attempt          int32
	Resources        Resources
	Dedicated        bool
	Ports            []PortGrant
	GPUs             []GPUGrant
	CreatedUnixNano  int64
	ModifiedUnixNano int64
	RunningUnixNano  int64
	PlacedBecause    string
	Apart            []string
	BindingUnknown   bool
	Resized          bool
	Limits           Limits
}

func (a *Alloc) record() AllocRecord {
	return AllocRecord{
		ID: a.ID, Seq: a.Seq, Namespace: a.Namespace, Job: a.Job, Group: a.Group, Local: a.Local, Index: a.Index,
		NodeID: a.NodeID, NodeName: a.NodeName, NodeNum: a.NodeNum,
		JobVersion: a.JobVersion, GroupHash: a.GroupHash, Run: a.Run,
		Desired: a.Desired, State: a.State, Disconnected: a.Disconnected, Proving: a.Proving, UpUnixNano: a.UpUnixNano,
		Restarts: a.Restarts, Moving: a.Moving, Declined: a.Declined, Charged: a.Charged,
		Reason: a.Reason, Message: a.Message, Tasks: a.Tasks,
		Generation: a.Generation, Epoch: a.Epoch, Incarnation: a.Incarnation,
		CreateIndex: a.CreateIndex, OrderIndex: a.OrderIndex, ModifyIndex: a.ModifyIndex, Attempt: a.Attempt,
		Resources: a.Resources, Dedicated: a.Dedicated, Ports: a.Ports, GPUs: a.GPUs,
		CreatedUnixNano: a.CreatedUnixNano, ModifiedUnixNano: a.ModifiedUnixNano, RunningUnixNano: a.RunningUnixNano,
		PlacedBecause: a.PlacedBecause, Apart: a.Apart, BindingUnknown: a.BindingUnknown,
		Resized: a.Resized, Limits: a.Limits,
	}
}

// dedup finds equal values in restored allocations, so that each equal value is in memory
// only once.
type dedup struct {
	placements map[Placement]*Placement
	nodeRefs   map[NodeRef]*NodeRef
	reasons    map[string]string
}

func newDedup() dedup {
	return dedup{map[Placement]*Placement{}, map[NodeRef]*NodeRef{}, map[string]string{}}
}

// alloc is the inverse of Alloc.record. of is the group of the allocation.
func (d *dedup) alloc(r *AllocRecord, of *group) *Alloc {
	g := &of.key
	return &Alloc{
		ID: r.ID, Seq: r.Seq, Index: r.Index,
		Placement: canonical(d.placements, Placement{
			gid:       of.gid,
			Namespace: g.Namespace, Job: g.Job, Group: g.Group, Local: g.Local, Dedicated: r.Dedicated,
			JobVersion: r.JobVersion, GroupHash: r.GroupHash, Run: r.Run, Generation: r.Generation,
			Incarnation: r.Incarnation, Resources: r.Resources, BindingUnknown: r.BindingUnknown, Resized: r.Resized,
		}),
		NodeRef: canonical(d.nodeRefs, NodeRef{r.NodeID, r.NodeName, r.NodeNum}),
		Grants:  grants(r.Ports, r.GPUs, r.Apart),
		Desired: r.Desired, State: r.State, Disconnected: r.Disconnected, Proving: r.Proving, UpUnixNano: r.UpUnixNano,
		Restarts: r.Restarts, Moving: r.Moving, Declined: r.Declined, Charged: r.Charged,
		Reason: r.Reason, Message: r.Message, Tasks: r.Tasks, Epoch: r.Epoch,
		CreateIndex: r.CreateIndex, OrderIndex: r.OrderIndex, ModifyIndex: r.ModifyIndex, Attempt: r.Attempt,
		CreatedUnixNano: r.CreatedUnixNano, ModifiedUnixNano: r.ModifiedUnixNano, RunningUnixNano: r.RunningUnixNano,
		PlacedBecause: d.reason(r.PlacedBecause), Limits: r.Limits,
	}
}

// maxReasons bounds the reasons that dedup remembers.
const maxReasons = 4096

func (d *dedup) reason(why string) string {
	if have, ok := d.reasons[why]; ok {
		return have
	}
	if len(d.reasons) < maxReasons {
		d.reasons[why] = why
	}
	return why
}

func canonical[T comparable](all map[T]*T, v T) *T {
	if have, ok := all[v]; ok {
		return have
	}
	all[v] = &v
	return &v
}

// sharePlacement returns a Placement that equals p. It returns the Placement of the group's
// latest allocation if that one is equal. The command must have touched the group.
func (g *group) sharePlacement(p Placement) *Placement {
	if g.placement == nil || *g.placement != p {
		g.placement = &p
	}
	return g.placement
}

// shareReason returns a string that equals why. It returns the string of the group's latest
// allocation if that one is equal, which is the usual case. The command must have touched
// the group.
func (g *group) shareReason(why string) string {
	if g.why != why {
		g.why = why
	}
	return g.why
}
