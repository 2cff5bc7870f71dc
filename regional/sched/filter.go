package sched

import (
	"slices"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// filter decides whether a node can take an instance of an ask. It holds the properties of
// the ask that are constant during a plan. Groups with equal asks share one filter.
type filter struct {
	ask    *state.Ask
	job    state.JobKey
	static int       // how many of the ask's ports are static
	units  []gpuUnit // the devices that the ask needs
	funcs  Funcs
	table  *nodeTable
}

func newFilter(t *nodeTable, funcs Funcs, ask *state.Ask, job state.JobKey) *filter {
	f := &filter{ask: ask, job: job, funcs: funcs, table: t, units: gpuUnits(ask.GPUs)}
	for _, p := range ask.Ports {
		if p.Static != 0 {
			f.static++
		}
	}
	return f
}

// refuse returns why a node cannot take one more instance. It is empty if the node can.
func (f *filter) refuse(n *node) state.Reason {
	if r := refuseStatus(n); r != "" {
		return r
	}
	if r := f.refuseKind(n); r != "" {
		return r
	}
	return f.refuseRoom(n)
}

// refuseStatus checks whether the node is silent and whether an operator keeps work off it.
func refuseStatus(n *node) state.Reason {
	switch {
	case n.Status != state.NodeReady:
		return state.ReasonNodeLost
	case n.Draining:
		return state.ReasonNodeDraining
	case n.Cordoned:
		return state.ReasonNodeCordoned
	case n.ControlPlane:
		return state.ReasonControlPlaneHost
	}
	return ""
}

// refuseKind checks properties of the node that do not change with its load.
func (f *filter) refuseKind(n *node) state.Reason {
	if n.Pool != f.ask.Pool {
		return state.ReasonPoolMismatch
	}
	for i := range f.ask.Drivers {
		d := &f.ask.Drivers[i]
		at := slices.IndexFunc(n.Drivers, func(have state.Driver) bool { return have.Name == d.Name })
		if at < 0 || !n.Drivers[at].Healthy {
			return state.ReasonDriverMissing
		}
		for _, need := range d.Capabilities {
			if !slices.Contains(n.Drivers[at].Capabilities, need) {
				return state.ReasonCapabilityMissing
			}
		}
	}
	for _, expr := range f.ask.Constraints {
		if ok, err := f.funcs.Match(expr, n.Node); err != nil || !ok {
			return state.ReasonConstraint
		}
	}
	for _, v := range f.ask.Volumes {
		if !n.Allows(v) {
			return state.ReasonNotAllowed
		}
	}
	return ""
}

// refuseKindOrHost is like refuseKind, but also refuses hosts of the control plane. So it
// returns why a node is not feasible, however much is free on it.
func (f *filter) refuseKindOrHost(n *node) state.Reason {
	if n.ControlPlane {
		return state.ReasonControlPlaneHost
	}
	return f.refuseKind(n)
}

// refuseRoom checks what is free on the node.
func (f *filter) refuseRoom(n *node) state.Reason {
	ask := f.ask
	switch {
	case n.dedicated > 0 && n.dedicatedJob != f.job,
		ask.Dedicated && f.table.shared(n, f.job):
		return state.ReasonDedicated
	case len(ask.Apart) > 0 && n.tagInUse(ask.Apart) != "":
		return state.ReasonKeptApart
	}
	if r := f.shortOf(n.free); r != "" {
		return r
	}
	if n.allocs >= n.MaxAllocs() {
		return state.ReasonInstanceQuota
	}
	if len(f.units) > 0 {
		if _, ok := giveGPUs(n.GPUs, n.gpu, f.units); !ok {
			return state.ReasonInsufficientGPU
		}
	}
	if len(ask.Ports) > 0 {
		return f.refusePorts(n)
	}
	return ""
}

// shortOf returns the reason for the first resource that is insufficient.
func (f *filter) shortOf(free state.Resources) state.Reason {
	need := &f.ask.Resources
	switch {
	case need.CPUMilli > free.CPUMilli:
		return state.ReasonInsufficientCPU
	case need.MemoryBytes > free.MemoryBytes:
		return state.ReasonInsufficientMemory
	case need.DiskBytes > free.DiskBytes:
		return state.ReasonInsufficientDisk
	}
	return ""
}

func (f *filter) refusePorts(n *node) state.Reason {
	for i, p := range f.ask.Ports {
		if p.Static == 0 {
			continue
		}
		twice := slices.ContainsFunc(f.ask.Ports[:i], func(o state.PortAsk) bool { return o.Static == p.Static })
		if twice || !n.freePort(p.Static) {
			return state.ReasonPortConflict
		}
	}
	if dynamic := len(f.ask.Ports) - f.static; dynamic > 0 && f.dynamicLeft(n) < dynamic {
		return state.ReasonPortsExhausted
	}
	return ""
}

// dynamicLeft counts the free ports in the node's dynamic range, except the ports that the
// ask needs as static ports.
func (f *filter) dynamicLeft(n *node) int {
	left := n.dynamicFree()
	for _, p := range f.ask.Ports {
		if p.Static != 0 && p.Static >= n.PortMin && p.Static <= n.PortMax {
			left--
		}
	}
	return left
}

// refuseEmpty returns what refuseRoom would return if nothing ran on the node.
func (f *filter) refuseEmpty(n *node) state.Reason {
	empty := node{Node: n.Node, pos: n.pos, free: n.Capacity}
	if len(f.units) > 0 {
		empty.gpu = make([]int32, len(n.GPUs))
	}
	return f.refuseRoom(&empty)
}
