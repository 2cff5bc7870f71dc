package regional

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/origins"
	"github.com/nusa-scheduler/nusa/internal/topo"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// topologies answers for the whole federation, with or without the global tier:
// from this region's own row, what it was told and what it asked its peers. How
// old and of what kind each edge is, is said with it.
type topologies struct {
	nusav1.UnimplementedTopologyServer
	s *server
}

// Get is the tree as far as it is known here.
func (t topologies) Get(_ context.Context, req *nusav1.GetTopologyRequest) (*nusav1.TopologyTree, error) {
	l, err := t.s.leading()
	if err != nil {
		return nil, err
	}
	out := &nusav1.TopologyTree{Regions: l.all(nil)}
	out.SeenBy, out.Alone = t.s.seen(l)
	if req.GetNodes() {
		view := t.s.fsm.View()
		for n := range view.Nodes() {
			out.Nodes = append(out.Nodes, l.nodeWithStats(view, n))
		}
	}
	return out, nil
}

// view is the present topology of a leader; each of the named regions must be
// part of it.
func (s *server) view(names ...string) (*leader, *topology.View, error) {
	l, err := s.leading()
	if err != nil {
		return nil, nil, err
	}
	v, err := s.with(l.prober.View(), names)
	return l, v, err
}

// routers are of the present topology, as view.
func (s *server) routers(names ...string) (*leader, *topology.RouterCache, error) {
	l, err := s.leading()
	if err != nil {
		return nil, nil, err
	}
	r := l.prober.Routers()
	_, err = s.with(r.View(), names)
	return l, r, err
}

// with refuses names that are no regions of a view.
func (s *server) with(v *topology.View, names []string) (*topology.View, error) {
	for _, name := range names {
		if _, known := v.Region(name); name != "" && !known {
			return nil, s.noRegion(name, v)
		}
	}
	return v, nil
}

func (s *server) noRegion(name string, v *topology.View) error {
	return status.Errorf(codes.NotFound, "region %q is not known in region %q, which knows of %s", name, s.cfg.Region.GetName(), topo.ListNames(v.Names()))
}

// seen says whose view an answer is, and how old what that rests on may be.
func (s *server) seen(l *leader) (by string, alone *durationpb.Duration) {
	by = s.cfg.Region.GetName()
	switch silent, told := s.federation.Silence(); {
	case l.uplink.Connected():
		alone = durationpb.New(0)
	case told:
		alone = durationpb.New(silent)
	}
	return by, alone
}

// Matrix has every ordered pair, or those from one region.
func (t topologies) Matrix(_ context.Context, req *nusav1.MatrixRequest) (*nusav1.MatrixResponse, error) {
	if err := topo.ValidateMatrixRequest(req); err != nil {
		return nil, err
	}
	l, v, err := t.s.view(req.GetFrom())
	if err != nil {
		return nil, err
	}
	out := topo.MatrixPage(v, req)
	out.SeenBy, out.Alone = t.s.seen(l)
	return out, nil
}

// Watch sends the matrix, then the edges that changed noticeably. Tokens are the
// global tier's: here every watch begins anew.
func (t topologies) Watch(req *nusav1.MatrixRequest, stream grpc.ServerStreamingServer[nusav1.MatrixResponse]) error {
	if err := topo.ValidateMatrixRequest(req); err != nil {
		return err
	}
	var at topo.WatchPosition
	return t.s.everySecond(stream.Context(), func(l *leader) error {
		_, routers, err := t.s.routers(req.GetFrom())
		if err != nil {
			return err
		}
		at, err = l.prober.Watches.SendChanges(routers.View(), l.prober.Now(), at, "", req.GetFrom(), func(m *nusav1.MatrixResponse) error {
			m.Token = ""
			m.SeenBy, m.Alone = t.s.seen(l)
			return stream.Send(m)
		})
		return err
	})
}

