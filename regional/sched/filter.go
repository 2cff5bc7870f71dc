package sched

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// class is an ask with what does not change about its nodes during a plan.
// Groups of equal asks share it.
type class struct {
	*state.Ask
	job    state.JobKey
	static int // ports by kind
	units  []gpuUnit
	funcs  Funcs
	table  *table
}

func newClass(t *table, funcs Funcs, ask *state.Ask, job state.JobKey) *class {
	c := &class{Ask: ask, job: job, funcs: funcs, table: t, units: gpuUnits(ask.GPUs)}
	for _, p := range ask.Ports {
		if p.Static != 0 {
			c.static++
		}
	}
	return c
}

// refuse is why a node cannot take one more instance; empty if it can.
func (c *class) refuse(n *node) state.Reason {
	if r := c.refuseStatus(n); r != "" {
		return r
	}
	if r := c.refuseKind(n); r != "" {
		return r
	}
	return c.refuseRoom(n)
}

// refuseStatus is about what operators and contact say of the node.
func (c *class) refuseStatus(n *node) state.Reason {
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

// refuseKind is about what the node is.
func (c *class) refuseKind(n *node) state.Reason {
	if n.Pool != c.Pool {
		return state.ReasonPoolMismatch
	}
	for i := range c.Drivers {
		d := &c.Drivers[i]
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
	for _, expr := range c.Constraints {
		if ok, err := c.funcs.Match(expr, n.Node); err != nil || !ok {
			return state.ReasonConstraint
		}
	}
	return ""
}

// refuseRoom is about what is left on the node.
func (c *class) refuseRoom(n *node) state.Reason {
	switch {
	case n.dedicated > 0 && n.dedicatedJob != c.job,
		c.Dedicated && c.table.shared(n, c.job):
		return state.ReasonDedicated
	case c.Resources.CPUMilli > n.free.CPUMilli:
		return state.ReasonInsufficientCPU
	case c.Resources.MemoryBytes > n.free.MemoryBytes:
		return state.ReasonInsufficientMemory
	case c.Resources.DiskBytes > n.free.DiskBytes:
		return state.ReasonInsufficientDisk
	case n.allocs >= n.MaxAllocs():
		return state.ReasonInstanceQuota
	}
	if len(c.units) > 0 {
		if _, ok := giveGPUs(n.GPUs, n.gpu, c.units); !ok {
			return state.ReasonInsufficientGPU
		}
	}
	if len(c.Ports) > 0 {
		return c.refusePorts(n)
	}
	return ""
}

func (c *class) refusePorts(n *node) state.Reason {
	inRange := 0
	for i, p := range c.Ports {
		if p.Static == 0 {
			continue
		}
		twice := slices.ContainsFunc(c.Ports[:i], func(o state.PortAsk) bool { return o.Static == p.Static })
		if twice || !n.freePort(p.Static) {
			return state.ReasonPortConflict
		}
		if p.Static >= n.PortMin && p.Static <= n.PortMax {
			inRange++
		}
	}
	if dynamic := len(c.Ports) - c.static; dynamic > 0 && n.dynamicFree()-inRange < dynamic {
		return state.ReasonPortsExhausted
	}
	return ""
}

// refuseEmpty is refuseRoom as if nothing ran on the node.
func (c *class) refuseEmpty(n *node) state.Reason {
	empty := node{Node: n.Node, pos: n.pos, free: n.Capacity}
	if len(c.units) > 0 {
		empty.gpu = make([]int32, len(n.GPUs))
	}
	return c.refuseRoom(&empty)
}

// describe is the message of a refusal, with figures.
func (c *class) describe(n *node, r state.Reason) string {
	need := c.Resources
	switch r {
	case state.ReasonNodeLost:
		return "node is " + n.Status.String()
	case state.ReasonNodeDraining:
		return "an operator drains it"
	case state.ReasonNodeCordoned:
		return "an operator cordoned it"
	case state.ReasonControlPlaneHost:
		return "it hosts the control plane"
	case state.ReasonPoolMismatch:
		return fmt.Sprintf("needs pool %q, is in %q", c.Pool, n.Pool)
	case state.ReasonDriverMissing, state.ReasonCapabilityMissing:
		return c.describeDrivers(n)
	case state.ReasonConstraint:
		return c.describeConstraint(n)
	case state.ReasonDedicated:
		if n.dedicated > 0 && n.dedicatedJob != c.job {
			return "dedicated to " + n.dedicatedJob.In(c.table.view.Cluster().Region)
		}
		return "needs a node without other jobs"
	case state.ReasonInsufficientCPU:
		return fmt.Sprintf("needs %s cpu, %s free of %s", milli(need.CPUMilli), milli(n.free.CPUMilli), milli(n.Capacity.CPUMilli))
	case state.ReasonInsufficientMemory:
		return fmt.Sprintf("needs %s memory, %s free of %s", size(need.MemoryBytes), size(n.free.MemoryBytes), size(n.Capacity.MemoryBytes))
	case state.ReasonInsufficientDisk:
		return fmt.Sprintf("needs %s disk, %s free of %s", size(need.DiskBytes), size(n.free.DiskBytes), size(n.Capacity.DiskBytes))
	case state.ReasonInstanceQuota:
		return fmt.Sprintf("runs %d of at most %d instances", n.allocs, n.MaxAllocs())
	case state.ReasonInsufficientGPU:
		return c.describeGPUs(n)
	case state.ReasonPortConflict:
		return c.describeConflict(n)
	case state.ReasonPortsExhausted:
		return fmt.Sprintf("needs %d dynamic ports, %d free of %d..%d", len(c.Ports)-c.static, n.dynamicFree(), n.PortMin, n.PortMax)
	case state.ReasonReserved:
		return c.table.keeps(n.pos).forWhom(c.table.view.Cluster().Region)
	}
	return ""
}

func (c *class) describeDrivers(n *node) string {
	for _, d := range c.Drivers {
		at := slices.IndexFunc(n.Drivers, func(have state.Driver) bool { return have.Name == d.Name })
		if at < 0 {
			return "has no driver " + d.Name
		}
		if !n.Drivers[at].Healthy {
			return "driver " + d.Name + " is not healthy"
		}
		for _, need := range d.Capabilities {
			if !slices.Contains(n.Drivers[at].Capabilities, need) {
				return "driver " + d.Name + " lacks " + need
			}
		}
	}
	return ""
}

func (c *class) describeConstraint(n *node) string {
	for _, expr := range c.Constraints {
		ok, err := c.funcs.Match(expr, n.Node)
		if err != nil {
			return expr + ": " + err.Error()
		}
		if !ok {
			return expr + " is false"
		}
	}
	return ""
}

func (c *class) describeGPUs(n *node) string {
	var need []string
	for _, u := range c.units {
		s := milli(int64(u.milli))
		if u.milli == 1000 {
			s = "1"
		}
		if len(u.models) > 0 {
			s += " " + strings.Join(u.models, "|")
		}
		need = append(need, s)
	}
	var free []string
	for i, d := range n.GPUs {
		free = append(free, d.Model+" "+milli(int64(1000-n.gpu[i])))
	}
	if len(free) == 0 {
		free = []string{"none"}
	}
	return "needs gpu " + strings.Join(need, " + ") + ", free: " + strings.Join(free, ", ")
}

func (c *class) describeConflict(n *node) string {
	for _, p := range c.Ports {
		if p.Static != 0 && !n.freePort(p.Static) {
			return "port " + strconv.Itoa(int(p.Static)) + " is taken"
		}
	}
	return "asks twice for the same port"
}
