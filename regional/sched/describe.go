package sched

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// describe returns the message for a node that a filter refuses for a reason, with figures.
func describe(f *filter, n *node, r state.Reason) string {
	need, region := f.ask.Resources, f.table.view.Cluster().Region
	switch r {
	case state.ReasonNodeLost:
		return "it is silent"
	case state.ReasonNodeDraining:
		return "an operator drains it"
	case state.ReasonNodeCordoned:
		return "an operator cordoned it"
	case state.ReasonControlPlaneHost:
		return "it hosts the control plane"
	case state.ReasonPoolMismatch:
		return fmt.Sprintf("needs pool %q, is in %q", f.ask.Pool, n.Pool)
	case state.ReasonDriverMissing, state.ReasonCapabilityMissing:
		return describeDrivers(f, n)
	case state.ReasonConstraint:
		return describeConstraint(f, n)
	case state.ReasonNotAllowed:
		return describeVolumes(f, n)
	case state.ReasonDedicated:
		if n.dedicated > 0 && n.dedicatedJob != f.job {
			return "dedicated to " + n.dedicatedJob.In(region)
		}
		return "needs a node without other jobs"
	case state.ReasonKeptApart:
		return fmt.Sprintf("an instance there has the tag %q too", n.tagInUse(f.ask.Apart))
	case state.ReasonInsufficientCPU:
		return fmt.Sprintf("needs %s cpu, %s free of %s", milli(need.CPUMilli), milli(n.free.CPUMilli), milli(n.Capacity.CPUMilli))
	case state.ReasonInsufficientMemory:
		return fmt.Sprintf("needs %s memory, %s free of %s", size(need.MemoryBytes), size(n.free.MemoryBytes), size(n.Capacity.MemoryBytes))
	case state.ReasonInsufficientDisk:
		return fmt.Sprintf("needs %s disk, %s free of %s", size(need.DiskBytes), size(n.free.DiskBytes), size(n.Capacity.DiskBytes))
	case state.ReasonInstanceQuota:
		return fmt.Sprintf("runs %d of at most %d instances", n.allocs, n.MaxAllocs())
	case state.ReasonInsufficientGPU:
		return "needs gpu " + needGPU(f.units) + ", free: " + freeGPUs(n)
	case state.ReasonPortConflict:
		return describeConflict(f, n)
	case state.ReasonPortsExhausted:
		return fmt.Sprintf("needs %s, %d free of %d..%d", plural(len(f.ask.Ports)-f.static, "dynamic port"), max(0, f.dynamicLeft(n)), n.PortMin, n.PortMax)
	case state.ReasonReserved:
		return f.table.reservedFor(n.pos).describe(region)
	}
	return ""
}

func describeDrivers(f *filter, n *node) string {
	for _, d := range f.ask.Drivers {
		at := slices.IndexFunc(n.Drivers, func(have state.Driver) bool { return have.Name == d.Name })
		if at < 0 {
			return "has no driver " + d.Name
		}
		if !n.Drivers[at].Healthy {
			return "driver " + d.Name + " is not healthy"
		}
		for _, need := range d.Capabilities {
			if !slices.Contains(n.Drivers[at].Capabilities, need) {
				if need == state.LeaseBinding {
					return "its agent is too old to end tasks when a region's lease ends: upgrade it"
				}
				return "driver " + d.Name + " lacks " + need
			}
		}
	}
	return ""
}

func describeConstraint(f *filter, n *node) string {
	for _, expr := range f.ask.Constraints {
		ok, err := f.funcs.Match(expr, n.Node)
		if err != nil {
			return expr + ": " + err.Error()
		}
		if !ok {
			return expr + " is false"
		}
	}
	return ""
}

// namedFolders bounds the folders in a message.
const namedFolders = 3

// describeVolumes returns the message about a volume that the node does not allow. It uses
// the same words as an agent that declines for this reason.
func describeVolumes(f *filter, n *node) string {
	at := slices.IndexFunc(f.ask.Volumes, func(v string) bool { return !n.Allows(v) })
	if at < 0 {
		return ""
	}
	allow := n.VolumesAllow[:min(len(n.VolumesAllow), namedFolders)]
	text := f.ask.Volumes[at] + " is not allowed: its agent allows "
	if len(allow) == 0 {
		return text + "no folder of the host (--volumes-allow)"
	}
	text += "only what is below " + strings.Join(allow, ", ")
	if more := len(n.VolumesAllow) - len(allow); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text + " (--volumes-allow)"
}

func describeConflict(f *filter, n *node) string {
	for _, p := range f.ask.Ports {
		if p.Static != 0 && !n.freePort(p.Static) {
			return "port " + strconv.Itoa(int(p.Static)) + " is taken"
		}
	}
	return "asks twice for the same port"
}

// needGPU lists the devices in an ask, for example "2 a100 + 500m".
func needGPU(units []gpuUnit) string {
	var need []string
	for i := 0; i < len(units); {
		u, k := units[i], i
		for i < len(units) && units[i].milli == u.milli && slices.Equal(units[i].models, u.models) {
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

// freeGPUs lists the free devices of a node. Whole devices of a model are counted together,
// and a device in use is listed with its free share, for example "2 a100, 500m t4".
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

// freeGPU returns the free amount of the devices that the units accept, in thousandths of
// one device.
func freeGPU(n *node, units []gpuUnit) int64 {
	free := int64(0)
	for i, d := range n.GPUs {
		if slices.ContainsFunc(units, func(u gpuUnit) bool { return len(u.models) == 0 || slices.Contains(u.models, d.Model) }) {
			free += int64(1000 - n.gpu[i])
		}
	}
	return free
}

// freeOf returns how much of a resource is free on a node. The reason selects the resource.
// For other reasons freeOf returns 0.
func freeOf(f *filter, n *node, r state.Reason) int64 {
	switch r {
	case state.ReasonInsufficientCPU:
		return n.free.CPUMilli
	case state.ReasonInsufficientMemory:
		return n.free.MemoryBytes
	case state.ReasonInsufficientDisk:
		return n.free.DiskBytes
	case state.ReasonInsufficientGPU:
		return freeGPU(n, f.units)
	case state.ReasonPortsExhausted:
		return int64(f.dynamicLeft(n))
	}
	return 0
}

// figures returns how much of a resource the ask needs, and how much is free on a node. The
// reason selects the resource. For other reasons both are empty.
func figures(f *filter, n *node, r state.Reason) (need, free string) {
	ask := f.ask.Resources
	switch r {
	case state.ReasonInsufficientCPU:
		return milli(ask.CPUMilli) + " cpu", milli(n.free.CPUMilli)
	case state.ReasonInsufficientMemory:
		return size(ask.MemoryBytes) + " memory", size(n.free.MemoryBytes)
	case state.ReasonInsufficientDisk:
		return size(ask.DiskBytes) + " disk", size(n.free.DiskBytes)
	case state.ReasonInsufficientGPU:
		return "gpu " + needGPU(f.units), freeGPUs(n)
	case state.ReasonPortsExhausted:
		free = strconv.Itoa(max(0, f.dynamicLeft(n)))
		if n.PortMax > 0 {
			free += " of " + strconv.Itoa(int(n.PortMin)) + ".." + strconv.Itoa(int(n.PortMax))
		}
		return plural(len(f.ask.Ports)-f.static, "dynamic port"), free
	}
	return "", ""
}
