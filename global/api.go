package global

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/topo"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

type (
	grpcUnary  = grpc.UnaryServerInterceptor
	grpcStream = grpc.StreamServerInterceptor
)

const (
	// regionDeadline is how long one region may take to answer its part of a
	// call over all regions.
	regionDeadline = 5 * time.Second
	// regionCalls bounds the regions asked at the same time by one call.
	regionCalls = 32
	// watchPause is the least time between two messages of a watch.
	watchPause = 100 * time.Millisecond
)

// register puts the services on the server, before it serves.
func (s *server) register() {
	nusav1.RegisterFederationServer(s.web.GRPC, &federationAPI{s: s})
	nusav1.RegisterJobsServer(s.web.GRPC, &jobsAPI{s: s})
	nusav1.RegisterAllocationsServer(s.web.GRPC, &allocationsAPI{s: s})
	nusav1.RegisterRegionsServer(s.web.GRPC, &regionsAPI{s: s})
	nusav1.RegisterNodesServer(s.web.GRPC, &nodesAPI{s: s})
	nusav1.RegisterTopologyServer(s.web.GRPC, &topologyAPI{s: s})
	nusav1.RegisterOriginsServer(s.web.GRPC, &originsAPI{s: s})
	nusav1.RegisterEventsServer(s.web.GRPC, &eventsAPI{s: s})
	nusav1.RegisterSystemServer(s.web.GRPC, &systemAPI{s: s})
}

// current is the reign; calls come here only while there is one, or just
// after.
func (s *server) current() (*active, error) {
	if a := s.active.Load(); a != nil {
		return a, nil
	}
	return nil, apiError(ErrNotActive)
}

// federationAPI ends the regions' streams.
type federationAPI struct {
	nusav1.UnimplementedFederationServer
	s *server
}

// Session implements nusav1.FederationServer.
func (f *federationAPI) Session(stream federationStream) error {
	a, err := f.s.current()
	if err != nil {
		return err
	}
	return a.serveSession(stream)
}

// Tunnel implements nusav1.FederationServer.
func (f *federationAPI) Tunnel(stream grpc.BidiStreamingServer[nusav1.TunnelFrame, nusav1.TunnelFrame]) error {
	return f.s.hub.Serve(stream)
}

// systemAPI tells whom a client talks to; never forwarded.
type systemAPI struct {
	nusav1.UnimplementedSystemServer
	s *server
}

// Info implements nusav1.SystemServer.
func (i *systemAPI) Info(context.Context, *nusav1.InfoRequest) (*nusav1.InfoResponse, error) {
	leader, _ := i.s.leader.get()
	return &nusav1.InfoResponse{
		Role: "global", Name: i.s.cfg.Name, Region: i.s.cfg.Region, Version: i.s.cfg.Version,
		Leader: i.s.active.Load() != nil, LeaderAddress: leader.GetAddress(),
	}, nil
}

// regionConn is the way to a region's own services.
type regionConn struct {
	name string
	conn *grpc.ClientConn
}

// dial answers the tunnel to one region.
func (a *active) dial(name string) (*grpc.ClientConn, error) {
	a.st.mu.Lock()
	defer a.st.mu.Unlock()
	r := a.st.Regions[name]
	switch {
	case r == nil:
		return nil, a.st.NoRegion("region", name)
	case r.Session == nil:
		return nil, status.Errorf(codes.Unavailable, "region %s is not connected; ask one of its own servers", name)
	}
	return r.Session.conn, nil
}

// NoRegion names the regions that there are. mu is held.
func (st *State) NoRegion(field, name string) error {
	what := "region "
	if field == "region" {
		what = "" // the field says so
	}
	return invalid(field, fmt.Sprintf("%s%q does not exist; there are %s", what, name, topo.ListNames(st.RegionNames())))
}

// reach answers the tunnels to the named regions (all when names is nil) and
// an error for each that is not connected.
func (a *active) reach(names []string) ([]regionConn, []*nusav1.PartialError) {
	a.st.mu.Lock()
	defer a.st.mu.Unlock()
	if names == nil {
		names = a.st.RegionNames()
	}
	var conns []regionConn
	var errs []*nusav1.PartialError
	for _, name := range names {
		switch r := a.st.Regions[name]; {
		case r == nil || r.Record.GetClusterId() == "":
			// Nobody ever presented itself under that name: nothing is there.
		case r.Session == nil:
			errs = append(errs, &nusav1.PartialError{Region: name, Message: "not connected"})
		default:
			conns = append(conns, regionConn{name, r.Session.conn})
		}
	}
	return conns, errs
}

// askAll calls every region at once and answers, in their order, what came
// back within the deadline; a region that failed is a partial error.
func askAll[T any](ctx context.Context, conns []regionConn, call func(context.Context, regionConn) (T, error)) ([]T, []*nusav1.PartialError) {
	answers := make([]T, len(conns))
	failed := make([]error, len(conns))
	var g errgroup.Group
	g.SetLimit(regionCalls)
	for i, c := range conns {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, regionDeadline)
			defer cancel()
			answers[i], failed[i] = call(ctx, c)
			return nil
		})
	}
	_ = g.Wait() // the calls' errors are in failed
	var out []T
	var errs []*nusav1.PartialError
	for i, err := range failed {
		if err != nil {
			errs = append(errs, &nusav1.PartialError{Region: conns[i].name, Message: status.Convert(err).Message()})
			continue
		}
		out = append(out, answers[i])
	}
	return out, errs
}

// follow calls send at once and after each change of the state, until the
// caller goes, the reign ends, or send answers false or an error. Changes are
// coalesced to at most ten a second.
func (a *active) follow(ctx context.Context, send func() (more bool, err error)) error {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		a.st.mu.Lock()
		changed := a.st.changed
		a.st.mu.Unlock()
		if more, err := send(); err != nil || !more {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.ctx.Done():
			return apiError(ErrNotActive)
		case <-changed:
		}
		pause.Reset(watchPause)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.ctx.Done():
			return apiError(ErrNotActive)
		case <-pause.C:
		}
	}
}
