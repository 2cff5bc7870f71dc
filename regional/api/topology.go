package api

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/topo"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// topologies is the Topology service of a region. It describes the whole federation, with
// or without the global tier. Its edges are those that this region measured, and those that
// the global tier and other regions sent. Each edge has its age and its source.
type topologies struct {
	nusav1.UnimplementedTopologyServer
	s *Server
}

// Get returns the regions that this region knows, and also this region's nodes if the
// request asks for them.
func (t topologies) Get(_ context.Context, req *nusav1.GetTopologyRequest) (*nusav1.TopologyTree, error) {
	m, err := t.s.master()
	if err != nil {
		return nil, err
	}
	out := &nusav1.TopologyTree{Regions: AllRegions(t.s, m, nil)}
	out.SeenBy, out.Alone = t.seenBy(m)
	if req.GetNodes() {
		view := t.s.State.View()
		for n := range view.Nodes() {
			out.Nodes = append(out.Nodes, nodeWithStats(m, view, n, t.s.Clock()))
		}
	}
	return out, nil
}

// view returns the present topology. It returns an error if one of the names is not a
// region of the topology. An empty name is ignored.
func (t topologies) view(names ...string) (*Master, *topology.View, error) {
	m, err := t.s.master()
	if err != nil {
		return nil, nil, err
	}
	v := m.Peers.View()
	return m, v, t.checkRegions(v, names)
}

// routers returns the routers of the present topology. It checks the names like the method
// view.
func (t topologies) routers(names ...string) (*Master, *topology.RouterCache, error) {
	m, err := t.s.master()
	if err != nil {
		return nil, nil, err
	}
	r := m.Peers.Routers()
	return m, r, t.checkRegions(r.View(), names)
}

// checkRegions returns an error if one of the names is not a region of the view.
func (t topologies) checkRegions(v *topology.View, names []string) error {
	for _, name := range names {
		if _, known := v.Region(name); name != "" && !known {
			return notFound(rpcerr.KindRegion, name, "region %q is not known in region %q, which knows %s", name, t.s.region(), topo.ListNames(v.Names()))
		}
	}
	return nil
}

// seenBy returns the region whose view a response has, and how long that region has been
// without the global tier. The time is 0 while a session exists, and nil if there never was
// one.
func (t topologies) seenBy(m *Master) (region string, alone *durationpb.Duration) {
	silence, received := t.s.Federation.Silence()
	switch {
	case m.Uplink.Connected():
		alone = durationpb.New(0)
	case received:
		alone = durationpb.New(silence)
	}
	return t.s.region(), alone
}

// Matrix returns every ordered pair of regions, or only the pairs from one region.
func (t topologies) Matrix(_ context.Context, req *nusav1.MatrixRequest) (*nusav1.MatrixResponse, error) {
	if err := topo.ValidateMatrixRequest(req); err != nil {
		return nil, err
	}
	m, v, err := t.view(req.GetFrom())
	if err != nil {
		return nil, err
	}
	out := topo.MatrixPage(v, req)
	out.SeenBy, out.Alone = t.seenBy(m)
	return out, nil
}

// Watch sends the whole matrix, and then the edges that change noticeably. Tokens belong to
// the global tier, so a watch of a region cannot continue an earlier one.
func (t topologies) Watch(req *nusav1.MatrixRequest, stream grpc.ServerStreamingServer[nusav1.MatrixResponse]) error {
	if err := topo.ValidateMatrixRequest(req); err != nil {
		return err
	}
	var at topo.WatchPosition
	return t.s.everySecond(stream.Context(), func(m *Master) error {
		routers := m.Peers.Routers()
		err := t.checkRegions(routers.View(), []string{req.GetFrom()})
		if err != nil {
			return err
		}
		at, err = m.MatrixWatches.SendChanges(routers.View(), m.Peers.Now(), at, "", req.GetFrom(), func(page *nusav1.MatrixResponse) error {
			page.Token = ""
			page.SeenBy, page.Alone = t.seenBy(m)
			return stream.Send(page)
		})
		return err
	})
}

// Path returns the best paths. A region does not know the load of other regions. A path
// whose weights ask for load says so.
func (t topologies) Path(_ context.Context, req *nusav1.PathRequest) (*nusav1.PathResponse, error) {
	p, options, err := topo.ParsePathRequest(req)
	if err != nil {
		return nil, err
	}
	m, routers, err := t.routers(req.GetFrom(), req.GetTo())
	if err != nil {
		return nil, err
	}
	paths, err := routers.At(p).Paths(req.GetFrom(), req.GetTo(), options)
	if err != nil {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	out := topo.PathsToProto(paths)
	out.SeenBy, out.Alone = t.seenBy(m)
	return out, nil
}

// Nearest returns regions by distance from the region of the request. The default is this
// region.
func (t topologies) Nearest(_ context.Context, req *nusav1.NearestRequest) (*nusav1.NearestResponse, error) {
	q, err := topo.ParseNearestRequest(req, t.s.region())
	if err != nil {
		return nil, err
	}
	m, v, err := t.view(q.Region)
	if err != nil {
		return nil, err
	}
	out := topo.NeighboursToProto(q.Run(v))
	out.SeenBy, out.Alone = t.seenBy(m)
	return out, nil
}

// Check lists anomalies in the topology that this region knows.
func (t topologies) Check(_ context.Context, req *nusav1.CheckTopologyRequest) (*nusav1.CheckTopologyResponse, error) {
	options, err := topo.ParseCheckRequest(req)
	if err != nil {
		return nil, err
	}
	m, v, err := t.view()
	if err != nil {
		return nil, err
	}
	out := topo.ReportToProto(topology.Check(v, options))
	out.SeenBy, out.Alone = t.seenBy(m)
	return out, nil
}
