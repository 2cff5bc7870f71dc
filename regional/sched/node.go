package sched

import (
	"iter"
	"slices"

	"github.com/nusa-scheduler/nusa/regional/pools"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// node is a node of the region with its free resources. They shrink while the plan grows.
type node struct {
	*state.Node
	pos int32 // index in the table; the table is sorted by id
	// stamp grows with every change of the free resources, and of load.
	stamp uint32
	free  state.Resources
	load  pools.NodeLoad // what the score weighs besides resources
	// allocs is how many allocations the node is charged for.
	allocs int32
	ports  []int32  // in use, sorted
	gpu    []int32  // used thousandths of each device
	apart  []string // tags in use, sorted; never changed in place
	// dedicated counts the dedicated allocations on the node. All of them belong to
	// dedicatedJob.
	dedicated    int32
	dedicatedJob state.JobKey
	// planned are the jobs that this plan places on the node. Repeats in a row are listed
	// once.
	planned []state.JobKey
	// checked is the number of the latest update that compared the node with the view.
	checked uint64
	// newest is when the newest of the node's allocations was placed. 0: not looked up yet.
	newest int64
	// ownPorts and ownGPU are true when ports and gpu are copies of the view's slices.
	ownPorts, ownGPU bool
}

// nodeTable holds all nodes of the region, sorted by id.
type nodeTable struct {
	view  *state.View
	nodes []node
	load  *pools.Load // from which the nodes have theirs
	byNum map[uint32]int32
	// dedicatedJobs counts, for each job, the nodes on which it has dedicated allocations.
	// Other jobs are missing.
	dedicatedJobs map[state.JobKey]int
	// changed lists the positions of nodes in the order in which they changed. A ranking
	// reads from it the changes that it has not processed.
	changed []int32
	// reserved are the nodes that the present plan reserves.
	reserved []ReservedNode
	// beforePlan is the length of changed before the present plan. updates counts the calls
	// of update.
	beforePlan int
	updates    uint64
}

func newNodeTable(view *state.View) *nodeTable {
	t := &nodeTable{
		view: view, nodes: make([]node, 0, view.NodeCount()),
		byNum: make(map[uint32]int32, view.NodeCount()), dedicatedJobs: map[state.JobKey]int{},
	}
	for n, u := range view.NodesInUse() {
		pos := int32(len(t.nodes))
		t.byNum[n.Num] = pos
		t.nodes = append(t.nodes, node{
			Node: n, pos: pos, free: n.Capacity.Sub(u.Resources), allocs: u.Allocs,
			ports: u.Ports, gpu: u.GPUMilli, apart: u.Apart,
		})
		t.dedicate(&t.nodes[pos], u.Dedicated, u.DedicatedJob)
	}
	return t
}

// weigh gives each node its part of a load. If the load is the one that the nodes have, it does nothing.
func (t *nodeTable) weigh(load *pools.Load) {
	if load == t.load {
		return
	}
	t.load = load
	for i := range t.nodes {
		n := &t.nodes[i]
		if next := load.Of(n.Node); next != n.load {
			n.load = next
			n.stamp++
			t.changed = append(t.changed, n.pos)
		}
	}
	t.beforePlan = len(t.changed)
}

// present yields the nodes that have not left.
func (t *nodeTable) present() iter.Seq[*node] {
	return func(yield func(*node) bool) {
		for i := range t.nodes {
			if n := &t.nodes[i]; n.Status != state.NodeLeft && !yield(n) {
				return
			}
		}
	}
}

// position returns the position of the node with an id.
func (t *nodeTable) position(id string) (int32, bool) {
	n, ok := t.view.Node(id)
	if !ok {
		return 0, false
	}
	pos, ok := t.byNum[n.Num]
	return pos, ok
}

// update changes the table from the previous view and plan to the present view. The present
// view must have the same nodes.
func (t *nodeTable) update(view *state.View) {
	touched := t.changed[t.beforePlan:]
	old := t.view
	t.view = view
	t.updates++
	for num := range view.UsesSince(old) {
		if pos, ok := t.byNum[num]; ok {
			t.refresh(&t.nodes[pos])
		}
	}
	for _, pos := range touched { // their placements may not have been applied
		t.refresh(&t.nodes[pos])
	}
	t.beforePlan = len(t.changed)
}

// refresh compares a node with the view. They differ if the plan was not applied, or if
// another command changed the node.
func (t *nodeTable) refresh(n *node) {
	if n.checked == t.updates {
		return
	}
	n.checked = t.updates
	u := t.view.UseOf(n.Num)
	free := n.Capacity.Sub(u.Resources)
	// Only plans add allocations. So an equal number of allocations means the same
	// allocations.
	same := len(n.planned) > 0 && n.free == free && n.allocs == u.Allocs && n.dedicated == u.Dedicated && n.dedicatedJob == u.DedicatedJob &&
		slices.Equal(n.ports, u.Ports) && slices.Equal(n.gpu, u.GPUMilli) && slices.Equal(n.apart, u.Apart)
	n.free, n.allocs = free, u.Allocs
	t.dedicate(n, u.Dedicated, u.DedicatedJob)
	n.ports, n.gpu, n.ownPorts, n.ownGPU, n.apart = u.Ports, u.GPUMilli, false, false, u.Apart
	n.planned, n.newest = n.planned[:0], 0
	if !same {
		n.stamp++
		t.changed = append(t.changed, n.pos)
	}
}

// grow charges a node for a change of the resources of an instance.
func (t *nodeTable) grow(n *node, more state.Resources) {
	n.stamp++
	n.free = n.free.Sub(more)
	t.changed = append(t.changed, n.pos)
}

// charge charges a node for one more instance.
func (t *nodeTable) charge(n *node, ask *state.Ask, job state.JobKey, ports []state.PortGrant, gpus []state.GPUGrant) {
	n.stamp++
	n.free = n.free.Sub(ask.Resources)
	n.allocs++
	if len(ports) > 0 {
		if !n.ownPorts {
			n.ports, n.ownPorts = slices.Clone(n.ports), true
		}
		for _, p := range ports {
			i, _ := slices.BinarySearch(n.ports, p.Port)
			n.ports = slices.Insert(n.ports, i, p.Port)
		}
	}
	if len(gpus) > 0 {
		if !n.ownGPU {
			n.gpu, n.ownGPU = slices.Clone(n.gpu), true
		}
		for _, g := range gpus {
			i := slices.IndexFunc(n.GPUs, func(d state.GPU) bool { return d.ID == g.Device })
			n.gpu[i] += g.ShareMilli
		}
	}
	if len(ask.Apart) > 0 {
		n.apart = slices.Sorted(slices.Values(slices.Concat(n.apart, ask.Apart)))
	}
	if ask.Dedicated {
		t.dedicate(n, n.dedicated+1, job)
	}
	if k := len(n.planned); k == 0 || n.planned[k-1] != job {
		n.planned = append(n.planned, job)
	}
	t.changed = append(t.changed, n.pos)
}

// dedicate sets the number of dedicated allocations on a node, and their job.
func (t *nodeTable) dedicate(n *node, count int32, job state.JobKey) {
	if n.dedicated > 0 {
		t.dedicatedJobs[n.dedicatedJob]--
		if t.dedicatedJobs[n.dedicatedJob] == 0 {
			delete(t.dedicatedJobs, n.dedicatedJob)
		}
	}
	n.dedicated, n.dedicatedJob = count, job
	if count > 0 {
		t.dedicatedJobs[job]++
	}
}

// shared reports whether another job has an allocation on the node.
func (t *nodeTable) shared(n *node, job state.JobKey) bool {
	if n.allocs == 0 {
		return false
	}
	for _, k := range n.planned {
		if k != job {
			return true
		}
	}
	return t.view.SharedWith(n.Node, job)
}

// reservedFor returns the reservation of a node, or nil if the node is not reserved.
func (t *nodeTable) reservedFor(pos int32) *ReservedNode {
	for i := range t.reserved {
		if t.reserved[i].pos == pos {
			return &t.reserved[i]
		}
	}
	return nil
}

// placedAfter reports whether a node has an allocation that was placed after a given time.
func (t *nodeTable) placedAfter(n *node, unixNano, now int64) bool {
	if n.newest == 0 {
		for a := range t.view.NodeAllocs(n.ID) {
			if a.Charged {
				n.newest = max(n.newest, a.CreatedUnixNano)
			}
		}
	}
	return n.newest > unixNano || len(n.planned) > 0 && now > unixNano
}

// tagInUse returns the first of the tags that an allocation on the node has, or "".
func (n *node) tagInUse(tags []string) string {
	for _, tag := range tags {
		if _, found := slices.BinarySearch(n.apart, tag); found {
			return tag
		}
	}
	return ""
}

// emptied returns the node as it would be if nothing ran on it.
func (n *node) emptied() *node {
	return &node{Node: n.Node, pos: n.pos, free: n.Capacity, gpu: make([]int32, len(n.GPUs))}
}

// without returns the node as it would be without one of its allocations.
func (n *node) without(a *state.Alloc) *node {
	m := *n
	m.free = n.free.Add(a.Resources)
	m.allocs--
	m.ports = slices.DeleteFunc(slices.Clone(n.ports), func(port int32) bool {
		return slices.ContainsFunc(a.Ports, func(g state.PortGrant) bool { return g.Port == port })
	})
	m.gpu = slices.Clone(n.gpu)
	for _, g := range a.GPUs {
		if i := slices.IndexFunc(n.GPUs, func(d state.GPU) bool { return d.ID == g.Device }); i >= 0 {
			m.gpu[i] -= g.ShareMilli
		}
	}
	m.apart = slices.DeleteFunc(slices.Clone(n.apart), func(tag string) bool { return slices.Contains(a.Apart, tag) })
	if a.Dedicated {
		m.dedicated--
	}
	return &m
}
