package global

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/internal/topo"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// topologyAPI is the public Topology service.
type topologyAPI struct {
	nusav1.UnimplementedTopologyServer
	s *server
}

// Get implements nusav1.TopologyServer.
func (t *topologyAPI) Get(ctx context.Context, req *nusav1.GetTopologyRequest) (*nusav1.TopologyTree, error) {
	a, err := t.s.current()
	if err != nil {
		return nil, err
	}
	servers, err := t.s.servers(ctx)
	if err != nil {
		return nil, apiError(err)
	}
	out := &nusav1.TopologyTree{Servers: servers, Regions: a.regions(nil)}
	if req.GetNodes() {
		nodes, err := a.nodes(ctx, &nusav1.ListNodesRequest{})
		if err != nil {
			return nil, err
		}
		out.Nodes, out.Errors = nodes.GetNodes(), nodes.GetErrors()
	}
	return out, nil
}

// picture is the present topology; with names, each must be a region of it.
func (t *topologyAPI) picture(fields map[string]string) (*active, *picture, error) {
	a, err := t.s.current()
	if err != nil {
		return nil, nil, err
	}
	a.st.mu.Lock()
	defer a.st.mu.Unlock()
	for _, field := range sortedKeys(fields) {
		if name := fields[field]; a.st.Regions[name] == nil {
			return nil, nil, a.st.NoRegion(field, name)
		}
	}
	return a, a.st.topologyPicture(), nil
}

// optional is a field for picture that may be left out.
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
	_, p, err := t.picture(optional("from", req.GetFrom()))
	if err != nil {
		return nil, err
	}
	return topo.MatrixPage(p.view, req), nil
}

// Path implements nusav1.TopologyServer.
func (t *topologyAPI) Path(_ context.Context, req *nusav1.PathRequest) (*nusav1.PathResponse, error) {
	percentile, options, err := topo.ParsePathRequest(req)
	if err != nil {
		return nil, err
	}
	a, p, err := t.picture(map[string]string{"from": req.GetFrom(), "to": req.GetTo()})
	if err != nil {
		return nil, err
	}
	if options.Weights.CPU > 0 || options.Weights.Queue > 0 {
		a.st.mu.Lock()
		options.Weights.Loads = a.st.loads()
		a.st.mu.Unlock()
	}
	paths, err := p.routers.At(percentile).Paths(req.GetFrom(), req.GetTo(), options)
	if err != nil {
		return nil, apiError(err)
	}
	return topo.PathsToProto(paths), nil
}

// Nearest implements nusav1.TopologyServer.
func (t *topologyAPI) Nearest(_ context.Context, req *nusav1.NearestRequest) (*nusav1.NearestResponse, error) {
	q, err := topo.ParseNearestRequest(req, "")
	if err != nil {
		return nil, err
	}
	_, p, err := t.picture(optional("region", q.Region))
	if err != nil {
		return nil, err
	}
	return topo.NeighboursToProto(q.Run(p.view)), nil
}

// Check implements nusav1.TopologyServer. It looks at every relay of every pair,
// a second for 1,000 regions, so one runs at a time.
func (t *topologyAPI) Check(ctx context.Context, req *nusav1.CheckTopologyRequest) (*nusav1.CheckTopologyResponse, error) {
	options, err := topo.ParseCheckRequest(req)
	if err != nil {
		return nil, err
	}
	a, p, err := t.picture(nil)
	if err != nil {
		return nil, err
	}
	select {
	case a.checks <- struct{}{}:
	case <-ctx.Done():
		return nil, apiError(ctx.Err())
	}
	defer func() { <-a.checks }()
	return topo.ReportToProto(topology.Check(p.view, options)), nil
}

// History implements nusav1.TopologyServer: regions keep what they measured, and
// are asked for it.
func (t *topologyAPI) History(ctx context.Context, req *nusav1.HistoryRequest) (*nusav1.HistoryResponse, error) {
	if _, err := topo.ParseHistoryRequest(req, time.Now()); err != nil {
		return nil, err
	}
	a, err := t.s.current()
	if err != nil {
		return nil, err
	}
	if req.GetRegion() == "" {
		return nil, a.st.whoseHistory(req)
	}
	conn, err := a.dial(req.GetRegion())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, regionDeadline)
	defer cancel()
	return nusav1.NewTopologyClient(conn).History(ctx, req)
}

// whoseHistory is the error of a question for history without a region.
func (st *State) whoseHistory(req *nusav1.HistoryRequest) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if to := req.GetKey(); to != "" && req.GetKind() == "edge" && st.Regions[to] == nil {
		return st.NoRegion("key", to)
	}
	return invalid("region", fmt.Sprintf("is needed here: a region keeps the history of its own edges, nodes and pools; there are %s", topo.ListNames(st.RegionNames())))
}

// Watch implements nusav1.TopologyServer: the whole matrix, or what changed
// since a token, then the edges that change noticeably.
func (t *topologyAPI) Watch(req *nusav1.MatrixRequest, stream grpc.ServerStreamingServer[nusav1.MatrixResponse]) error {
	if err := topo.ValidateMatrixRequest(req); err != nil {
		return err
	}
	a, _, err := t.picture(optional("from", req.GetFrom()))
	if err != nil {
		return err
	}
	at := topo.ParseWatchToken(req.GetToken(), a.st.Epoch, req.GetFrom())
	err = a.follow(stream.Context(), func() (bool, error) {
		a.st.mu.Lock()
		if from := req.GetFrom(); from != "" && a.st.Regions[from] == nil {
			err := a.st.NoRegion("from", from)
			a.st.mu.Unlock()
			return false, err
		}
		view, now := a.st.topologyView(), a.st.Clock()
		a.st.mu.Unlock()
		var err error
		at, err = a.board.SendChanges(view, now, at, a.st.Epoch, req.GetFrom(), stream.Send)
		return true, err
	})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
