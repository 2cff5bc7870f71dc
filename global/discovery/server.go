package discovery

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/catalog"
	"github.com/nusa-scheduler/nusa/internal/discovery"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/rights"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// server serves the present term.
type server struct {
	nusav1.UnimplementedDiscoveryServer
	current func() *Exchange
}

// Register registers the services. current returns the Exchange of the present term, or nil if this
// server is not active.
func Register(g grpc.ServiceRegistrar, current func() *Exchange) {
	s := &server{current: current}
	nusav1.RegisterDiscoveryServer(g, s)
	nusav1.RegisterServicesServer(g, &discovery.Service{
		Store: func() (*discovery.Store, error) {
			e, err := s.exchange()
			if err != nil {
				return nil, err
			}
			return e.store, e.await()
		},
		May: func(ctx context.Context, namespace, region string) bool { return rights.Of(ctx).May(namespace, region) },
		Exists: func(region string) bool {
			e, err := s.exchange()
			return err != nil || e.exists(region)
		},
		Distances: func(from string) func(string) catalog.Distance {
			e, err := s.exchange()
			if err != nil {
				return nil
			}
			return e.distancesFrom(from)
		},
	})
}

func (s *server) exchange() (*Exchange, error) {
	if e := s.current(); e != nil {
		return e, nil
	}
	return nil, state.RPCErrors.Err(state.ErrNotActive)
}

// Publish stores the instances of a region.
func (s *server) Publish(stream nusav1.Discovery_PublishServer) error {
	e, err := s.exchange()
	if err != nil {
		return err
	}
	ended, region := make(chan error, 1), ""
	go func() {
		ended <- discovery.Receive(e.store, stream, func(first *nusav1.ServiceChanges) error {
			region = first.GetRegion()
			if err := ofRegion(stream.Context(), first.GetRegion()); err != nil {
				return err
			}
			return e.check(first.GetRegion(), first.GetSession())
		})
	}()
	select {
	case err := <-ended:
		e.noteFull(region, err)
		return err
	case <-e.ctx.Done():
		// The end of the stream ends the goroutine.
		return state.RPCErrors.Err(state.ErrNotActive)
	}
}

// Follow sends a region the instances of all other regions.
func (s *server) Follow(req *nusav1.FollowServicesRequest, stream nusav1.Discovery_FollowServer) error {
	e, err := s.exchange()
	if err != nil {
		return err
	}
	if err := ofRegion(stream.Context(), req.GetRegion()); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	stop := context.AfterFunc(e.ctx, cancel)
	defer stop()
	err = discovery.Serve(ctx, e.store, req, req.GetRegion(), stream.Send)
	if e.ctx.Err() != nil {
		return state.RPCErrors.Err(state.ErrNotActive)
	}
	return err
}

// ofRegion returns an error if the caller's certificate is of another region.
func ofRegion(ctx context.Context, region string) error {
	id, known := trust.CallerOf(ctx)
	if known && (id.Kind != identity.Server || id.Region != region) {
		return status.Errorf(codes.PermissionDenied, "%s may not exchange the services of region %q", id.Describe(), region)
	}
	return nil
}
