package client

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/history"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// This file has the services Topology and Origins of the fake server.

func noRegion(field, name string) error {
	return rpcerr.Invalid(&nusav1.Problem{Field: field, Message: "there is no region \"" + name + "\""})
}

type topologyServer struct {
	nusav1.UnimplementedTopologyServer
	*notes
}

func (f topologyServer) Get(context.Context, *nusav1.GetTopologyRequest) (*nusav1.TopologyTree, error) {
	return sample.Tree(), nil
}

func (f topologyServer) Matrix(_ context.Context, r *nusav1.MatrixRequest) (*nusav1.MatrixResponse, error) {
	m := sample.Matrix()
	if f.federation != nil {
		f.note(r)
		return pageOf(f.federation, r.GetAfter()), nil
	}
	switch {
	case r.GetFrom() == "mars":
		return nil, noRegion("from", "mars")
	case r.GetFrom() != "":
		m.Edges = slices.DeleteFunc(m.Edges, func(e *nusav1.Edge) bool { return e.GetFrom() != r.GetFrom() })
	}
	return m, nil
}

// pageOf returns the next hundred rows after a region.
func pageOf(m *nusav1.MatrixResponse, after string) *nusav1.MatrixResponse {
	out := &nusav1.MatrixResponse{Regions: m.GetRegions()}
	rows, last := 0, ""
	for _, e := range m.GetEdges()[1+slices.IndexFunc(m.GetEdges(), func(e *nusav1.Edge) bool { return e.GetFrom() == after }):] {
		if e.GetFrom() == after {
			continue
		}
		if e.GetFrom() != last {
			if rows++; rows > 100 {
				out.Next = last
				break
			}
			last = e.GetFrom()
		}
		out.Edges = append(out.Edges, e)
	}
	return out
}

func (f topologyServer) Path(_ context.Context, r *nusav1.PathRequest) (*nusav1.PathResponse, error) {
	f.note(r)
	if r.GetTo() == "mars" {
		return nil, noRegion("to", "mars")
	}
	if r.GetWeights() != nil {
		return sample.WeighedPaths(), nil
	}
	return sample.Paths(), nil
}

func (f topologyServer) Nearest(_ context.Context, r *nusav1.NearestRequest) (*nusav1.NearestResponse, error) {
	f.note(r)
	if r.GetRegion() == "" && r.GetLocation() == nil {
		if f.asRegion {
			near := sample.Nearest()
			near.SeenBy, near.Alone = "southeastasia", sample.Lasting(0)
			return near, nil
		}
		return nil, rpcerr.Invalid(&nusav1.Problem{Field: "region", Message: "is missing: give a region or a location"})
	}
	return sample.Nearest(), nil
}

// A Watch of all regions breaks after two messages and continues from the token. A Watch of one
// region starts again.
func (f topologyServer) Watch(r *nusav1.MatrixRequest, s grpc.ServerStreamingServer[nusav1.MatrixResponse]) error {
	f.note(r)
	update := func(ms int, token string) *nusav1.MatrixResponse {
		return &nusav1.MatrixResponse{Token: token, Edges: []*nusav1.Edge{
			sample.Edge("japaneast", "eastus", time.Duration(ms)*time.Millisecond, nusav1.EdgeState_EDGE_STATE_OK, nusav1.RTTSource_RTT_SOURCE_MEASURED)}}
	}
	whole := sample.Matrix()
	whole.Token, whole.Reset_ = "1", true
	switch {
	case r.GetFrom() == "mars":
		return noRegion("from", "mars")
	case r.GetToken() == "2" && r.GetFrom() == "":
		return s.Send(update(180, "3"))
	case r.GetToken() != "":
		return s.Send(whole)
	}
	if err := errors.Join(s.Send(whole), s.Send(update(170, "2"))); err != nil {
		return err
	}
	return status.Error(codes.Unavailable, "this server is no longer active")
}

func (f topologyServer) Check(_ context.Context, r *nusav1.CheckTopologyRequest) (*nusav1.CheckTopologyResponse, error) {
	f.note(r)
	if r.GetPercentile() == 99 {
		return &nusav1.CheckTopologyResponse{Regions: 4, Measured: 12}, nil
	}
	return sample.Check(), nil
}

// History ends at the present time, because the rendering depends on the time.
func (f topologyServer) History(_ context.Context, r *nusav1.HistoryRequest) (*nusav1.HistoryResponse, error) {
	f.note(r)
	present := func(all ...*nusav1.HistorySeries) (*nusav1.HistoryResponse, error) {
		for _, s := range all {
			s.Start = timestamppb.New(time.Now().Add(-60 * s.GetStep().AsDuration()))
			s.Trends = nil
		}
		return &nusav1.HistoryResponse{Series: all}, nil
	}
	switch {
	case r.GetRegion() == "mars":
		return nil, noRegion("region", "mars")
	case r.GetKey() == "mars":
		return nil, noRegion("key", "mars")
	case r.GetRegion() == "" && r.GetKind() == history.KindEdge:
		return nil, rpcerr.Invalid(&nusav1.Problem{Field: "region", Message: "is needed here; there are japaneast, eastus"})
	case r.GetKey() == "fresh":
		return &nusav1.HistoryResponse{}, nil
	case r.GetKind() == history.KindEdge && r.GetKey() != "":
		return present(sample.EdgeHistory()[0])
	case r.GetKind() == history.KindEdge:
		return present(sample.EdgeHistory()...)
	}
	s := sample.NodeHistory()
	s.Kind = r.GetKind()
	return present(s)
}

type originServer struct {
	nusav1.UnimplementedOriginsServer
	*notes
}

func (f originServer) Set(_ context.Context, r *nusav1.SetOriginsRequest) (*nusav1.OriginRecord, error) {
	f.note(r)
	for _, o := range r.GetRecord().GetOrigins() {
		if o.GetRegion() == "mars" {
			return nil, noRegion("record.origins[0].region", "mars")
		}
	}
	r.Record.Revision = 7
	return r.GetRecord(), nil
}

func (f originServer) List(context.Context, *nusav1.ListOriginsRequest) (*nusav1.ListOriginsResponse, error) {
	return &nusav1.ListOriginsResponse{Records: sample.Origins()}, nil
}

func (f originServer) Remove(_ context.Context, r *nusav1.RemoveOriginsRequest) (*nusav1.RemoveOriginsResponse, error) {
	f.note(r)
	if r.GetDomain() == "none.example.com" {
		return nil, status.Error(codes.NotFound, "there is no record of none.example.com")
	}
	return &nusav1.RemoveOriginsResponse{}, nil
}

func (f originServer) Resolve(_ context.Context, r *nusav1.ResolveOriginRequest) (*nusav1.ResolveOriginResponse, error) {
	f.note(r)
	switch {
	case r.GetDomain() == "other.net":
		return nil, status.Error(codes.NotFound, `no record covers the domain "other.net"`)
	case r.GetRegion() == "island":
		return &nusav1.ResolveOriginResponse{Record: "*.example.com", Choice: &nusav1.OriginChoice{Why: "no origin can serve"}, Others: sample.Resolved().GetOthers()[1:]}, nil
	}
	return sample.Resolved(), nil
}
