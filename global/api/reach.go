package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// regionDeadline is how long one region may take to answer its part of a call to many regions.
	regionDeadline = 5 * time.Second
	// regionCalls bounds the regions that one call asks at the same time.
	regionCalls = 32
)

// regionConn is the tunnel to a region's own services.
type regionConn struct {
	name string
	conn *grpc.ClientConn
}

// Dial returns the tunnel to one region.
func (t *Term) Dial(name string) (*grpc.ClientConn, error) { return t.dial(name) }

// dial returns the tunnel to one region.
func (t *Term) dial(name string) (*grpc.ClientConn, error) {
	connect, err := t.tunnel(name)
	if err != nil {
		return nil, err
	}
	return connect()
}

// tunnel returns the function that makes the tunnel to a region.
func (t *Term) tunnel(name string) (func() (*grpc.ClientConn, error), error) {
	t.State.Lock()
	defer t.State.Unlock()
	r := t.State.Regions[name]
	switch {
	case r == nil:
		return nil, unknownRegion(t.State, "region", name)
	case r.Session == nil:
		return nil, status.Errorf(codes.Unavailable, "region %s is %s; ask one of its own servers", name, t.State.Sight().Absence(name))
	}
	return r.Session.Conn, nil
}

// reach returns the tunnels to the named regions, and an error for each named region that is not
// connected. A nil names means all regions.
func (t *Term) reach(names []string) ([]regionConn, []*nusav1.PartialError) {
	var conns []regionConn
	var errs []*nusav1.PartialError
	connect := map[string]func() (*grpc.ClientConn, error){}
	t.State.Lock()
	if names == nil {
		names = t.State.RegionNames()
	}
	for _, name := range names {
		switch r := t.State.Regions[name]; {
		case r == nil || r.Record.GetClusterId() == "":
			// No cluster has ever connected under this name, so there is nothing to ask.
		case r.Session == nil:
			errs = append(errs, &nusav1.PartialError{Region: name, Message: t.State.Sight().Absence(name)})
		default:
			connect[name] = r.Session.Conn
		}
	}
	t.State.Unlock()
	for _, name := range names {
		if connect[name] == nil {
			continue
		}
		conn, err := connect[name]()
		if err != nil {
			errs = append(errs, &nusav1.PartialError{Region: name, Message: status.Convert(err).Message()})
			continue
		}
		conns = append(conns, regionConn{name, conn})
	}
	return conns, errs
}

// askAll calls all regions at the same time. It returns the results that arrive within the
// deadline, in the order of the regions. A region that failed is a partial error.
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
	_ = g.Wait() // failed has the errors of the calls
	var out []T
	var errs []*nusav1.PartialError
	for i, err := range failed {
		if err != nil {
			errs = append(errs, &nusav1.PartialError{Region: conns[i].name, Message: failureText(err)})
			continue
		}
		out = append(out, answers[i])
	}
	return out, errs
}

// AskRegions makes a call to the named regions, or to all if names is nil. It returns the results and a
// partial error for each region that could not be asked.
func AskRegions[T any](ctx context.Context, t *Term, names []string, call func(context.Context, string, *grpc.ClientConn) (T, error)) ([]T, []*nusav1.PartialError) {
	conns, errs := t.reach(names)
	answers, failed := askAll(ctx, conns, func(ctx context.Context, c regionConn) (T, error) {
		out, err := call(ctx, c.name, c.conn)
		return out, ofRegion(c.name, err)
	})
	return answers, append(errs, failed...)
}

// KnownRegion returns an error if there is no region of that name.
func KnownRegion(t *Term, name string) error {
	t.State.Lock()
	defer t.State.Unlock()
	if t.State.Regions[name] == nil {
		return unknownRegion(t.State, "region", name)
	}
	return nil
}

// failureText says why a region did not answer its part of a call.
func failureText(err error) string {
	if status.Code(err) == codes.DeadlineExceeded {
		return fmt.Sprintf("no answer within %s: it may be cut off, which `nusa region list` shows soon", regionDeadline)
	}
	return status.Convert(err).Message()
}

// relay copies a stream from a region to the caller.
func relay[T any](up grpc.ServerStreamingClient[T], send func(*T) error) error {
	for {
		m, err := up.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := send(m); err != nil {
			return err
		}
	}
}
