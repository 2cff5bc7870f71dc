package state

// Alloc is one attempt of one instance on one node. There are a hundred thousand
// and more: what many of them have in common is held once, and promoted from
// there. A changed allocation is a copy, so what is shared is never written to.
type Alloc struct {
	ID string
	*Placement
	*NodeRef
	*Grants
	Seq uint64 // grows with each allocation of the region
	// Epoch and Generation of the slot together are the fencing epoch: later
	// attempts compare greater.
	Epoch       int64
	CreateIndex uint64
	// OrderIndex is the Raft index of the last change an agent has to know.
	OrderIndex       uint64
	ModifyIndex      uint64 // with Incarnation the order of orders
	CreatedUnixNano  int64
	ModifiedUnixNano int64
	RunningUnixNano  int64 // when it first reported running; 0 = never
	// UpUnixNano is since when every task is up; 0 = one is not.
	UpUnixNano    int64
	Reason        Reason
	Message       string
	PlacedBecause string
	Tasks         []byte // encoded task states, opaque
	Index         int32
	Restarts      int32 // of its tasks on its node
	Attempt       int32 // failed attempts of the instance before this one
	// Desired is Run or Stop; Stop once it has ended. An agent shall hold an
	// order for every allocation of its node until that is purged.
	Desired Desired
	State   AllocState
	// Disconnected is true while the node is lost: State is the last known.
	Disconnected bool
	// Proving: it replaced another version or a failed attempt, or its tasks had
	// to be restarted. It counts as starting, and holds a rollout up, until it
	// was up for a short while without a restart (sched.HealthyAfter).
	Proving bool
	// Moving is true while its node drains: it is to be moved away.
	Moving   bool
	Declined bool // the agent refused it; State is Failed
	// Charged is true while the node pays for it: until it has ended for sure,
	// also for a lost one whose node has not confirmed the end.
	Charged bool
}

// Key is the allocation's group.
func (a *Alloc) Key() GroupKey { return GroupKey{a.Namespace, a.Job, a.Group, a.Local} }

// Live says that the allocation has not ended.
func (a *Alloc) Live() bool { return !a.State.Terminal() }

// Serving says that it runs and has nothing to prove.
func (a *Alloc) Serving() bool { return a.State == Running && !a.Proving }

// DisplayState is the state people see: lost while the node is lost.
func (a *Alloc) DisplayState() AllocState {
	if a.Disconnected && a.Live() {
		return Lost
	}
	return a.State
}

// Placement is what allocations have in common that were placed in one generation
// of a slot. It is shared: never written to.
type Placement struct {
	gid       uint32 // of the group
	Namespace string
	Job       string
	Group     string
	Local     bool
	Dedicated bool
	// JobVersion is 0 for an instance of a forgotten job whose name and version
	// another job has now; the forgotten one is kept under it.
	JobVersion  int64
	GroupHash   uint64
	Run         int64 // of the slot, when it was placed
	Generation  int64
	Incarnation uint64
	Resources   Resources
}

// NodeRef is an allocation's node, by the name it had. It is shared: never written
// to.
type NodeRef struct {
	NodeID   string
	NodeName string
	NodeNum  uint32
}

// Grants are what an allocation was given of its node by name. Never written to.
type Grants struct {
	Ports []PortGrant
	GPUs  []GPUGrant
	Apart []string // tags: see Ask
}

// noGrants are those of most.
var noGrants = &Grants{}

func grants(ports []PortGrant, gpus []GPUGrant, apart []string) *Grants {
	if len(ports) == 0 && len(gpus) == 0 && len(apart) == 0 {
		return noGrants
	}
	return &Grants{ports, gpus, apart}
}

// AllocRecord is an Alloc as snapshots have it.
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
		PlacedBecause: a.PlacedBecause, Apart: a.Apart,
	}
}

// dedup finds what restored allocations have in common, so that each name and
// each reason is held in memory once.
type dedup struct {
	placements map[Placement]*Placement
	nodeRefs   map[NodeRef]*NodeRef
	reasons    map[string]string
}

func newDedup() dedup {
	return dedup{map[Placement]*Placement{}, map[NodeRef]*NodeRef{}, map[string]string{}}
}

// alloc is the inverse of Alloc.record, for an allocation of the group.
func (d *dedup) alloc(r *AllocRecord, of *group) *Alloc {
	g := &of.key
	return &Alloc{
		ID: r.ID, Seq: r.Seq, Index: r.Index,
		Placement: canonical(d.placements, Placement{
			gid:       of.gid,
			Namespace: g.Namespace, Job: g.Job, Group: g.Group, Local: g.Local, Dedicated: r.Dedicated,
			JobVersion: r.JobVersion, GroupHash: r.GroupHash, Run: r.Run, Generation: r.Generation,
			Incarnation: r.Incarnation, Resources: r.Resources,
		}),
		NodeRef: canonical(d.nodeRefs, NodeRef{r.NodeID, r.NodeName, r.NodeNum}),
		Grants:  grants(r.Ports, r.GPUs, r.Apart),
		Desired: r.Desired, State: r.State, Disconnected: r.Disconnected, Proving: r.Proving, UpUnixNano: r.UpUnixNano,
		Restarts: r.Restarts, Moving: r.Moving, Declined: r.Declined, Charged: r.Charged,
		Reason: r.Reason, Message: r.Message, Tasks: r.Tasks, Epoch: r.Epoch,
		CreateIndex: r.CreateIndex, OrderIndex: r.OrderIndex, ModifyIndex: r.ModifyIndex, Attempt: r.Attempt,
		CreatedUnixNano: r.CreatedUnixNano, ModifiedUnixNano: r.ModifiedUnixNano, RunningUnixNano: r.RunningUnixNano,
		PlacedBecause: d.reason(r.PlacedBecause),
	}
}

// maxReasons bounds the reasons that are looked up.
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

// sharePlacement returns a Placement that equals p: that of the group's latest
// allocation if it is equal, else p. The command must have touched the group.
func (g *group) sharePlacement(p Placement) *Placement {
	if g.placement == nil || *g.placement != p {
		g.placement = &p
	}
	return g.placement
}

// shareReason returns a string that equals why: that of the group's latest
// allocation if it is equal, as it mostly is. The command must have touched the
// group.
func (g *group) shareReason(why string) string {
	if g.why != why {
		g.why = why
	}
	return g.why
}
