package client

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// spareServer makes a spare ready at the first question about it. The pool none has no hosts.
type spareServer struct {
	nusav1.UnimplementedSparesServer
	mu      sync.Mutex
	all     []*nusav1.Spare
	secrets []string
	hooks   []*nusav1.Provisioner
}

func (s *spareServer) Prepare(_ context.Context, r *nusav1.PrepareSpareRequest) (*nusav1.Spare, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.secrets = append(s.secrets, r.GetCallbackSecret())
	out := &nusav1.Spare{Id: "0198f2a0-0000-7000-8000-00000000000" + string(rune('1'+len(s.all))), Request: r, State: nusav1.SpareState_SPARE_STATE_JOINING, Hosts: []*nusav1.SpareHost{{State: "waiting"}}}
	s.all = append(s.all, out)
	return proto.CloneOf(out), nil
}

func (s *spareServer) change(id string, change func(*nusav1.Spare)) (*nusav1.Spare, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.all {
		if x.GetId() == id {
			change(x)
			return proto.CloneOf(x), nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "there is no spare %q", id)
}

func (s *spareServer) Get(_ context.Context, r *nusav1.GetSpareRequest) (*nusav1.Spare, error) {
	return s.change(r.GetId(), func(x *nusav1.Spare) {
		switch {
		case x.GetState() != nusav1.SpareState_SPARE_STATE_JOINING:
		case x.GetRequest().GetPool() == "none":
			x.State, x.Message = nusav1.SpareState_SPARE_STATE_FAILED, "the deadline has passed"
		default:
			x.State, x.Hosts = nusav1.SpareState_SPARE_STATE_READY, []*nusav1.SpareHost{{Node: "bm-1", Region: "jakarta", Address: "10.0.0.7", State: "held"}}
		}
	})
}

func (s *spareServer) List(context.Context, *nusav1.ListSparesRequest) (*nusav1.ListSparesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &nusav1.ListSparesResponse{Spares: s.all}, nil
}

func (s *spareServer) Release(_ context.Context, r *nusav1.ReleaseSpareRequest) (*nusav1.Spare, error) {
	return s.change(r.GetId(), func(x *nusav1.Spare) { x.State = nusav1.SpareState_SPARE_STATE_RELEASED })
}

func (s *spareServer) Cancel(_ context.Context, r *nusav1.CancelSpareRequest) (*nusav1.Spare, error) {
	return s.change(r.GetId(), func(x *nusav1.Spare) { x.State = nusav1.SpareState_SPARE_STATE_CANCELLED })
}

func (s *spareServer) SetProvisioner(_ context.Context, r *nusav1.SetProvisionerRequest) (*nusav1.Provisioner, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks, s.secrets = append(s.hooks, r.GetProvisioner()), append(s.secrets, r.GetSecret())
	return r.GetProvisioner(), nil
}

func (s *spareServer) ListProvisioners(context.Context, *nusav1.ListProvisionersRequest) (*nusav1.ListProvisionersResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &nusav1.ListProvisionersResponse{Provisioners: s.hooks}, nil
}

func (s *spareServer) RemoveProvisioner(context.Context, *nusav1.RemoveProvisionerRequest) (*nusav1.RemoveProvisionerResponse, error) {
	return &nusav1.RemoveProvisionerResponse{}, nil
}

func TestSpareCommands(t *testing.T) {
	f := newFake(t)
	const id = "0198f2a0-0000-7000-8000-000000000001"
	open := filepath.Join(t.TempDir(), "open")
	if err := os.WriteFile(open, []byte("whsec_x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		line, stdin, want string
		code              int
	}{
		{"spare list", "", "no spares; prepare one with", 0},
		{"spare prepare --pool bare --count 1", "", "jakarta/bm-1", 0},
		{"spare prepare --pool none", "", "the deadline has passed", 3},
		{"spare prepare --detach --callback-url https://x.example/ --callback-secret-file -", "whsec_abc\n", "joining", 0},
		{"spare prepare --cpu 4", "", "--cpu and --memory go together", 1},
		{"spare prepare --callback-secret-file " + open, "", "chmod 600", 1},
		{"spare show " + id, "", "10.0.0.7", 0},
		{"spare show nothing", "", "there is no spare", 1},
		{"spare release " + id, "", "is released", 0},
		{"spare cancel " + id, "", "is cancelled", 0},
		{"spare list --state cancelled", "", "1/1", 0},
		{"spare list --state gone", "", "not one of reserving", 1},
		{"spare provisioner list", "", "no provisioners; add one with", 0},
		{"spare provisioner set lab --gitlab https://git.example/x --ref main --secret-file -", "glptt-7\n", "is stored", 0},
		{"spare provisioner set lab --gitlab https://git.example/x --awx https://awx.example/x", "", "give one of", 1},
		{"spare provisioner list", "", "https://git.example/x", 0},
		{"spare provisioner remove lab", "", "is removed", 0},
	} {
		out, errOut, code := f.run(t.Context(), c.stdin, append(strings.Fields(c.line), "--addr", f.addr)...)
		if code != c.code || !strings.Contains(out+errOut, c.want) {
			t.Errorf("%s: code %d\n%s%s", c.line, code, out, errOut)
		}
		if strings.Contains(out+errOut, "glptt-7") || strings.Contains(out+errOut, "whsec_abc") {
			t.Errorf("%s shows a secret:\n%s%s", c.line, out, errOut)
		}
	}
}
