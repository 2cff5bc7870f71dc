package api

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/filter"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/rights"
)

var errGlobalTier = status.Error(codes.FailedPrecondition, "regions are defined, cordoned and removed by the global tier: ask a global server")

// regions is the Regions service. It describes this region, and what this region knows
// about the others.
type regions struct {
	nusav1.UnimplementedRegionsServer
	s *Server
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

// ownRegion describes this region.
func ownRegion(s *Server, m *Master) *nusav1.Region {
	name, address := s.KnownMaster()
	view := s.State.View()
	c := view.Cluster()
	out := &nusav1.Region{
		Definition: s.Region, State: nusav1.RegionState_REGION_STATE_ISLAND,
		ClusterId: m.Cluster.ID, Incarnation: m.Cluster.Incarnation, Term: m.Term,
		Master: name, MasterAddress: address, Servers: s.Servers(),
		Report: m.Report(),
		Fence:  c.Fence, AppliedIndex: view.Index(), FeatureLevel: c.FeatureLevel, RestoreId: c.RestoreID,
		FailoverMessage: m.Uplink.Refused(),
	}
	if set, silence, received := s.rightsAge(); set != nil && received {
		out.PolicyVersion, out.PolicyAge = set.Message().GetVersion(), durationpb.New(silence)
	}
	if m.Uplink.Connected() {
		out.State = nusav1.RegionState_REGION_STATE_CONNECTED
	}
	if why := m.Uplink.LeaseMissing(); why != "" && out.FailoverMessage == "" {
		out.FailoverMessage = "the region holds no lease from the global tier, and what that lease binds does not run: " + why
	}
	if blocked := m.Uplink.CommitBlocked(); blocked > 0 {
		out.CommitBlocked = durationpb.New(blocked)
	}
	return out
}

// AllRegions describes this region and the regions that the global tier has listed, sorted
// by name. It returns only regions that have all of the labels.
func AllRegions(s *Server, m *Master, labels map[string]string) []*nusav1.Region {
	out := []*nusav1.Region{ownRegion(s, m)}
	for _, p := range m.Peers.Others() {
		r := &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: p.GetName(), Location: p.GetLocation(), Labels: p.GetLabels()}}
		for _, a := range p.GetProbeAddresses() {
			r.Servers = append(r.Servers, &nusav1.RegionalServer{ProbeAddress: a})
		}
		out = append(out, r)
	}
	out = slices.DeleteFunc(out, func(r *nusav1.Region) bool { return !filter.Labels(r.GetDefinition().GetLabels(), labels) })
	slices.SortFunc(out, func(a, b *nusav1.Region) int {
		return strings.Compare(a.GetDefinition().GetName(), b.GetDefinition().GetName())
	})
	return out
}

// List returns this region with everything that is known about it. About other regions it
// returns what the global tier sent.
func (r regions) List(ctx context.Context, req *nusav1.ListRegionsRequest) (*nusav1.ListRegionsResponse, error) {
	if err := filter.Check(req.GetStates(), filter.RegionStates); err != nil {
		return nil, err
	}
	m, err := r.s.master()
	if err != nil {
		return nil, err
	}
	call := rights.Of(ctx)
	filtered := call.Filtered()
	out := slices.DeleteFunc(AllRegions(r.s, m, req.GetLabels()), func(one *nusav1.Region) bool {
		return filtered && !call.May("", one.GetDefinition().GetName()) || !filter.Has(req.GetStates(), filter.Region(one)...)
	})
	return &nusav1.ListRegionsResponse{Regions: out}, nil
}

// Get returns one of the regions that List returns.
func (r regions) Get(_ context.Context, req *nusav1.GetRegionRequest) (*nusav1.Region, error) {
	m, err := r.s.master()
	if err != nil {
		return nil, err
	}
	for _, one := range AllRegions(r.s, m, nil) {
		if one.GetDefinition().GetName() == req.GetName() {
			return one, nil
		}
	}
	return nil, notFound(rpcerr.KindRegion, req.GetName(), "region %q is not known in region %q", req.GetName(), r.s.region())
}

// Watch sends every region, and then once a second the regions that have changed.
func (r regions) Watch(req *nusav1.ListRegionsRequest, stream grpc.ServerStreamingServer[nusav1.Region]) error {
	if len(req.GetStates()) > 0 {
		return rpcerr.Invalid(&nusav1.Problem{Field: "states", Message: "select regions in a list only: a watch tells each change of state"})
	}
	sent := map[string]*nusav1.Region{}
	call := rights.Of(stream.Context())
	filtered := call.Filtered()
	return r.s.everySecond(stream.Context(), func(m *Master) error {
		for _, one := range AllRegions(r.s, m, req.GetLabels()) {
			name := one.GetDefinition().GetName()
			if proto.Equal(one, sent[name]) || filtered && !call.May("", name) {
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

// Verify compares the states of the region's servers at one log index.
func (r regions) Verify(ctx context.Context, req *nusav1.GetRegionRequest) (*nusav1.VerifyRegionResponse, error) {
	own := r.s.region()
	if name := req.GetName(); name != "" && name != own {
		return nil, notFound(rpcerr.KindRegion, name, "this is region %q: ask a server of region %q, or a global one", own, name)
	}
	if _, err := r.s.master(); err != nil {
		return nil, err
	}
	return raftlog.Comparison{Region: own, View: r.s.State.View, Servers: r.s.Servers, Digest: r.digestOf}.Run(ctx)
}

// digestOf asks a server of the region for the digest of its state.
func (r regions) digestOf(ctx context.Context, server *nusav1.RegionalServer, index uint64) (*nusav1.StateDigest, error) {
	if server.GetAddress() == r.s.Address() {
		return digest(ctx, r.s.State, index)
	}
	conn, err := serve.Dial(r.s.Net, server.GetAddress(), r.s.Identity.Dial(identity.ServersOf(r.s.region())))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return nusav1.NewSiblingsClient(conn).State(ctx, &nusav1.StateRequest{Index: index})
}
