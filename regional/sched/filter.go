package sched

import (
	"fmt"
	"maps"
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
	for _, v := range c.Volumes {
		if !n.Allows(v) {
			return state.ReasonNotAllowed
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
	case len(c.Apart) > 0 && n.taken(c.Apart) != "":
		return state.ReasonKeptApart
	}
	if r := c.shortOf(n.free); r != "" {
		return r
	}
	if n.allocs >= n.MaxAllocs() {
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

// shortOf is the first resource that there is not enough of.
func (c *class) shortOf(free state.Resources) state.Reason {
	switch {
	case c.Resources.CPUMilli > free.CPUMilli:
		return state.ReasonInsufficientCPU
	case c.Resources.MemoryBytes > free.MemoryBytes:
		return state.ReasonInsufficientMemory
	case c.Resources.DiskBytes > free.DiskBytes:
		return state.ReasonInsufficientDisk
	}
	return ""
}

func (c *class) refusePorts(n *node) state.Reason {
	for i, p := range c.Ports {
		if p.Static == 0 {
			continue
		}
		twice := slices.ContainsFunc(c.Ports[:i], func(o state.PortAsk) bool { return o.Static == p.Static })
		if twice || !n.freePort(p.Static) {
			return state.ReasonPortConflict
		}
	}
	if dynamic := len(c.Ports) - c.static; dynamic > 0 && c.dynamicLeft(n) < dynamic {
		return state.ReasonPortsExhausted
	}
	return ""
}

// dynamicLeft is how many ports of the node's dynamic range are free besides
// the static ones that are asked for.
func (c *class) dynamicLeft(n *node) int {
	left := n.dynamicFree()
	for _, p := range c.Ports {
		if p.Static != 0 && p.Static >= n.PortMin && p.Static <= n.PortMax {
			left--
		}
	}
	return left
}

// refuseEmpty is refuseRoom as if nothing ran on the node.
func (c *class) refuseEmpty(n *node) state.Reason {
	empty := node{Node: n.Node, pos: n.pos, free: n.Capacity}
	if len(c.units) > 0 {
		empty.gpu = make([]int32, len(n.GPUs))
	}
	return c.refuseRoom(&empty)
}

// emptied is the node as if nothing ran on it.
func (n *node) emptied() *node {
	return &node{Node: n.Node, pos: n.pos, free: n.Capacity, gpu: make([]int32, len(n.GPUs))}
}

// describe is the message of a refusal, with figures.
func (c *class) describe(n *node, r state.Reason) string {
	need := c.Resources
	switch r {
	case state.ReasonNodeLost:
		return "nothing is heard from it"
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
	case state.ReasonNotAllowed:
		return c.describeVolumes(n)
	case state.ReasonDedicated:
		if n.dedicated > 0 && n.dedicatedJob != c.job {
			return "dedicated to " + n.dedicatedJob.In(c.table.view.Cluster().Region)
		}
		return "needs a node without other jobs"
	case state.ReasonKeptApart:
		return fmt.Sprintf("something there has the tag %q too", n.taken(c.Apart))
	case state.ReasonInsufficientCPU:
		return fmt.Sprintf("needs %s cpu, %s free of %s", milli(need.CPUMilli), milli(n.free.CPUMilli), milli(n.Capacity.CPUMilli))
	case state.ReasonInsufficientMemory:
		return fmt.Sprintf("needs %s memory, %s free of %s", size(need.MemoryBytes), size(n.free.MemoryBytes), size(n.Capacity.MemoryBytes))
	case state.ReasonInsufficientDisk:
		return fmt.Sprintf("needs %s disk, %s free of %s", size(need.DiskBytes), size(n.free.DiskBytes), size(n.Capacity.DiskBytes))
	case state.ReasonInstanceQuota:
		return fmt.Sprintf("runs %d of at most %d instances", n.allocs, n.MaxAllocs())
	case state.ReasonInsufficientGPU:
		return "needs gpu " + c.needGPU() + ", free: " + freeGPUs(n)
	case state.ReasonPortConflict:
		return c.describeConflict(n)
	case state.ReasonPortsExhausted:
		return fmt.Sprintf("needs %s, %d free of %d..%d", plural(len(c.Ports)-c.static, "dynamic port"), max(0, c.dynamicLeft(n)), n.PortMin, n.PortMax)
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

// namedFolders bounds how many a message names.
const namedFolders = 3

// describeVolumes is in the words of an agent that declines.
func (c *class) describeVolumes(n *node) string {
	at := slices.IndexFunc(c.Volumes, func(v string) bool { return !n.Allows(v) })
	if at < 0 {
		return ""
	}
	allow := n.VolumesAllow[:min(len(n.VolumesAllow), namedFolders)]
	what := c.Volumes[at] + " is not allowed: its agent allows "
	if len(allow) == 0 {
		return what + "no folder of the host (--volumes-allow)"
	}
	what += "only what is below " + strings.Join(allow, ", ")
	if more := len(n.VolumesAllow) - len(allow); more > 0 {
		what += fmt.Sprintf(" and %d more", more)
	}
	return what + " (--volumes-allow)"
}

// needGPU is what is asked of devices: "2 a100 + 500m".
func (c *class) needGPU() string {
	var need []string
	for i := 0; i < len(c.units); {
		u, k := c.units[i], i
		for i < len(c.units) && c.units[i].milli == u.milli && slices.Equal(c.units[i].models, u.models) {
			i++
		}
		text := strconv.Itoa(i - k)
		switch {
		case u.milli < 1000 && i-k == 1:
			text = milli(int64(u.milli))
		case u.milli < 1000:
			text += " × " + milli(int64(u.milli))
		}
		if len(u.models) > 0 {
			text += " " + strings.Join(u.models, "|")
		}
		need = append(need, text)
	}
	return strings.Join(need, " + ")
}

// freeGPUs are the devices of a node with what is free of each, whole ones of a
// model together: "2 a100, 500m t4".
func freeGPUs(n *node) string {
	var free []string
	whole := map[string]int{}
	for i, d := range n.GPUs {
		if n.gpu[i] == 0 {
			whole[d.Model]++
		}
	}
	for _, model := range slices.Sorted(maps.Keys(whole)) {
		free = append(free, strconv.Itoa(whole[model])+" "+model)
	}
	for i, d := range n.GPUs {
		if n.gpu[i] > 0 && n.gpu[i] < 1000 {
			free = append(free, milli(int64(1000-n.gpu[i]))+" "+d.Model)
		}
	}
	if len(free) == 0 {
		return "none"
	}
	return strings.Join(free, ", ")
}

// freeGPU is how much is free of the devices that the class accepts, in
// thousandths of one.
func (c *class) freeGPU(n *node) int64 {
	free := int64(0)
	for i, d := range n.GPUs {
		if slices.ContainsFunc(c.units, func(u gpuUnit) bool { return len(u.models) == 0 || slices.Contains(u.models, d.Model) }) {
			free += int64(1000 - n.gpu[i])
		}
	}
	return free
}

func (c *class) describeConflict(n *node) string {
	for _, p := range c.Ports {
		if p.Static != 0 && !n.freePort(p.Static) {
			return "port " + strconv.Itoa(int(p.Static)) + " is taken"
		}
	}
	return "asks twice for the same port"
}
