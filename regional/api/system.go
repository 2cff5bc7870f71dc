package api

import (
	"context"

	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/internal/logtap"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// system is the System service. It tells a client which server the client talks to. A
// server does not forward its calls.
type system struct {
	nusav1.UnimplementedSystemServer
	s *Server
}

func (y system) Info(context.Context, *nusav1.InfoRequest) (*nusav1.InfoResponse, error) {
	return Info(y.s), nil
}

// Info describes a server, with its alarms.
func Info(s *Server) *nusav1.InfoResponse {
	_, address := s.KnownMaster()
	out := &nusav1.InfoResponse{
		Role: "regional", Name: s.Name, Region: s.region(), Version: s.Version,
		LeaderAddress: address, FederationId: s.State.View().Cluster().FederationID,
	}
	out.HttpAddress, out.HttpTls = s.HTTP()
	if m := s.Master(); m != nil {
		out.Leader, out.Alarms = true, alarms(s, m)
	}
	return out
}

// repairs is the Repairs service.
type repairs struct {
	nusav1.UnimplementedRepairsServer
	s *Server
}

// Run compares the region's log with the master's memory and with its agents, and repairs what
// differs.
func (r repairs) Run(ctx context.Context, req *nusav1.ReconcileRequest) (*nusav1.ReconcileResponse, error) {
	m, err := r.s.master()
	if err != nil {
		return nil, err
	}
	if own := r.s.region(); req.GetRegion() != "" && req.GetRegion() != own {
		return nil, notFound(rpcerr.KindRegion, req.GetRegion(), "this is region %q, not %q", own, req.GetRegion())
	}
	if err := r.s.record(ctx, m, audit.Entry{Verb: "reconcile", Kind: "system", Name: r.s.region(), Outcome: audit.Started}); err != nil {
		return nil, err
	}
	return &nusav1.ReconcileResponse{Results: m.Repairer.Now(ctx)}, nil
}

// slotsAtOnce is how many slots a message of Slots has.
const slotsAtOnce = 500

// Slots sends the slots in the region's log.
func (r repairs) Slots(_ *nusav1.HeldSlotsRequest, stream grpc.ServerStreamingServer[nusav1.HeldSlots]) error {
	if _, err := r.s.master(); err != nil {
		return err
	}
	view := r.s.State.View()
	part := &nusav1.HeldSlots{}
	for x := range view.Slots() {
		if x.Local {
			continue
		}
		part.Slots = append(part.Slots, &nusav1.HeldSlot{Key: x.ID(), Revision: x.Revision})
		if len(part.Slots) == slotsAtOnce {
			if err := stream.Send(part); err != nil {
				return err
			}
			part = &nusav1.HeldSlots{}
		}
	}
	return stream.Send(part)
}

// followMember relays what an agent of the region logs, or serves the log of this server, which is the
// master.
func (r repairs) followMember(req *nusav1.MonitorMemberRequest, down logtap.Stream) error {
	m, err := r.s.master()
	if err != nil {
		return err
	}
	node := ""
	if req.GetNode() != "" {
		x, err := nodes{s: r.s}.findNode(r.s.State.View(), req.GetNode(), req.GetRegion())
		if err != nil {
			return err
		}
		node = x.ID
	} else if own := r.s.region(); req.GetRegion() != "" && req.GetRegion() != own {
		return notFound(rpcerr.KindRegion, req.GetRegion(), "this is region %q, not %q", own, req.GetRegion())
	}
	err = r.s.record(down.Context(), m, audit.Entry{Verb: "monitor", Kind: "system", Name: node, Region: r.s.region(), Outcome: audit.Started})
	if err != nil {
		return err
	}
	if node == "" {
		return (&logtap.Service{Tap: r.s.Log}).Self(&nusav1.MonitorRequest{Level: req.GetLevel()}, down)
	}
	conn, err := m.Nodes.Conn(node)
	if err != nil {
		return err
	}
	return logtap.FromSelf(conn, req.GetLevel(), down)
}
