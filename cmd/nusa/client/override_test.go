package client

import (
	"context"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// overrideServer has the override of one job. Region jakarta owns 4 instances of the job.
type overrideServer struct {
	nusav1.UnimplementedOverridesServer
	mu  sync.Mutex
	has *nusav1.Override
}

func (s *overrideServer) List(context.Context, *nusav1.ListOverridesRequest) (*nusav1.ListOverridesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &nusav1.ListOverridesResponse{}
	if s.has != nil {
		out.Overrides = []*nusav1.Override{proto.CloneOf(s.has)}
	}
	return out, nil
}

func (s *overrideServer) Set(_ context.Context, r *nusav1.SetOverrideRequest) (*nusav1.Override, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const owned = 4
	if r.GetRegion() == "kobe" {
		return nil, rpcerr.NotFound(rpcerr.KindJob, r.GetJob().GetName(), "region kobe has no part of the job")
	}
	out := &nusav1.Override{Namespace: r.GetJob().GetNamespace(), Job: r.GetJob().GetName(), Region: r.GetRegion(), Stopped: r.GetStop(), Reason: r.GetReason(), Set: timestamppb.Now(), Held: owned - r.GetCount()}
	switch {
	case r.GetCount() > owned:
		return nil, status.Errorf(codes.FailedPrecondition, "region %s has 4 of the instances", r.GetRegion())
	case r.GetCount() == owned:
		s.has = nil
		return &nusav1.Override{Region: r.GetRegion()}, nil
	case !r.GetStop():
		out.Groups = []*nusav1.GroupOverride{{Group: "api", Count: r.GetCount()}}
	}
	s.has = out
	return proto.CloneOf(out), nil
}

func (s *overrideServer) Clear(context.Context, *nusav1.ClearOverrideRequest) (*nusav1.ClearOverrideResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	had := s.has != nil
	s.has = nil
	return &nusav1.ClearOverrideResponse{Cleared: had}, nil
}

func TestOverrideCommands(t *testing.T) {
	f := newFake(t)
	for _, c := range []struct {
		line, want string
		code       int
	}{
		{"job override list", "no overrides; nusa job stop JOB --override --region REGION sets one", 0},
		{"job stop web --region jakarta", "--region and --reason need --override", 1},
		{"job scale web 1 --reason hot", "--region and --reason need --override", 1},
		{"job stop web --override --purge", "--override stops no whole job", 1},
		{"job scale web 5 --override --region jakarta", "has 4 of the instances", 1},
		{"job scale same 1 --override --region kobe", "region kobe runs nothing of job default/same: `nusa job status same` shows where it runs", 1},
		{"job stop same --override --region kobe", "region kobe runs nothing of job default/same: `nusa job status same` shows where it runs", 1},
		{"job scale nosuch 1 --override --region kobe", "job default/nosuch does not exist", 1},
		{"job scale web 1 --override --region jakarta --reason hot", "default/web at jakarta: api scaled to 1: hot; 3 instances held", 0},
		{"job override list", "default/web  jakarta     3  0s ago  api scaled to 1: hot", 0},
		{"job override list -o json", `"held":3`, 0},
		{"job override list -o name", "default/web\n", 0},
		{"job scale web 4 --override --region jakarta", "default/web: jakarta runs all of its part again", 0},
		{"job stop web --override --region jakarta", "nusa job override clear web --region jakarta", 0},
		{"job override clear web --region jakarta", "the override of default/web in jakarta is cleared", 0},
		{"job override clear web --region jakarta", "has no override in jakarta", 0},
	} {
		out, errOut, code := f.run(t.Context(), "", append(strings.Fields(c.line), "--addr", f.addr)...)
		if code != c.code || !strings.Contains(strings.ReplaceAll(out+errOut, `"held": 3`, `"held":3`), c.want) {
			t.Errorf("%s: code %d\n%s%s", c.line, code, out, errOut)
		}
	}
}
