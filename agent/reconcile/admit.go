package reconcile

import (
	"cmp"
	"fmt"
	"slices"
)

// Ask holds what an allocation needs from the host.
type Ask struct {
	CPUMilli, MemoryBytes, DiskBytes int64
	GPUs                             []GPU
	Ports                            []int    // host ports
	Drivers                          []string // names
	// Fenced says that a lease binds the allocation, so that the drivers must enforce
	// leases.
	Fenced bool
	// Unsupported describes the first field that this agent cannot use. "" means none.
	Unsupported string
	// UnsupportedReason is the reason for Unsupported. "" means ReasonUnsupported.
	UnsupportedReason Reason
}

// WholeGPU is a whole accelerator in thousandths.
const WholeGPU = 1000

// GPU is an accelerator, or a part of one, that an allocation gets.
type GPU struct {
	ID    string
	Milli int32 // thousandths of the accelerator, 1..WholeGPU
}

// Host is the state of the node that decisions depend on.
type Host struct {
	CPUMilli, MemoryBytes, DiskBytes int64
	// GPUs maps the id of each accelerator that tasks may use to its memory in bytes.
	GPUs map[string]int64
	// Quota bounds the allocations at one time. 0 means no bound.
	Quota int
	// MaxStarting bounds the allocations that start at the same time.
	MaxStarting int
	// Drivers maps the name of each driver to its state.
	Drivers map[string]Driver
	// PortsInUse holds the asked host ports that another program has open.
	PortsInUse map[int]bool
	// DiskProblem says why the host's disk has no space for new work. "" means that it has
	// space.
	DiskProblem string
	// Leaving says that nothing is accepted and that all tasks are stopped.
	Leaving bool
	// Pausing says that all tasks are stopped and that nothing else is decided. The agent's
	// next start runs the tasks again.
	Pausing bool
}

// Driver is the state of a driver that decisions depend on.
type Driver struct {
	// Problem says why the driver is unhealthy. "" means that it is healthy.
	Problem string
	// Fencing says that the driver ends a task at the end of its lease.
	Fencing bool
}

// capacity is the host's remaining capacity while a plan is made.
type capacity struct {
	host     Host
	used     Ask
	allocs   int
	starting int
	ports    map[int]string   // maps a port to the allocation that has it
	gpus     map[string]int32 // maps an accelerator to the thousandths of it that allocations have
}

// newCapacity returns the host's capacity less the use of all accepted allocations that
// have not ended.
func newCapacity(in Input) *capacity {
	r := &capacity{host: in.Host, ports: map[int]string{}, gpus: map[string]int32{}}
	for _, a := range in.Allocs {
		act := in.Actual[a.ID]
		if !act.Accepted || act.End != nil {
			continue
		}
		r.charge(a.Ask)
		for _, p := range a.Ask.Ports {
			r.ports[p] = a.ID
		}
		if StateOf(a, act) != Starting || awaitsOthers(a, act) {
			r.starting--
		}
	}
	return r
}

func (r *capacity) charge(a Ask) {
	r.used.CPUMilli += a.CPUMilli
	r.used.MemoryBytes += a.MemoryBytes
	r.used.DiskBytes += a.DiskBytes
	for _, g := range a.GPUs {
		r.gpus[g.ID] += g.Milli
	}
	r.allocs++
	r.starting++
	for _, p := range a.Ports {
		if r.ports[p] == "" {
			r.ports[p] = "another allocation of the same plan"
		}
	}
}

// declineReason returns why an ask does not fit, or "". The order of the checks is part of
// the contract: conditions that never change come before those that may change.
func (r *capacity) declineReason(a Ask) (Reason, string) {
	if r.host.Leaving {
		return ReasonAgentLeaving, "the agent is leaving the region"
	}
	if a.Unsupported != "" {
		return cmp.Or(a.UnsupportedReason, ReasonUnsupported), a.Unsupported
	}
	if r.host.DiskProblem != "" {
		return ReasonInsufficientDisk, r.host.DiskProblem
	}
	drivers := slices.Sorted(slices.Values(a.Drivers))
	for _, d := range drivers {
		of, ok := r.host.Drivers[d]
		switch {
		case !ok:
			return ReasonDriverMissing, fmt.Sprintf("no driver %q on this node", d)
		case of.Problem != "":
			return ReasonDriverMissing, fmt.Sprintf("driver %s is not healthy: %s", d, of.Problem)
		case a.Fenced && !of.Fencing:
			return ReasonCapabilityMissing, fmt.Sprintf("a lease binds the group, and driver %s cannot end its tasks at the end of a lease (no self_fencing)", d)
		}
	}
	for _, c := range []struct {
		reason           Reason
		what             string
		used, ask, total int64
	}{
		{ReasonInsufficientCPU, "thousandths of a core", r.used.CPUMilli, a.CPUMilli, r.host.CPUMilli},
		{ReasonInsufficientMemory, "bytes of memory", r.used.MemoryBytes, a.MemoryBytes, r.host.MemoryBytes},
		{ReasonInsufficientDisk, "bytes of disk", r.used.DiskBytes, a.DiskBytes, r.host.DiskBytes},
	} {
		if c.ask > 0 && c.used+c.ask > c.total {
			return c.reason, fmt.Sprintf("%d %s asked, %d of %d free", c.ask, c.what, max(0, c.total-c.used), c.total)
		}
	}
	for _, g := range a.GPUs {
		if _, has := r.host.GPUs[g.ID]; !has {
			return ReasonInsufficientGPU, fmt.Sprintf("this node does not offer accelerator %s", g.ID)
		}
		if used := r.gpus[g.ID]; used+g.Milli > WholeGPU {
			return ReasonInsufficientGPU, fmt.Sprintf("%d thousandths of accelerator %s asked, %d of %d free", g.Milli, g.ID, max(0, WholeGPU-used), WholeGPU)
		}
	}
	if r.host.Quota > 0 && r.allocs >= r.host.Quota {
		return ReasonInstanceQuota, fmt.Sprintf("%d allocations run here, the quota is %d", r.allocs, r.host.Quota)
	}
	for _, p := range a.Ports {
		if by := r.ports[p]; by != "" {
			return ReasonPortConflict, fmt.Sprintf("port %d belongs to %s", p, by)
		}
		if r.host.PortsInUse[p] {
			return ReasonPortConflict, fmt.Sprintf("port %d is in use on the host", p)
		}
	}
	if r.host.MaxStarting > 0 && r.starting >= r.host.MaxStarting {
		return ReasonAgentBusy, fmt.Sprintf("%d allocations are starting, the limit is %d", r.starting, r.host.MaxStarting)
	}
	return "", ""
}
