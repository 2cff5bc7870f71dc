package client

import (
	"context"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// poolServer has the policy of one pool.
type poolServer struct {
	nusav1.UnimplementedPoolsServer
	mu  sync.Mutex
	has *nusav1.Pool
}

func (s *poolServer) List(context.Context, *nusav1.ListPoolsRequest) (*nusav1.ListPoolsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &nusav1.ListPoolsResponse{}
	if s.has != nil {
		out.Pools = []*nusav1.Pool{{Name: "default", Region: "jakarta", Nodes: 4}, proto.CloneOf(s.has)}
	}
	return out, nil
}

func (s *poolServer) Get(_ context.Context, r *nusav1.GetPoolRequest) (*nusav1.Pool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.has.GetName() != r.GetName() {
		return nil, status.Errorf(codes.NotFound, "pool %q has no node and no policy", r.GetName())
	}
	return proto.CloneOf(s.has), nil
}

func (s *poolServer) Set(_ context.Context, r *nusav1.SetPoolRequest) (*nusav1.Pool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.has = proto.CloneOf(r.GetPool())
	s.has.Region, s.has.Revision = r.GetRegion(), 7
	return proto.CloneOf(s.has), nil
}

func (s *poolServer) Remove(context.Context, *nusav1.RemovePoolRequest) (*nusav1.RemovePoolResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	removed := s.has != nil
	s.has = nil
	return &nusav1.RemovePoolResponse{Removed: removed}, nil
}

func TestPoolCommands(t *testing.T) {
	f := newFake(t)
	for _, c := range []struct {
		line, want string
		code       int
	}{
		{"pool list", "no pools; a pool begins with its first node", 0},
		{"pool set metal --region jakarta", "give a weight", 1},
		{"pool set metal --region jakarta --cpu 60 --quota 20", "the policy of pool metal in jakarta is stored; the pool has no nodes yet", 0},
		{"pool list", "default  jakarta      4    -       -      -\nmetal    jakarta      0   60       0     20", 0},
		{"pool show metal --region jakarta", "memory weight: 0", 0},
		{"pool show metal -o json", `"cpu":60`, 0},
		{"pool show none", "no node and no policy", 1},
		{"pool remove metal", "the policy of pool metal is removed", 0},
		{"pool remove metal", "pool list shows the pools", 0},
	} {
		out, errOut, code := f.run(t.Context(), "", append(strings.Fields(c.line), "--addr", f.addr)...)
		if code != c.code || !strings.Contains(strings.ReplaceAll(out+errOut, `"cpu": 60`, `"cpu":60`), c.want) {
			t.Errorf("%s: code %d\n%s%s", c.line, code, out, errOut)
		}
	}
}
