package regional

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/tunnel"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// helloWithin is how long an agent may take to say who it is.
const helloWithin = 10 * time.Second

// dispatch is the service that agents dial.
type dispatch struct {
	nusav1.UnimplementedDispatchServer
	s *server
}

// Session serves an agent on the master, and tells it who that is elsewhere.
func (d dispatch) Session(stream agentStream) error {
	hello, err := d.hello(stream)
	if err != nil {
		return err
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

// hello is the first message of a session.
func (d dispatch) hello(stream agentStream) (*nusav1.AgentHello, error) {
	type received struct {
		m   *nusav1.AgentMessage
		err error
	}
	first := make(chan received, 1)
	d.s.streams.Go(func() { // ends with the stream
		m, err := stream.Recv()
		first <- received{m, err}
	})
	slow := time.NewTimer(helloWithin)
	defer slow.Stop()
	select {
	case r := <-first:
		if r.err == nil && r.m.GetHello() == nil {
			return nil, status.Error(codes.FailedPrecondition, "the first message of a session must be a hello")
		}
		return r.m.GetHello(), r.err
	case <-slow.C:
		return nil, status.Errorf(codes.DeadlineExceeded, "no hello within %v", helloWithin)
	case <-d.s.stopping:
		return nil, status.Error(codes.Unavailable, "this server stops")
	}
}

// Tunnel is an agent's answer to a TunnelRequest.
func (d dispatch) Tunnel(stream tunnel.ServerStream) error { return d.s.hub.Serve(stream) }
