package regional

import (
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

var errGlobalTier = status.Error(codes.FailedPrecondition, "regions are defined, cordoned and removed by the global tier: ask a global server")

// regions tells about this region, and what it was told about the others.
type regions struct {
	nusav1.UnimplementedRegionsServer
	s *server
}

func (regions) Define(context.Context, *nusav1.DefineRegionRequest) (*nusav1.Region, error) {
	return nil, errGlobalTier
}

func (regions) Cordon(context.Context, *nusav1.CordonRegionRequest) (*nusav1.Region, error) {
	return nil, errGlobalTier
}

func (regions) Remove(context.Context, *nusav1.GetRegionRequest) (*nusav1.RemoveRegionResponse, error) {
	return nil, errGlobalTier
}

// own is this region as it sees itself.
func (l *leader) own() *nusav1.Region {
	name, address := l.s.master()
	out := &nusav1.Region{
		Definition: l.s.cfg.Region, State: nusav1.RegionState_REGION_STATE_ISLAND,
		ClusterId: l.cluster.ID, Incarnation: l.cluster.Incarnation, Term: l.term,
		Master: name, MasterAddress: address, Servers: l.s.servers(),
		Report: l.reporter.Report(nil),
	}
	if l.uplink.Connected() {
		out.State = nusav1.RegionState_REGION_STATE_CONNECTED
	}
	return out
}

// all is this region and those that the global tier named, by name.
func (l *leader) all(labels map[string]string) []*nusav1.Region {
	out := []*nusav1.Region{l.own()}
	for _, p := range l.prober.Others() {
		r := &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: p.GetName(), Location: p.GetLocation(), Labels: p.GetLabels()}}
		for _, a := range p.GetProbeAddresses() {
			r.Servers = append(r.Servers, &nusav1.RegionalServer{ProbeAddress: a})
		}
		out = append(out, r)
	}
	out = slices.DeleteFunc(out, func(r *nusav1.Region) bool { return !matches(r.GetDefinition().GetLabels(), labels) })
	slices.SortFunc(out, func(a, b *nusav1.Region) int {
		return strings.Compare(a.GetDefinition().GetName(), b.GetDefinition().GetName())
	})
	return out
}

// List answers this region whole, the others as far as they are known here.
func (r regions) List(_ context.Context, req *nusav1.ListRegionsRequest) (*nusav1.ListRegionsResponse, error) {
	l, err := r.s.leading()
	if err != nil {
		return nil, err
	}
	return &nusav1.ListRegionsResponse{Regions: l.all(req.GetLabels())}, nil
}

// Get answers one of List.
func (r regions) Get(_ context.Context, req *nusav1.GetRegionRequest) (*nusav1.Region, error) {
	l, err := r.s.leading()
	if err != nil {
		return nil, err
	}
	for _, one := range l.all(nil) {
		if one.GetDefinition().GetName() == req.GetName() {
			return one, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "region %q is not known in region %q", req.GetName(), r.s.cfg.Region.GetName())
}

// Watch sends every region, then each one that changed, looked at once a
// second.
func (r regions) Watch(req *nusav1.ListRegionsRequest, stream grpc.ServerStreamingServer[nusav1.Region]) error {
	sent := map[string]*nusav1.Region{}
	return r.s.everySecond(stream.Context(), func(l *leader) error {
		for _, one := range l.all(req.GetLabels()) {
			name := one.GetDefinition().GetName()
			if proto.Equal(one, sent[name]) {
				continue
			}
			sent[name] = one
			if err := stream.Send(one); err != nil {
				return err
			}
		}
		return nil
	})
}

// everySecond calls f at once and each second, until the stream, the office or
// the server ends.
func (s *server) everySecond(ctx context.Context, f func(*leader) error) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		l, err := s.leading()
		if err != nil {
			return err
		}
		if err := f(l); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.stopping:
			return status.Error(codes.Unavailable, "this server stops")
		case <-l.ctx.Done():
		case <-tick.C:
		}
	}
}

// system tells a client whom it talks to; every server answers for itself.
type system struct {
	nusav1.UnimplementedSystemServer
	s *server
}

func (y system) Info(context.Context, *nusav1.InfoRequest) (*nusav1.InfoResponse, error) {
	_, address := y.s.master()
	return &nusav1.InfoResponse{
		Role: "regional", Name: y.s.cfg.Name, Region: y.s.cfg.Region.GetName(), Version: y.s.cfg.Version,
		Leader: y.s.standing.leader() != nil, LeaderAddress: address,
	}, nil
}
