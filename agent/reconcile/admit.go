package reconcile

import (
	"cmp"
	"fmt"
	"slices"
)

// Ask holds what an allocation needs of the host.
type Ask struct {
	CPUMilli, MemoryBytes, DiskBytes int64
	GPUMilli                         int64
	Ports                            []int    // host ports
	Drivers                          []string // names
	// Fenced: a lease binds the allocation, so that its drivers must enforce it.
	Fenced bool
	// Unsupported describes the first field that this agent cannot honour. "": none.
	Unsupported string
	// UnsupportedReason is the reason of Unsupported. "": ReasonUnsupported.
	UnsupportedReason Reason
}

// Host is the node's state that a decision to accept or decline depends on.
type Host struct {
	CPUMilli, MemoryBytes, DiskBytes, GPUMilli int64
	// Quota bounds allocations at a time; 0 = unlimited.
	Quota int
	// MaxStarting bounds allocations that start at a time.
	MaxStarting int
	// Drivers by name.
	Drivers map[string]Driver
	// PortsInUse are those of the asked host ports that another program has open.
	PortsInUse map[int]bool
	// DiskProblem says why the host's disk can hold nothing new. "": no problem.
	DiskProblem string
	// Leaving: nothing is accepted and all tasks are stopped.
	Leaving bool
	// Pausing: all tasks are stopped and nothing else is decided. The agent's next start
	// runs them again.
	Pausing bool
}

// Driver is what a decision depends on of a driver.
type Driver struct {
	// Problem of an unhealthy driver. "": healthy.
	Problem string
	// Fencing: its supervisors end a task at the end of its lease.
	Fencing bool
}

// capacity is the host's remaining capacity while a plan is made.
type capacity struct {
	host     Host
	used     Ask
	allocs   int
	starting int
	ports    map[int]string // the allocation that has the port
}

// newCapacity charges every allocation that was accepted and has not ended.
func newCapacity(in Input) *capacity {
	r := &capacity{host: in.Host, ports: map[int]string{}}
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
	r.used.GPUMilli += a.GPUMilli
	r.allocs++
	r.starting++
	for _, p := range a.Ports {
		if r.ports[p] == "" {
			r.ports[p] = "another allocation of the same plan"
		}
	}
}

// declineReason returns why an ask does not fit, or "". The order of the checks is
// part of the contract: conditions that never change come first.
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
		{ReasonInsufficientGPU, "thousandths of a GPU", r.used.GPUMilli, a.GPUMilli, r.host.GPUMilli},
	} {
		if c.ask > 0 && c.used+c.ask > c.total {
			return c.reason, fmt.Sprintf("%d %s asked, %d of %d free", c.ask, c.what, max(0, c.total-c.used), c.total)
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
