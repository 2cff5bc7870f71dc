package reconcile

import (
	"cmp"
	"fmt"
	"slices"
)

// Ask is what an allocation needs of the host.
type Ask struct {
	CPUMilli, MemoryBytes, DiskBytes int64
	GPUMilli                         int64
	Ports                            []int    // host ports
	Drivers                          []string // names
	// Unsupported names the first field that no driver of it can honour; "".
	Unsupported string
	// UnsupportedReason is why; "" = ReasonUnsupported.
	UnsupportedReason Reason
}

// Host is what an agent knows of itself when it accepts or declines.
type Host struct {
	CPUMilli, MemoryBytes, DiskBytes, GPUMilli int64
	// Quota bounds allocations at a time; 0 = unlimited.
	Quota int
	// MaxStarting bounds allocations that start at a time.
	MaxStarting int
	// Drivers: name → "" when healthy, or what ails it. Absent = missing.
	Drivers map[string]string
	// PortsInUse are host ports that somebody else has open, among those asked.
	PortsInUse map[int]bool
	// NoRoom says why nothing new can be kept on the host's disk; "" = it can.
	NoRoom string
	// Leaving: nothing new, and what runs is stopped.
	Leaving bool
	// Pausing: what runs is stopped and nothing is decided; the next start goes
	// on from there.
	Pausing bool
}

// room is what is left of the host while a plan is made.
type room struct {
	host     Host
	used     Ask
	allocs   int
	starting int
	ports    map[int]string // taken by which allocation
}

// newRoom charges everything that was accepted and has not ended.
func newRoom(in Input) *room {
	r := &room{host: in.Host, ports: map[int]string{}}
	for _, a := range in.Allocs {
		act := in.Actual[a.ID]
		if !act.Accepted || act.End != nil {
			continue
		}
		r.take(a.Ask)
		for _, p := range a.Ask.Ports {
			r.ports[p] = a.ID
		}
		if StateOf(a, act) != Starting || awaitsChecks(a, act) {
			r.starting--
		}
	}
	return r
}

func (r *room) take(a Ask) {
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

// refuse says why an ask does not fit; "" when it does. The order of the checks
// is part of the contract: what never changes comes first.
func (r *room) refuse(a Ask) (Reason, string) {
	if r.host.Leaving {
		return ReasonAgentLeaving, "the agent announced that it leaves"
	}
	if a.Unsupported != "" {
		return cmp.Or(a.UnsupportedReason, ReasonUnsupported), a.Unsupported
	}
	if r.host.NoRoom != "" {
		return ReasonInsufficientDisk, r.host.NoRoom
	}
	drivers := slices.Sorted(slices.Values(a.Drivers))
	for _, d := range drivers {
		ails, ok := r.host.Drivers[d]
		if !ok {
			return ReasonDriverMissing, fmt.Sprintf("no driver %q here", d)
		}
		if ails != "" {
			return ReasonDriverMissing, fmt.Sprintf("driver %s is not healthy: %s", d, ails)
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
