package state

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/latency"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/topo"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// maxRemovals is how many removed slots a region's outbox remembers; a region
// that missed more gets the full set.
const maxRemovals = 4096

// Region is a region with its session, if it has one. The state's lock guards
// it.
type Region struct {
	Name     string
	Record   *nusav1.Region
	Revision int64
	Life     region.State
	// Session is the live session, nil while the region is not connected.
	Session *Session
	Orders  *link.Outbox[*nusav1.SlotOrder]

	Report   *nusav1.RegionReport
	ReportAt time.Duration
	// ReportStale says that the report comes from a checkpoint: it is older
	// than ReportAt by an unknown time.
	ReportStale bool
	// Reports counts the reports received over all sessions.
	Reports       uint64
	Load          latency.LoadTracker
	Master        string
	MasterAddress string
	Version       string
	Servers       []*nusav1.RegionalServer
	Coordinate    *nusav1.Coordinate
	// SummariesAt is the position up to which the region's summaries are known;
	// a new session resumes there.
	SummariesAt link.Position
	// SummaryKeys are the keys of the known summaries.
	SummaryKeys map[string]struct{}
	// CheckpointDue says that summaries or the report changed since the latest
	// checkpoint.
	CheckpointDue bool
	Stamp         uint64
	// Refusals are the region's latest refusals of groups, oldest first.
	Refusals []Refusal
	// Failover is set while the region is silent or lost.
	Failover *Failover
	// Disconnected are the instances of jobs that may still run on lost nodes
	// and fit on no other, as reported in the present session.
	Disconnected map[JobKey][]*nusav1.DisconnectedInstances

	checkpoint []*nusav1.CheckpointRecord // only while loading
	chunks     int                        // records of the stored checkpoint
}

// Session is a region's live stream, as the rest of the active server sees it.
type Session struct {
	// Number tells the streams of one leadership term apart.
	Number uint64
	// Conn is the tunnel to the region's own services.
	Conn *grpc.ClientConn
	// Wake makes the stream send the unsent sets. It does not block.
	Wake func()
	// Refuse ends the stream and sends the region the reason.
	Refuse func(message string)
	// Unsent names the sets that the region has to get again. The state's lock
	// guards it.
	Unsent Unsent
}

// Unsent names the sets that changed since a region last got them.
type Unsent struct{ Peers, Shapes, Origins, Column bool }

// Wake makes the region's stream send the unsent sets, if there is a stream.
func (r *Region) Wake() {
	if r.Session != nil {
		r.Session.Wake()
	}
}

// EndStream ends the region's stream if one of the effects says so. The effects come
// from a step of the region's session state. The lock is held.
func (r *Region) EndStream(effects []region.Effect) {
	for _, e := range effects {
		if e.Kind == region.End && r.Session != nil && r.Session.Number == e.Stream {
			r.Session.Refuse(e.Message)
		}
	}
}

func (r *Region) toTopology() topology.Region {
	return topology.Region{
		Name: r.Name, Location: topo.LocationFromProto(r.Record.GetDefinition().GetLocation()),
		Labels: r.Record.GetDefinition().GetLabels(), Coordinate: topo.CoordinateFromProto(r.Coordinate),
	}
}

// ToProto returns the region as the API shows it. The lock is held.
func (r *Region) ToProto(now time.Duration) *nusav1.Region {
	out := &nusav1.Region{
		Definition: r.Record.GetDefinition(), Cordoned: r.Record.GetCordoned(), ClusterId: r.Record.GetClusterId(),
		DefinedByOperator: r.Record.GetDefinedByOperator(), Revision: r.Revision,
		Incarnation: r.Life.Incarnation, Term: r.Life.Term, Fence: r.Life.Fence,
		MasterAddress: r.MasterAddress, Master: r.Master, Servers: r.Servers,
	}
	switch {
	case r.Session != nil:
		out.State = nusav1.RegionState_REGION_STATE_CONNECTED
	case r.Record.GetClusterId() == "":
		out.State = nusav1.RegionState_REGION_STATE_DEFINED
	default:
		out.State = nusav1.RegionState_REGION_STATE_DISCONNECTED
	}
	if r.Report != nil {
		out.Report = r.Report
	}
	if r.Report != nil && !r.ReportStale {
		out.ReportAge = durationpb.New(now - r.ReportAt)
	}
	if r.Session == nil {
		out.Servers = nil
		for _, s := range r.Servers {
			s = proto.CloneOf(s)
			s.Leader, s.Healthy = false, false // unknown while disconnected
			out.Servers = append(out.Servers, s)
		}
	}
	return out
}
