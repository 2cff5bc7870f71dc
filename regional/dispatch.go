package regional

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/tunnel"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// dispatch is the service that agents dial.
type dispatch struct {
	nusav1.UnimplementedDispatchServer
	s *server
}

// Session serves an agent on the master, and tells it who that is elsewhere.
func (d dispatch) Session(stream agentStream) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	if hello == nil {
		return status.Error(codes.FailedPrecondition, "the first message of a session must be a hello")
	}
	l, changed := d.s.standing.now()
	if l != nil {
		return l.agents.serve(stream, hello)
	}
	for {
		if err := stream.Send(d.s.standbyMessage()); err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-d.s.stopping:
			return status.Error(codes.Unavailable, "this server stops")
		case <-changed:
		}
		if l, changed = d.s.standing.now(); l != nil {
			// This server is the master now: the agent comes with a new hello.
			return stream.Send(d.s.standbyMessage())
		}
	}
}

// Tunnel is an agent's answer to a TunnelRequest.
func (d dispatch) Tunnel(stream tunnel.ServerStream) error { return d.s.hub.Serve(stream) }
