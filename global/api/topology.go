package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/global/latency"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/topo"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// topologyAPI is the public Topology service.
type topologyAPI struct {
	nusav1.UnimplementedTopologyServer
	s *Services
}

// Get implements nusav1.TopologyServer.
func (t *topologyAPI) Get(ctx context.Context, req *nusav1.GetTopologyRequest) (*nusav1.TopologyTree, error) {
	term, err := t.s.term()
	if err != nil {
		return nil, err
	}
	servers, err := t.s.Servers(ctx)
	if err != nil {
		return nil, rpcError(err)
	}
	for _, server := range servers {
		if server.GetActive() {
			server.Store = term.State.Usage()
		}
	}
	out := &nusav1.TopologyTree{Servers: servers, Regions: term.regions(nil)}
	if req.GetNodes() {
		nodes, err := listNodes(ctx, term, &nusav1.ListNodesRequest{})
		if err != nil {
			return nil, err
		}
		out.Nodes, out.Errors = nodes.GetNodes(), nodes.GetErrors()
	}
	return out, nil
}

// view returns the term and its present view of the topology. fields maps names of request fields
// to their values. Each value must be the name of a region.
func (t *topologyAPI) view(fields map[string]string) (*Term, *latency.Cache, error) {
	term, err := t.s.term()
	if err != nil {
		return nil, nil, err
	}
	term.State.Lock()
	defer term.State.Unlock()
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		if name := fields[field]; term.State.Regions[name] == nil {
			return nil, nil, unknownRegion(term.State, field, name)
		}
	}
	return term, term.State.TopologyCache(), nil
}

// optional returns the argument of view for a request field that may be empty.
func optional(field, name string) map[string]string {
	if name == "" {
		return nil
	}
	return map[string]string{field: name}
}

// Matrix implements nusav1.TopologyServer.
func (t *topologyAPI) Matrix(_ context.Context, req *nusav1.MatrixRequest) (*nusav1.MatrixResponse, error) {
	if err := topo.ValidateMatrixRequest(req); err != nil {
		return nil, err
	}
	_, p, err := t.view(optional("from", req.GetFrom()))
	if err != nil {
		return nil, err
	}
	return topo.MatrixPage(p.View, req), nil
}

// Path implements nusav1.TopologyServer.
func (t *topologyAPI) Path(_ context.Context, req *nusav1.PathRequest) (*nusav1.PathResponse, error) {
	percentile, options, err := topo.ParsePathRequest(req)
	if err != nil {
		return nil, err
	}
	term, p, err := t.view(map[string]string{"from": req.GetFrom(), "to": req.GetTo()})
	if err != nil {
		return nil, err
	}
	if options.Weights.CPU > 0 || options.Weights.Queue > 0 {
		term.State.Lock()
		options.Weights.Loads = loads(term.State)
		term.State.Unlock()
	}
	paths, err := p.Routers.At(percentile).Paths(req.GetFrom(), req.GetTo(), options)
	if err != nil {
		return nil, rpcError(err)
	}
	return topo.PathsToProto(paths), nil
}

// loads returns the loads of the connected regions that report them. The lock is held.
func loads(st *state.State) map[string]topology.Load {
	out := make(map[string]topology.Load, len(st.Regions))
	for name, r := range st.Regions {
		if load, known := r.Load.Load(); known && r.Session != nil {
			out[name] = load
		}
	}
	return out
}

// Nearest implements nusav1.TopologyServer.
func (t *topologyAPI) Nearest(_ context.Context, req *nusav1.NearestRequest) (*nusav1.NearestResponse, error) {
	q, err := topo.ParseNearestRequest(req, "")
	if err != nil {
		return nil, err
	}
	_, p, err := t.view(optional("region", q.Region))
	if err != nil {
		return nil, err
	}
	return topo.NeighboursToProto(q.Run(p.View)), nil
}

// Check implements nusav1.TopologyServer. A check tries every relay for every pair of regions,
// which takes a second for 1,000 regions. So only one check runs at a time.
func (t *topologyAPI) Check(ctx context.Context, req *nusav1.CheckTopologyRequest) (*nusav1.CheckTopologyResponse, error) {
	options, err := topo.ParseCheckRequest(req)
	if err != nil {
		return nil, err
	}
	term, p, err := t.view(nil)
	if err != nil {
		return nil, err
	}
	select {
	case term.checks <- struct{}{}:
	case <-ctx.Done():
		return nil, rpcError(ctx.Err())
	}
	defer func() { <-term.checks }()
	return topo.ReportToProto(topology.Check(p.View, options)), nil
}

// History implements nusav1.TopologyServer. It asks a region, because each region holds the history
// of its own measurements.
func (t *topologyAPI) History(ctx context.Context, req *nusav1.HistoryRequest) (*nusav1.HistoryResponse, error) {
	if _, err := topo.ParseHistoryRequest(req, time.Now()); err != nil {
		return nil, err
	}
	term, err := t.s.term()
	if err != nil {
		return nil, err
	}
	if req.GetRegion() == "" {
		return nil, regionMissing(term.State, req)
	}
	conn, err := term.dial(req.GetRegion())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, regionDeadline)
	defer cancel()
	return nusav1.NewTopologyClient(conn).History(ctx, req)
}

// regionMissing returns the error of a request for history without a region.
func regionMissing(st *state.State, req *nusav1.HistoryRequest) error {
	st.Lock()
	defer st.Unlock()
	if to := req.GetKey(); to != "" && req.GetKind() == "edge" && st.Regions[to] == nil {
		return unknownRegion(st, "key", to)
	}
	return invalid("region", fmt.Sprintf("is missing: each region keeps the history of its own edges, nodes and pools; there are %s", topo.ListNames(st.RegionNames())))
}

// Watch implements nusav1.TopologyServer. It sends the whole matrix, or the changes since a token.
// After that it sends the edges that change noticeably.
func (t *topologyAPI) Watch(req *nusav1.MatrixRequest, stream grpc.ServerStreamingServer[nusav1.MatrixResponse]) error {
	if err := topo.ValidateMatrixRequest(req); err != nil {
		return err
	}
	term, _, err := t.view(optional("from", req.GetFrom()))
	if err != nil {
		return err
	}
	at := topo.ParseWatchToken(req.GetToken(), term.State.Epoch, req.GetFrom())
	err = term.follow(stream.Context(), func() (<-chan struct{}, error) {
		changed := term.State.Changed.C()
		term.State.Lock()
		if from := req.GetFrom(); from != "" && term.State.Regions[from] == nil {
			err := unknownRegion(term.State, "from", from)
			term.State.Unlock()
			return nil, err
		}
		view, now := term.State.TopologyView(), term.State.Clock()
		term.State.Unlock()
		var err error
		at, err = term.matrixChanges.SendChanges(view, now, at, term.State.Epoch, req.GetFrom(), stream.Send)
		return changed, err
	})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
