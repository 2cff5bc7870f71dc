package feed

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Region returns the region of an overview from a region of the API.
func Region(m *nusav1.Region, now time.Time) *nusav1.OverviewRegion {
	d, rep := m.GetDefinition(), m.GetReport()
	out := &nusav1.OverviewRegion{
		Name: d.GetName(), State: m.GetState(), Location: d.GetLocation(), Labels: d.GetLabels(), Cordoned: m.GetCordoned(), Draining: m.GetDraining(),
		Lost: m.GetLost(), Message: m.GetFailoverMessage(),
		NodesReady: rep.GetNodesReady(), NodesLost: rep.GetNodesLost(), NodesDraining: rep.GetNodesDraining(), NodesCordoned: rep.GetNodesCordoned(),
		Capacity: rep.GetCapacity(), Allocated: rep.GetAllocated(), Utilisation: rep.GetUtilisation(), QueueLength: rep.GetQueueLength(), Allocations: rep.GetAllocations(),
		Master: m.GetMaster(), Servers: m.GetServers(),
	}
	if m.GetSilent() != nil {
		out.LastSeen = timestamppb.New(now.Add(-m.GetSilent().AsDuration()))
	}
	if m.GetMoveDue() != nil {
		out.MoveAt = timestamppb.New(now.Add(m.GetMoveDue().AsDuration()))
		out.Message = "its work moves to other regions unless it returns"
	}
	return out
}
