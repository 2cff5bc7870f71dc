package clienttest

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// SetRegion adds or replaces a region. The server uses the message, so the caller must not change
// it afterwards.
func (s *Server) SetRegion(r *nusav1.Region) {
	_ = s.change(func() error {
		s.regions[r.GetDefinition().GetName()] = r
		return nil
	})
}

type regions struct {
	nusav1.UnimplementedRegionsServer
	s *Server
}

// List implements nusav1.RegionsServer. It ignores the labels of the request.
func (r regions) List(context.Context, *nusav1.ListRegionsRequest) (*nusav1.ListRegionsResponse, error) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	out := &nusav1.ListRegionsResponse{}
	for _, name := range slices.Sorted(maps.Keys(r.s.regions)) {
		out.Regions = append(out.Regions, r.s.regions[name])
	}
	return out, nil
}

// Get implements nusav1.RegionsServer.
func (r regions) Get(_ context.Context, req *nusav1.GetRegionRequest) (*nusav1.Region, error) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if one := r.s.regions[req.GetName()]; one != nil {
		return one, nil
	}
	return nil, rpcerr.NotFound(rpcerr.KindRegion, req.GetName(), "region "+req.GetName()+" does not exist")
}

// Watch implements nusav1.RegionsServer.
func (r regions) Watch(_ *nusav1.ListRegionsRequest, to grpc.ServerStreamingServer[nusav1.Region]) error {
	sent := map[string]*nusav1.Region{}
	for {
		r.s.mu.Lock()
		now, changed := maps.Clone(r.s.regions), r.s.changed
		r.s.mu.Unlock()
		for _, name := range slices.Sorted(maps.Keys(now)) {
			if sent[name] == now[name] {
				continue
			}
			if err := to.Send(now[name]); err != nil {
				return err
			}
			sent[name] = now[name]
		}
		select {
		case <-changed:
		case <-to.Context().Done():
			return status.FromContextError(to.Context().Err()).Err()
		}
	}
}

// AddEvent adds an event. All watches of events get it.
func (s *Server) AddEvent(kind, subject, message string) {
	_ = s.change(func() error {
		s.event(kind, subject, message)
		return nil
	})
}

type events struct {
	nusav1.UnimplementedEventsServer
	s *Server
}

// Watch implements nusav1.EventsServer. It knows the token, the types and the time of the request.
func (e events) Watch(req *nusav1.WatchEventsRequest, to grpc.ServerStreamingServer[nusav1.Event]) error {
	e.s.mu.Lock()
	next := len(e.s.events)
	from := time.Now().Add(-req.GetSince().AsDuration())
	for req.GetSince() != nil && next > 0 && !e.s.events[next-1].GetTime().AsTime().Before(from) {
		next--
	}
	e.s.mu.Unlock()
	if token := req.GetToken(); token != "" { // or the number of an event
		n, err := strconv.Atoi(strings.TrimPrefix(token, "clienttest-"))
		if err != nil || n < 0 || n > next {
			return rpcerr.Invalid(&nusav1.Problem{Field: "token", Message: "is not a token of this server"})
		}
		next = n
	}
	for {
		e.s.mu.Lock()
		all, changed := e.s.events, e.s.changed
		e.s.mu.Unlock()
		for ; next < len(all); next++ {
			if !wanted(req.GetTypes(), all[next].GetType()) {
				continue
			}
			if err := to.Send(all[next]); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-to.Context().Done():
			return status.FromContextError(to.Context().Err()).Err()
		}
	}
}

// wanted reports whether a type begins with one of the prefixes. Without prefixes every type does.
func wanted(prefixes []string, kind string) bool {
	return len(prefixes) == 0 || slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(kind, p) })
}

type system struct {
	nusav1.UnimplementedSystemServer
}

// Info implements nusav1.SystemServer.
func (system) Info(context.Context, *nusav1.InfoRequest) (*nusav1.InfoResponse, error) {
	return &nusav1.InfoResponse{Role: "global", Name: "clienttest", Leader: true}, nil
}
