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

// semaphoreServer has one semaphore.
type semaphoreServer struct {
	nusav1.UnimplementedSemaphoresServer
	mu  sync.Mutex
	has *nusav1.Semaphore
}

func (s *semaphoreServer) Set(_ context.Context, r *nusav1.SetSemaphoreRequest) (*nusav1.Semaphore, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	index := int32(3)
	s.has = &nusav1.Semaphore{
		Namespace: "default", Name: r.GetName(), Units: r.GetUnits(), Held: 2, Holders: 2, Waiters: 1,
		Holding: []*nusav1.SemaphoreStep{{Run: "sim.1", Step: "solve", Index: &index, Units: 1}, {Run: "sim.2", Step: "solve", Units: 1}},
		Waiting: []*nusav1.SemaphoreStep{{Run: "sim.3", Step: "solve", Units: 1, Message: "waits for 1 of semaphore licenses: 2 of 2 units are held"}},
	}
	return proto.CloneOf(s.has), nil
}

func (s *semaphoreServer) Get(_ context.Context, r *nusav1.GetSemaphoreRequest) (*nusav1.Semaphore, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.has.GetName() != r.GetName() {
		return nil, status.Errorf(codes.NotFound, "there is no semaphore %s", r.GetName())
	}
	return proto.CloneOf(s.has), nil
}

func (s *semaphoreServer) List(context.Context, *nusav1.ListSemaphoresRequest) (*nusav1.ListSemaphoresResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &nusav1.ListSemaphoresResponse{}
	if s.has != nil {
		out.Semaphores = []*nusav1.Semaphore{proto.CloneOf(s.has)}
	}
	return out, nil
}

func (s *semaphoreServer) Remove(context.Context, *nusav1.RemoveSemaphoreRequest) (*nusav1.RemoveSemaphoreResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.has = nil
	return &nusav1.RemoveSemaphoreResponse{}, nil
}

func TestSemaphoreCommands(t *testing.T) {
	f := newFake(t)
	for _, c := range []struct {
		line, want string
		code       int
	}{
		{"semaphore list", "no semaphores: nusa semaphore set NAME --units N", 0},
		{"semaphore set licenses", "give the units", 1},
		{"semaphore set licenses --units 2", "semaphore default/licenses has 2 units", 0},
		{"semaphore list -o name", "default/licenses\n", 0},
		{"semaphore list", "default/licenses      2     2        2        1", 0},
		{"semaphore status licenses", "semaphore default/licenses: 2 of 2 units held", 0},
		{"semaphore status licenses", "solve[3]", 0},
		{"semaphore status licenses", "waits for 1 of semaphore licenses", 0},
		{"semaphore status licenses -o json", `"waiters"`, 0},
		{"semaphore status none", "there is no semaphore none", 1},
		{"semaphore remove licenses", "semaphore licenses is removed", 0},
		{"semaphore list", "no semaphores", 0},
	} {
		out, errOut, code := f.run(t.Context(), "", append(strings.Fields(c.line), "--addr", f.addr)...)
		if code != c.code || !strings.Contains(out+errOut, c.want) {
			t.Errorf("%s: code %d\n%s%s", c.line, code, out, errOut)
		}
	}
}
