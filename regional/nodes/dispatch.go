package nodes

import (
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/tunnel"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// helloTimeout bounds the wait for an agent's first message.
const helloTimeout = 10 * time.Second

// Dispatch is the gRPC service that agents dial. Every server of the region offers the
// service, but only the master serves sessions.
type Dispatch struct {
	nusav1.UnimplementedDispatchServer
	// Current returns the agents of this server's term, nil while this server is not the
	// master. The channel is closed when the master or the servers change.
	Current func() (*Agents, <-chan struct{})
	// Standby returns the message that names the master and all servers.
	Standby func() *nusav1.MasterMessage
	// Stopping is closed when the server stops.
	Stopping <-chan struct{}
	// Streams counts the goroutines that use a gRPC stream.
	Streams *sync.WaitGroup
	Hub     *tunnel.Hub
}

// Session serves an agent. The master serves a full session. Another server only sends the
// agent the master's address, once at the beginning and again after each change.
func (d *Dispatch) Session(stream agentStream) error {
	hello, err := d.hello(stream)
	if err != nil {
		return err
	}
	agents, changed := d.Current()
	if agents != nil {
		return agents.serve(stream, hello)
	}
	for {
		if err := stream.Send(d.Standby()); err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-d.Stopping:
			return status.Error(codes.Unavailable, "this server stops")
		case <-changed:
		}
		agents, changed = d.Current()
		if agents != nil {
			// This server is the master now. The agent must connect again, with a new
			// hello.
			return stream.Send(d.Standby())
		}
	}
}

// hello returns the first message of a session.
func (d *Dispatch) hello(stream agentStream) (*nusav1.AgentHello, error) {
	type received struct {
		m   *nusav1.AgentMessage
		err error
	}
	first := make(chan received, 1)
	d.Streams.Go(func() { // ends with the stream
		m, err := stream.Recv()
		first <- received{m, err}
	})
	slow := time.NewTimer(helloTimeout)
	defer slow.Stop()
	select {
	case r := <-first:
		if r.err == nil && r.m.GetHello() == nil {
			return nil, status.Error(codes.FailedPrecondition, "the first message of a session must be a hello")
		}
		return r.m.GetHello(), r.err
	case <-slow.C:
		return nil, status.Errorf(codes.DeadlineExceeded, "no hello within %v", helloTimeout)
	case <-d.Stopping:
		return nil, status.Error(codes.Unavailable, "this server stops")
	}
}

// Tunnel serves a tunnel that an agent opened for a TunnelRequest.
func (d *Dispatch) Tunnel(stream tunnel.ServerStream) error { return d.Hub.Serve(stream) }
