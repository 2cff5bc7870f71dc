package global

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

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

// view is the present topology; with names, each must be a region of it.
func (t *topologyAPI) view(fields map[string]string) (*active, *topology.View, error) {
	a, err := t.s.current()
	if err != nil {
		return nil, nil, err
	}
	a.st.mu.Lock()
	defer a.st.mu.Unlock()
	for _, field := range sortedKeys(fields) {
		if name := fields[field]; a.st.regions[name] == nil {
			return nil, nil, a.st.noRegion(field, name)
		}
	}
	return a, a.st.topologyView(), nil
}

func percentile(p int32) (topology.Percentile, error) {
	switch p {
	case 0, 50, 90, 99:
		return topology.Percentile(p), nil
	}
	return 0, invalid("percentile", fmt.Sprintf("%d: must be 50, 90 or 99", p))
}

// Matrix implements nusav1.TopologyServer.
func (t *topologyAPI) Matrix(_ context.Context, req *nusav1.MatrixRequest) (*nusav1.MatrixResponse, error) {
	_, v, err := t.matrixView(req)
	if err != nil {
		return nil, err
	}
	return matrixToProto(v, req.GetFrom()), nil
}

func (t *topologyAPI) matrixView(req *nusav1.MatrixRequest) (*active, *topology.View, error) {
	if req.GetFrom() == "" {
		return t.view(nil)
	}
	return t.view(map[string]string{"from": req.GetFrom()})
}

func matrixToProto(v *topology.View, from string) *nusav1.MatrixResponse {
	out := &nusav1.MatrixResponse{}
	for _, r := range v.Regions() {
		out.Regions = append(out.Regions, r.Name)
	}
	for _, e := range v.Matrix() {
		if from == "" || e.From == from {
			out.Edges = append(out.Edges, edgeToProto(e))
		}
	}
	return out
}

// Path implements nusav1.TopologyServer.
func (t *topologyAPI) Path(_ context.Context, req *nusav1.PathRequest) (*nusav1.PathResponse, error) {
	p, err := percentile(req.GetPercentile())
	if err != nil {
		return nil, err
	}
	if k := req.GetK(); k < 0 || k > topology.MaxPaths {
		return nil, invalid("k", fmt.Sprintf("must be 1..%d", topology.MaxPaths))
	}
	_, v, err := t.view(map[string]string{"from": req.GetFrom(), "to": req.GetTo()})
	if err != nil {
		return nil, err
	}
	paths, err := topology.NewRouter(v, p).Paths(req.GetFrom(), req.GetTo(), topology.PathOptions{K: int(req.GetK())})
	if err != nil {
		return nil, apiError(err)
	}
	out := &nusav1.PathResponse{}
	for _, path := range paths {
		out.Paths = append(out.Paths, &nusav1.Path{
			Regions: path.Regions, Rtt: durationpb.New(path.RTT), Source: nusav1.RTTSource(path.Source),
		})
	}
	return out, nil
}

// Nearest implements nusav1.TopologyServer.
func (t *topologyAPI) Nearest(_ context.Context, req *nusav1.NearestRequest) (*nusav1.NearestResponse, error) {
	p, err := percentile(req.GetPercentile())
	if err != nil {
		return nil, err
	}
	limit := int(req.GetLimit())
	if limit < 0 || limit > maxRegions {
		return nil, invalid("limit", fmt.Sprintf("must be 1..%d", maxRegions))
	}
	location := locationFromProto(req.GetLocation())
	if (req.GetRegion() == "") == (location == nil) {
		return nil, invalid("region", "give either a region or a location")
	}
	if location != nil && !location.Valid() {
		return nil, invalid("location", "latitude must be -90..90 and longitude -180..180")
	}
	var fields map[string]string
	if req.GetRegion() != "" {
		fields = map[string]string{"region": req.GetRegion()}
	}
	_, v, err := t.view(fields)
	if err != nil {
		return nil, err
	}
	var near []topology.Neighbour
	if location != nil {
		near = v.NearestToLocation(*location, limit, p)
	} else {
		near = v.Nearest(req.GetRegion(), limit, p)
	}
	out := &nusav1.NearestResponse{}
	for _, n := range near {
		out.Regions = append(out.Regions, &nusav1.NearRegion{
			Region: n.Region, Rtt: durationpb.New(n.Distance.RTT),
			Source: nusav1.RTTSource(n.Distance.Source), State: nusav1.EdgeState(n.Distance.State),
		})
	}
	return out, nil
}

// Watch implements nusav1.TopologyServer: the whole matrix, then the edges
// whose state or median has changed noticeably.
func (t *topologyAPI) Watch(req *nusav1.MatrixRequest, stream grpc.ServerStreamingServer[nusav1.MatrixResponse]) error {
	a, _, err := t.matrixView(req)
	if err != nil {
		return err
	}
	sent := map[[2]string]*nusav1.Edge{}
	first := true
	err = a.follow(stream.Context(), func() (bool, error) {
		a.st.mu.Lock()
		v := a.st.topologyView()
		a.st.mu.Unlock()
		m := matrixToProto(v, req.GetFrom())
		changed := m.Edges[:0:0]
		for _, e := range m.GetEdges() {
			key := [2]string{e.GetFrom(), e.GetTo()}
			if noticeable(sent[key], e) {
				sent[key] = e
				changed = append(changed, e)
			}
		}
		m.Edges = changed
		if !first && len(changed) == 0 {
			return true, nil
		}
		first = false
		return true, stream.Send(m)
	})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// noticeable is a change of state, of source, or of the median by a tenth and
// at least a millisecond.
func noticeable(old, now *nusav1.Edge) bool {
	if old == nil || old.GetState() != now.GetState() || old.GetSource() != now.GetSource() {
		return true
	}
	was, is := old.GetP50().AsDuration(), now.GetP50().AsDuration()
	diff := max(was-is, is-was)
	return diff >= max(was/10, 1_000_000)
}

// eventsAPI is the public Events service.
type eventsAPI struct {
	nusav1.UnimplementedEventsServer
	s *server
}

// Watch implements nusav1.EventsServer.
func (e *eventsAPI) Watch(req *nusav1.WatchEventsRequest, stream grpc.ServerStreamingServer[nusav1.Event]) error {
	a, err := e.s.current()
	if err != nil {
		return err
	}
	if len(req.GetToken()) > 128 {
		return invalid("token", "is none of ours")
	}
	next := a.st.events.After(req.GetToken())
	for {
		events, after, changed := a.st.events.From(next)
		for _, ev := range events {
			if err := stream.Send(ev); err != nil {
				return err
			}
		}
		next = after
		select {
		case <-stream.Context().Done():
			return nil
		case <-a.ctx.Done():
			return apiError(errNotActive)
		case <-changed:
		}
	}
}
