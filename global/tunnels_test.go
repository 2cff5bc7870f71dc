package global

import (
	"context"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/tunnel"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// regionAllocations and regionNodes are a region's own services, reached
// through tunnels.
type regionAllocations struct {
	nusav1.UnimplementedAllocationsServer
	region string
	ids    []string
}

func (r *regionAllocations) Get(_ context.Context, req *nusav1.GetAllocationRequest) (*nusav1.Allocation, error) {
	for _, id := range r.ids {
		if strings.HasPrefix(id, req.GetId()) {
			return &nusav1.Allocation{Id: id, Region: r.region}, nil
		}
	}
	return nil, status.Error(codes.NotFound, "no such allocation here")
}

func (r *regionAllocations) Logs(req *nusav1.LogsRequest, stream grpc.ServerStreamingServer[nusav1.LogChunk]) error {
	return stream.Send(&nusav1.LogChunk{Data: []byte("hello from " + req.GetAllocation())})
}

func (r *regionAllocations) List(context.Context, *nusav1.ListAllocationsRequest) (*nusav1.ListAllocationsResponse, error) {
	out := &nusav1.ListAllocationsResponse{}
	for _, id := range r.ids {
		out.Allocations = append(out.Allocations, &nusav1.Allocation{Id: id, Region: r.region, Job: "api", Group: "web"})
	}
	return out, nil
}

type regionNodes struct {
	nusav1.UnimplementedNodesServer
	region string
}

func (r *regionNodes) List(context.Context, *nusav1.ListNodesRequest) (*nusav1.ListNodesResponse, error) {
	return &nusav1.ListNodesResponse{Nodes: []*nusav1.Node{{Id: "n-" + r.region, Name: "node", Region: r.region}}}, nil
}

func (r *regionNodes) Remove(_ context.Context, req *nusav1.RemoveNodeRequest) (*nusav1.RemoveNodeResponse, error) {
	return &nusav1.RemoveNodeResponse{Node: &nusav1.Node{Id: req.GetId(), Name: "node", Region: r.region}}, nil
}

// serveTunnels makes a fake region serve tunnel requests.
func (s *testServer) serveTunnels(r *fakeRegion, ids ...string) {
	name := r.hello.GetDefinition().GetName()
	srv := grpc.NewServer()
	nusav1.RegisterAllocationsServer(srv, &regionAllocations{region: name, ids: ids})
	nusav1.RegisterNodesServer(srv, &regionNodes{region: name})
	nusav1.RegisterEventsServer(srv, &regionEventsServer{})
	nusav1.RegisterOverviewServer(srv, &r.overview)
	nusav1.RegisterRepairsServer(srv, &regionRepairs{r: r})
	if r.trail != nil {
		nusav1.RegisterAuditServer(srv, r.trail)
	}
	lis := tunnel.NewListener(0)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(lis) })
	client := nusav1.NewFederationClient(s.conn)
	wg.Go(func() {
		answered := 0
		for {
			r.mu.Lock()
			ids, changed := r.tunnels[answered:], r.changed
			answered = len(r.tunnels)
			r.mu.Unlock()
			for _, id := range ids {
				wg.Go(func() {
					_ = tunnel.Answer(ctx, func(ctx context.Context) (tunnel.ClientStream, error) { return client.Tunnel(ctx) }, id, lis)
				})
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	})
	s.t.Cleanup(func() {
		cancel()
		srv.Stop()
		wg.Wait()
	})
}

func TestCallsGoThroughTunnels(t *testing.T) {
	s := newFederation().start(t, "g1")
	a, b := s.joined("alpha"), s.joined("beta")
	s.serveTunnels(a, "aaaa1111", "cccc1111")
	s.serveTunnels(b, "bbbb2222", "cccc2222")
	gone := s.joined("gamma")
	gone.leave()
	s.waitRegion("gamma", nusav1.RegionState_REGION_STATE_DISCONNECTED)
	ctx, cancel := context.WithTimeout(t.Context(), testWait)
	defer cancel()
	allocs := nusav1.NewAllocationsClient(s.conn)
	list, err := allocs.List(ctx, &nusav1.ListAllocationsRequest{})
	if err != nil || len(list.GetAllocations()) != 4 || list.GetAllocations()[0].GetId() != "aaaa1111" {
		t.Errorf("allocations %v, %v", list.GetAllocations(), err)
	}
	if len(list.GetErrors()) != 1 || list.GetErrors()[0].GetRegion() != "gamma" {
		t.Errorf("partial errors %v", list.GetErrors())
	}
	got, err := allocs.Get(ctx, &nusav1.GetAllocationRequest{Id: "bbbb"})
	if err != nil || got.GetId() != "bbbb2222" || got.GetRegion() != "beta" {
		t.Errorf("get by prefix: %v, %v", got, err)
	}
	if _, err := allocs.Get(ctx, &nusav1.GetAllocationRequest{Id: "cccc"}); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "alpha and beta") {
		t.Errorf("a prefix of two: %v", err)
	}
	if _, err := allocs.Get(ctx, &nusav1.GetAllocationRequest{Id: "dddd"}); status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "gamma") {
		t.Errorf("a prefix of none while gamma is disconnected: %v", err)
	}
	logs, err := allocs.Logs(ctx, &nusav1.LogsRequest{Allocation: "bbbb", Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	if chunk, err := logs.Recv(); err != nil || string(chunk.GetData()) != "hello from bbbb2222" {
		t.Errorf("logs %v, %v", chunk, err)
	}
	nodes, err := nusav1.NewNodesClient(s.conn).List(ctx, &nusav1.ListNodesRequest{})
	if err != nil || len(nodes.GetNodes()) != 2 || nodes.GetNodes()[0].GetRegion() != "alpha" || len(nodes.GetErrors()) != 1 {
		t.Errorf("nodes %v, %v", nodes, err)
	}
	removed, err := nusav1.NewNodesClient(s.conn).Remove(ctx, &nusav1.RemoveNodeRequest{Id: "n-beta", Region: "beta"})
	if err != nil || removed.GetNode().GetId() != "n-beta" || removed.GetNode().GetRegion() != "beta" {
		t.Errorf("removed %v, %v", removed, err)
	}
	tree, err := nusav1.NewTopologyClient(s.conn).Get(ctx, &nusav1.GetTopologyRequest{Nodes: true})
	if err != nil || len(tree.GetRegions()) != 3 || len(tree.GetNodes()) != 2 || len(tree.GetServers()) != 1 {
		t.Errorf("tree %v, %v", tree, err)
	}
}
