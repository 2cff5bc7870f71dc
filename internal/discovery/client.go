package discovery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/wait"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// The pause before another try grows from retryFrom to retryTo, and is jittered.
	retryFrom = 500 * time.Millisecond
	retryTo   = 30 * time.Second
	// steadyAfter is how long a stream must last for the pause to be short again.
	steadyAfter = 30 * time.Second
)

// Source fills a store from a server of the tier above, or from the master of the region.
type Source struct {
	Client nusav1.DiscoveryClient
	Store  *Store
	// Own is the region of the store's owner.
	Own string
	// Except is a region whose instances the store does not get from this source. Empty: none.
	Except string
	// Roster is called with each list of regions.
	Roster func(Roster)
	// Up is called with the first message, and Down after the end of a stream that had one.
	Up, Down func()
}

// Follow fills the store until ctx ends or the stream breaks.
func (f *Source) Follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req := &nusav1.FollowServicesRequest{Region: f.Own}
	have := f.Store.Positions(f.Except)
	for _, region := range slices.Sorted(maps.Keys(have)) {
		req.Have = append(req.Have, &nusav1.RegionPosition{Region: region, Position: positionToProto(have[region])})
	}
	stream, err := f.Client.Follow(ctx, req)
	if err != nil {
		return err
	}
	in, up := NewInbox(f.Store), false
	defer func() {
		if up {
			f.Down()
		}
	}()
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if m.GetRegions() != nil {
			f.Roster(RosterFrom(m.GetRegions(), f.Own, f.Store.clock()))
		}
		if !up {
			up = true
			f.Up()
		}
		if m.GetRegion() == "" || m.GetRegion() == f.Except {
			continue
		}
		if _, err := in.Add(m); err != nil {
			return err
		}
	}
}

// Publish sends the instances of a region to a global server, until ctx ends or the stream breaks.
// session is the id of the region's session.
func Publish(ctx context.Context, client nusav1.DiscoveryClient, s *Store, region, session string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	stream, err := client.Publish(ctx)
	if err != nil {
		return err
	}
	// After a failed Send, Recv returns the reason.
	if err := stream.Send(&nusav1.ServiceChanges{Region: region, Session: session}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	f := newFollower(s, map[string]link.Position{region: positionFromProto(first.GetPosition())})
	f.only = region
	g.Go(func() error {
		for {
			if _, err := stream.Recv(); err != nil {
				return err
			}
		}
	})
	g.Go(func() error {
		err := f.run(ctx, false, stream.Send)
		if errors.Is(err, io.EOF) {
			return nil // Recv returns the reason
		}
		return err
	})
	return g.Wait()
}

// Keep calls f again and again, with pauses that grow, until ctx ends. It ends at once if the server is
// of an earlier version and does not know the call. failed is called with each other error.
func Keep(ctx context.Context, f func(context.Context) error, failed func(error)) {
	for pause := retryFrom; ctx.Err() == nil; pause = min(2*pause, retryTo) {
		began := time.Now()
		err := f(ctx)
		if ctx.Err() != nil || status.Code(err) == codes.Unimplemented {
			return
		}
		if time.Since(began) >= steadyAfter {
			pause = retryFrom
		}
		failed(err)
		wait.For(ctx, pause/2+rand.N(pause))
	}
}

// LogFailures returns a function for Keep. It logs at the level debug, because the cause is usually a
// lost connection, about which another part warns. It warns if the instances do not fit.
func LogFailures(log *slog.Logger, what string) func(error) {
	return func(err error) {
		if errors.Is(err, ErrFull) || status.Code(err) == codes.ResourceExhausted {
			log.Warn("services are not complete: name fewer services, or run fewer instances with services", "what", what, "error", err)
			return
		}
		log.Debug("services are not updated now", "what", what, "error", err)
	}
}

// Receive stores the instances that a region publishes, and acknowledges them. check returns an error
// once the sender's session is over. It is called before each change.
func Receive(s *Store, stream nusav1.Discovery_PublishServer, check func(first *nusav1.ServiceChanges) error) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	region := first.GetRegion()
	if err := check(first); err != nil {
		return err
	}
	if err := stream.Send(&nusav1.ServiceAck{Position: positionToProto(s.Position(region))}); err != nil {
		return err
	}
	in := NewInbox(s)
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := check(first); err != nil {
			return err
		}
		if m.GetRegion() != region {
			return status.Errorf(codes.InvalidArgument, "the stream is for region %q, a message for region %q", region, m.GetRegion())
		}
		at, err := in.Add(m)
		switch {
		case errors.Is(err, ErrFull), errors.Is(err, link.ErrTooLarge):
			return status.Error(codes.ResourceExhausted, err.Error())
		case err != nil:
			return status.Error(codes.InvalidArgument, fmt.Sprintf("instances of services: %v", err))
		case at != (link.Position{}):
			if err := stream.Send(&nusav1.ServiceAck{Position: positionToProto(at)}); err != nil {
				return err
			}
		}
	}
}
