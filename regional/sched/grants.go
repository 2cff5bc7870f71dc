package sched

import (
	"cmp"
	"slices"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// freePort reports whether a host port is not in use.
func (n *node) freePort(port int32) bool {
	_, used := slices.BinarySearch(n.ports, port)
	return !used
}

// dynamicFree counts the free ports in the node's dynamic range.
func (n *node) dynamicFree() int {
	if n.PortMax < n.PortMin || n.PortMax == 0 {
		return 0
	}
	lo, _ := slices.BinarySearch(n.ports, n.PortMin)
	hi, _ := slices.BinarySearch(n.ports, n.PortMax+1)
	return int(n.PortMax-n.PortMin) + 1 - (hi - lo)
}

// givePorts chooses host ports. start decides where the search for dynamic ports begins, so
// that a port that was just released is not given next. The node must have passed the
// filter.
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

// portStart returns the start for givePorts: the FNV-1a hash of the instance and its
// attempt. So starts are spread over the range.
func portStart(key state.GroupKey, inst *state.Instance) uint64 {
	h := uint64(14695981039346656037)
	add := func(s string) {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * 1099511628211
		}
	}
	add(key.Namespace)
	add(key.Job)
	add(key.Group)
	for _, n := range [...]int64{int64(inst.Index), inst.Epoch} {
		for range 8 {
			h = (h ^ uint64(n&0xff)) * 1099511628211
			n >>= 8
		}
	}
	return h
}

// gpuUnit is a whole device or a part of one.
type gpuUnit struct {
	milli  int32
	models []string
}

// gpuUnits splits asks into devices and sorts the most demanding first.
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

// maxGPUSteps bounds the search for devices on one node. The search tries equal devices
// only once, so the bound matters only for machines with dozens of different devices.
const maxGPUSteps = 10_000

// giveGPUs chooses devices. A part goes to the fullest device that still has room, so that
// whole devices stay free. giveGPUs returns false if the units do not fit.
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