// Path answers the best paths. The load of other regions is not known here, and
// paths whose weights ask for it say so.
func (t topologies) Path(_ context.Context, req *nusav1.PathRequest) (*nusav1.PathResponse, error) {
	p, options, err := topo.ParsePathRequest(req)
	if err != nil {
		return nil, err
	}
	l, routers, err := t.s.routers(req.GetFrom(), req.GetTo())
	if err != nil {
		return nil, err
	}
	paths, err := routers.At(p).Paths(req.GetFrom(), req.GetTo(), options)
	if err != nil {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	out := topo.PathsToProto(paths)
	out.SeenBy, out.Alone = t.s.seen(l)
	return out, nil
}

// Nearest answers regions by distance, from this one unless told otherwise.
func (t topologies) Nearest(_ context.Context, req *nusav1.NearestRequest) (*nusav1.NearestResponse, error) {
	q, err := topo.ParseNearestRequest(req, t.s.cfg.Region.GetName())
	if err != nil {
		return nil, err
	}
	l, v, err := t.s.view(q.Region)
	if err != nil {
		return nil, err
	}
	out := topo.NeighboursToProto(q.Run(v))
	out.SeenBy, out.Alone = t.s.seen(l)
	return out, nil
}

// Check lists what is odd in what is known here.
func (t topologies) Check(_ context.Context, req *nusav1.CheckTopologyRequest) (*nusav1.CheckTopologyResponse, error) {
	options, err := topo.ParseCheckRequest(req)
	if err != nil {
		return nil, err
	}
	l, v, err := t.s.view()
	if err != nil {
		return nil, err
	}
	out := topo.ReportToProto(topology.Check(v, options))
	out.SeenBy, out.Alone = t.s.seen(l)
	return out, nil
}

var errOriginsAbove = status.Error(codes.FailedPrecondition, "origin records are set and removed by the global tier: ask a global server")

// originRecords answers from the global tier's records as it last told them.
type originRecords struct {
	nusav1.UnimplementedOriginsServer
	s *server
}

func (originRecords) Set(context.Context, *nusav1.SetOriginsRequest) (*nusav1.OriginRecord, error) {
	return nil, errOriginsAbove
}

func (originRecords) Remove(context.Context, *nusav1.RemoveOriginsRequest) (*nusav1.RemoveOriginsResponse, error) {
	return nil, errOriginsAbove
}

// table is what was told, and how old that is: nothing while the session with
// the global tier stands.
func (o originRecords) table() (*origins.Table, *durationpb.Duration, error) {
	l, err := o.s.leading()
	if err != nil {
		return nil, nil, err
	}
	table, age, told := o.s.federation.Origins()
	if !told {
		return nil, nil, status.Errorf(codes.FailedPrecondition, "region %q has not heard of any origin records from the global tier yet", o.s.cfg.Region.GetName())
	}
	if l.uplink.Connected() {
		age = 0
	}
	return table, durationpb.New(age), nil
}

// List answers every record.
func (o originRecords) List(context.Context, *nusav1.ListOriginsRequest) (*nusav1.ListOriginsResponse, error) {
	table, age, err := o.table()
	if err != nil {
		return nil, err
	}
	return &nusav1.ListOriginsResponse{Records: slices.Clone(table.Records()), Age: age}, nil
}

// Resolve chooses by what this region knows of the topology; a client that does
// not say where it is, is here. The age is the time since the global tier was
// last heard, and the path says what kind of values it rests on.
func (o originRecords) Resolve(_ context.Context, req *nusav1.ResolveOriginRequest) (*nusav1.ResolveOriginResponse, error) {
	table, age, err := o.table()
	if err != nil {
		return nil, err
	}
	_, routers, err := o.s.routers()
	if err != nil {
		return nil, err
	}
	if req.GetRegion() == "" && req.GetLocation() == nil {
		req = &nusav1.ResolveOriginRequest{Domain: req.GetDomain(), Region: o.s.cfg.Region.GetName(), Current: req.GetCurrent()}
	}
	out, err := table.Resolve(req, routers.At)
	if err != nil {
		return nil, err
	}
	out.Age = age
	return out, nil
}
