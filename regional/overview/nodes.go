package overview

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/api"
)

// nodesOf returns the nodes of the region.
func nodesOf(s *api.Server, m *api.Master, now time.Time) []*nusav1.OverviewNode {
	var out []*nusav1.OverviewNode
	for _, n := range api.AllNodes(s, m) {
		out = append(out, nodeOf(n, now))
	}
	return out
}

// nodeOf returns the node of an overview from a node of the API.
func nodeOf(n *nusav1.Node, now time.Time) *nusav1.OverviewNode {
	inv := n.GetInventory()
	out := &nusav1.OverviewNode{
		Id: n.GetId(), Name: n.GetName(), State: n.GetState(), Cordoned: n.GetCordoned(), Draining: n.GetDraining(),
		Pool: inv.GetPool(), Address: n.GetAddress(), Labels: inv.GetLabels(), Capacity: inv.GetCapacity(), Allocated: n.GetAllocated(),
		Cpu: -1, Memory: -1, Disk: -1, Allocations: n.GetAllocations(), Version: inv.GetVersion(),
	}
	if n.GetSilent() != nil {
		out.LastSeen = timestamppb.New(now.Add(-n.GetSilent().AsDuration()))
	}
	st := n.GetStats()
	if st == nil {
		return out
	}
	used, total := int64(0), int64(0)
	for _, d := range st.GetDisks() {
		used, total = used+d.GetUsedBytes(), total+d.GetTotalBytes()
	}
	out.Cpu = st.GetCpu()
	out.Memory, out.Disk = part(st.GetMemoryUsedBytes(), st.GetMemoryUsedBytes()+st.GetMemoryAvailableBytes()), part(used, total)
	return out
}

// part returns used/total, or -1 if total is unknown.
func part(used, total int64) float64 {
	if total <= 0 {
		return -1
	}
	return float64(used) / float64(total)
}
