package register

import (
	"iter"
	"net/netip"

	"github.com/nusa-scheduler/nusa/internal/catalog"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// Service is a service of a group.
type Service struct {
	Name, Port string
	Tags       []string // sorted
	// Checks are the tasks that must run and be healthy. Empty: all tasks.
	Checks []string
}

// Group says what Instances must know beyond the allocations of a group.
type Group struct {
	Region string
	// Job is the name of the group's job for people.
	Job string
	// Services returns the services of the group in a version of its job, sorted by name.
	Services func(version int64) []Service
	// Up reports whether all named tasks run and are healthy, according to the encoded task states of an
	// allocation.
	Up func(tasks []byte, names []string) bool
	// Address returns the address of a node. It may have a port.
	Address func(nodeID string) string
}

// loopback is the address of a node that has no other. Only programs on the node can reach it.
const loopback = "127.0.0.1"

// Instances returns the healthy instances of a group's services, in the order of its allocations.
//
// An instance is healthy if its allocation must run, is on a node with contact to the region, and all
// tasks of the service's checks are up. A task with a health check is up only while the check passes.
func Instances(allocs iter.Seq[*state.Alloc], g Group) []*catalog.Instance {
	var out []*catalog.Instance
	for a := range allocs {
		if !a.Live() || a.Disconnected || a.Desired != state.Run {
			continue
		}
		for _, s := range g.Services(a.JobVersion) {
			port := portOf(a, s.Port)
			if port == 0 || !healthy(a, s.Checks, g.Up) {
				continue
			}
			out = append(out, &catalog.Instance{
				Namespace: a.Namespace, Service: s.Name, Tags: s.Tags, Region: g.Region, Node: a.NodeName,
				Address: addressOf(g.Address(a.NodeID)), Port: port, Alloc: a.ID, Job: g.Job, Group: a.Group, Index: a.Index,
			})
		}
	}
	return out
}

func healthy(a *state.Alloc, checks []string, up func([]byte, []string) bool) bool {
	if len(checks) == 0 {
		return a.State == state.Running && a.UpUnixNano != 0
	}
	return up(a.Tasks, checks)
}

// addressOf returns the IP address in a node's address.
func addressOf(text string) string {
	if a, err := netip.ParseAddr(text); err == nil {
		return a.Unmap().WithZone("").String()
	}
	if a, err := netip.ParseAddrPort(text); err == nil {
		return a.Addr().Unmap().WithZone("").String()
	}
	return loopback
}

// portOf returns the host port that an allocation has for a label; 0 if it has none.
func portOf(a *state.Alloc, label string) int32 {
	for _, p := range a.Ports {
		if p.Label == label {
			return p.Port
		}
	}
	return 0
}
