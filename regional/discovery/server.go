package discovery

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/catalog"
	"github.com/nusa-scheduler/nusa/internal/discovery"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/security/rights"
	"github.com/nusa-scheduler/nusa/topology"
)

// errStopping ends the streams of a server that stops, or that is the master no longer.
var errStopping = status.Error(codes.Unavailable, "this server stops, or is the master no longer")

// Server serves Discovery for the region's agents and its other servers, and Services for users. Only
// the master serves calls: other servers forward them.
type Server struct {
	nusav1.UnimplementedDiscoveryServer
	Store *discovery.Store
	// Current returns the Exchange of this server's term, and a channel that is closed when the term
	// ends. The Exchange is nil while this server is not the master.
	Current func() (*Exchange, <-chan struct{})
	// Stopping is closed when the server stops.
	Stopping <-chan struct{}
	// Streams counts the goroutines that belong to streams.
	Streams *sync.WaitGroup
}

// Register registers the services.
func (s *Server) Register(g grpc.ServiceRegistrar) {
	nusav1.RegisterDiscoveryServer(g, s)
	nusav1.RegisterServicesServer(g, &discovery.Service{
		Store: func() (*discovery.Store, error) {
			if e, _ := s.Current(); e == nil {
				return nil, raftlog.ErrNoMaster
			}
			return s.Store, nil
		},
		May: func(ctx context.Context, namespace, region string) bool { return rights.Of(ctx).May(namespace, region) },
		Distances: func(from string) func(string) catalog.Distance {
			e, _ := s.Current()
			if e == nil {
				return nil
			}
			view := e.View()
			return func(to string) catalog.Distance { return distanceOf(view, from, to) }
		},
	})
}

// Follow sends the instances of all regions until the caller, the term or the server ends.
func (s *Server) Follow(req *nusav1.FollowServicesRequest, stream nusav1.Discovery_FollowServer) error {
	e, ended := s.Current()
	if e == nil {
		return raftlog.ErrNoMaster
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	s.Streams.Go(func() {
		select {
		case <-ctx.Done():
		case <-ended:
		case <-s.Stopping:
		}
		cancel()
	})
	err := discovery.Serve(ctx, s.Store, req, "", stream.Send)
	if stream.Context().Err() == nil && ctx.Err() != nil {
		return errStopping
	}
	return err
}

// distanceOf returns the distance between two regions.
func distanceOf(view *topology.View, from, to string) catalog.Distance {
	d := view.Distance(from, to, topology.Percentile(50))
	if !d.Known() {
		return catalog.Distance{}
	}
	return catalog.Distance{RTT: d.RTT, Source: d.Source}
}
