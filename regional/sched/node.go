package sched

import (
	"cmp"
	"iter"
	"slices"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// node is a node with what is still free on it while a plan grows.
type node struct {
	*state.Node
	pos   int32 // in the table: nodes by id
	stamp uint32
	free  state.Resources
	// allocs it is charged for.
	allocs int32
	ports  []int32  // in use, sorted
	gpu    []int32  // used thousandths of each device
	apart  []string // tags that are taken, sorted; never written to
	// dedicated allocations it holds, all of dedicatedJob.
	dedicated    int32
	dedicatedJob state.JobKey
	// planned are the jobs that this plan puts here, each once in a row.
	planned []state.JobKey
	// checked is the number of the update that looked at it last.
	checked uint64
	// newest is when something was put here last, of what is still here; 0 = to
	// be looked up.
	newest int64
	// ownPorts and ownGPU: the slices are copies of the view's.
	ownPorts, ownGPU bool
}

// table are all nodes of the region, by id.
type table struct {
	view  *state.View
	nodes []node
	byNum map[uint32]int32
	// dedicatedJobs counts the nodes that each job has dedicated allocations on;
	// jobs without any are not there.
	dedicatedJobs map[state.JobKey]int
	// changed lists the positions of nodes on which something is free, or used,
	// that was not before, in order: whoever keeps an index over nodes catches up
	// with it.
	changed []int32
	// kept are the nodes that the plan in the making keeps.
	kept []ReservedNode
	// settled is how much of changed is older than the plan in the making, and
	// updates how many views there were.
	settled int
	updates uint64
}

func newTable(view *state.View) *table {
	t := &table{
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

// present are the nodes that did not leave.
func (t *table) present() iter.Seq[*node] {
	return func(yield func(*node) bool) {
		for i := range t.nodes {
			if n := &t.nodes[i]; n.Status != state.NodeLeft && !yield(n) {
				return
			}
		}
	}
}

// position finds a node by id.
func (t *table) position(id string) (int32, bool) {
	n, ok := t.view.Node(id)
	if !ok {
		return 0, false
	}
	pos, ok := t.byNum[n.Num]
	return pos, ok
}

// update brings the table from the view, and the plan, before to the present
// view, which has the same nodes.
func (t *table) update(view *state.View) {
	touched := t.changed[t.settled:]
	old := t.view
	t.view = view
	t.updates++
	for num := range view.UsesSince(old) {
		if pos, ok := t.byNum[num]; ok {
			t.look(&t.nodes[pos])
		}
	}
	for _, pos := range touched { // of a plan that was not carried out
		t.look(&t.nodes[pos])
	}
	t.settled = len(t.changed)
}

// look compares a node with the view. It differs from what was planned if the
// plan did not come true, or something else did.
func (t *table) look(n *node) {
	if n.checked == t.updates {
		return
	}
	n.checked = t.updates
	u := t.view.UseOf(n.Num)
	free := n.Capacity.Sub(u.Resources)
	// Only this plan adds allocations, so as many as it meant are those it meant.
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

// take charges a node for one more instance.
func (t *table) take(n *node, ask *state.Ask, job state.JobKey, ports []state.PortGrant, gpus []state.GPUGrant) {
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

// dedicate notes how many dedicated allocations a node holds, and whose.
func (t *table) dedicate(n *node, count int32, job state.JobKey) {
	if n.dedicated > 0 {
		if t.dedicatedJobs[n.dedicatedJob]--; t.dedicatedJobs[n.dedicatedJob] == 0 {
			delete(t.dedicatedJobs, n.dedicatedJob)
		}
	}
	n.dedicated, n.dedicatedJob = count, job
	if count > 0 {
		t.dedicatedJobs[job]++
	}
}

// shared says that another job has something on the node.
func (t *table) shared(n *node, job state.JobKey) bool {
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

// taken is the first of some tags that something on the node has; empty if there
// is none.
func (n *node) taken(tags []string) string {
	for _, tag := range tags {
		if _, found := slices.BinarySearch(n.apart, tag); found {
			return tag
		}
	}
	return ""
}

// freePort says that a host port is not in use.
func (n *node) freePort(port int32) bool {
	_, used := slices.BinarySearch(n.ports, port)
	return !used
}

// dynamicFree is how many ports of the node's dynamic range are free.
func (n *node) dynamicFree() int {
	if n.PortMax < n.PortMin || n.PortMax == 0 {
		return 0
	}
	lo, _ := slices.BinarySearch(n.ports, n.PortMin)
	hi, _ := slices.BinarySearch(n.ports, n.PortMax+1)
	return int(n.PortMax-n.PortMin) + 1 - (hi - lo)
}

// givePorts chooses host ports. Dynamic ones are searched upward from a place
// that start picks, so that a port that was just freed is not the next one
// given. The node must have passed the filters.
func (n *node) givePorts(asks []state.PortAsk, start uint64) []state.PortGrant {
	if len(asks) == 0 {
		return nil
	}
	out := make([]state.PortGrant, len(asks))
	taken := func(port int32) bool {
		return !n.freePort(port) || slices.ContainsFunc(out, func(g state.PortGrant) bool { return g.Port == port })
	}
	for i, a := range asks {
		out[i] = state.PortGrant{Label: a.Label, Port: a.Static}
	}
	span := uint64(n.PortMax-n.PortMin) + 1
	for i, a := range asks {
		if a.Static != 0 {
			continue
		}
		for off := range span {
			if port := n.PortMin + int32((start+off)%span); !taken(port) {
				out[i].Port = port
				start += off + 1
				break
			}
		}
	}
	return out
}

// gpuUnit is a whole device or a part of one.
type gpuUnit struct {
	milli  int32
	models []string
}

// gpuUnits splits asks into devices, the most demanding first.
func gpuUnits(asks []state.GPUAsk) []gpuUnit {
	var units []gpuUnit
	for _, a := range asks {
		switch {
		case a.Count <= 1 && a.ShareMilli > 0 && a.ShareMilli < 1000:
			units = append(units, gpuUnit{a.ShareMilli, a.Models})
		case a.Count == 0 && a.ShareMilli >= 1000:
			units = append(units, gpuUnit{1000, a.Models})
		default:
			for range a.Count {
				units = append(units, gpuUnit{1000, a.Models})
			}
		}
	}
	slices.SortStableFunc(units, func(a, b gpuUnit) int {
		if a.milli != b.milli {
			return cmp.Compare(b.milli, a.milli)
		}
		return cmp.Compare(len(b.models), len(a.models))
	})
	return units
}

// maxGPUSteps bounds the search for devices on one node. Equal devices are
// tried once, so it binds only on machines with dozens of unlike devices.
const maxGPUSteps = 10_000

// giveGPUs chooses devices: a part goes to the fullest device that still has
// room, so that whole ones stay whole. False when they do not fit.
func giveGPUs(devices []state.GPU, used []int32, units []gpuUnit) ([]state.GPUGrant, bool) {
	if len(units) == 0 {
		return nil, true
	}
	s := gpuSearch{devices: devices, used: slices.Clone(used), left: maxGPUSteps}
	if !s.place(units) {
		return nil, false
	}
	return s.grants, true
}

type gpuSearch struct {
	devices []state.GPU
	used    []int32
	grants  []state.GPUGrant
	left    int
}

func (s *gpuSearch) place(units []gpuUnit) bool {
	if len(units) == 0 {
		return true
	}
	u := units[0]
	var order []int
	for i, d := range s.devices {
		if s.used[i]+u.milli <= 1000 && (len(u.models) == 0 || slices.Contains(u.models, d.Model)) {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(s.used[b], s.used[a]) })
	tried := map[state.GPU]bool{}
	for _, i := range order {
		kind := state.GPU{Model: s.devices[i].Model, MemoryBytes: int64(s.used[i])}
		if tried[kind] || s.left == 0 {
			continue
		}
		tried[kind] = true
		s.left--
		s.used[i] += u.milli
		s.grants = append(s.grants, state.GPUGrant{Device: s.devices[i].ID, ShareMilli: u.milli})
		if s.place(units[1:]) {
			return true
		}
		s.grants = s.grants[:len(s.grants)-1]
		s.used[i] -= u.milli
	}
	return false
}
