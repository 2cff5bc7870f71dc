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

// reservationServer completes a reservation at the first question about it. The pool none has no room.
type reservationServer struct {
	nusav1.UnimplementedReservationsServer
	mu  sync.Mutex
	all []*nusav1.Reservation
	// reads counts the reads of a reservation in the pool slow, which is decided after four.
	reads int
}

func (s *reservationServer) Create(_ context.Context, r *nusav1.CreateReservationRequest) (*nusav1.Reservation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &nusav1.Reservation{Id: "0198f2a0-0000-7000-8000-00000000000" + string(rune('1'+len(s.all))), Request: r, State: nusav1.ReservationState_RESERVATION_STATE_PROCESSING, Job: "r-1"}
	s.all = append(s.all, out)
	return proto.CloneOf(out), nil
}

func (s *reservationServer) change(id string, change func(*nusav1.Reservation)) (*nusav1.Reservation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.all {
		if r.GetId() == id {
			change(r)
			return proto.CloneOf(r), nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "there is no reservation %q", id)
}

func (s *reservationServer) Get(_ context.Context, r *nusav1.GetReservationRequest) (*nusav1.Reservation, error) {
	return s.change(r.GetId(), func(x *nusav1.Reservation) {
		switch {
		case x.GetState() != nusav1.ReservationState_RESERVATION_STATE_PROCESSING:
		case x.GetRequest().GetPool() == "slow" && s.reads < 4:
			s.reads++
		case x.GetRequest().GetPool() == "none":
			x.State, x.Message = nusav1.ReservationState_RESERVATION_STATE_FAILED, "No available nodes: not enough cpu"
		default:
			x.State, x.Node = nusav1.ReservationState_RESERVATION_STATE_COMPLETED, &nusav1.ReservedNode{Name: "bm-1", Region: "jakarta", Address: "10.0.0.7"}
		}
	})
}

func (s *reservationServer) List(context.Context, *nusav1.ListReservationsRequest) (*nusav1.ListReservationsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &nusav1.ListReservationsResponse{Reservations: s.all}, nil
}

func (s *reservationServer) Claim(_ context.Context, r *nusav1.ClaimReservationRequest) (*nusav1.Reservation, error) {
	return s.change(r.GetId(), func(x *nusav1.Reservation) {
		x.Claim = &nusav1.ReservationClaim{By: r.GetBy(), Text: r.GetText()}
	})
}

func (s *reservationServer) Release(_ context.Context, r *nusav1.ReleaseReservationRequest) (*nusav1.Reservation, error) {
	return s.change(r.GetId(), func(x *nusav1.Reservation) { x.State = nusav1.ReservationState_RESERVATION_STATE_RELEASED })
}

func TestReservationCommands(t *testing.T) {
	f := newFake(t)
	const id = "0198f2a0-0000-7000-8000-000000000001"
	for _, c := range []struct {
		line, stdin, want string
		code              int
	}{
		{"reservation list", "", "no reservations; make one with", 0},
		{"reservation create --cpu 4 --memory 8GiB --dedicated", "", "jakarta/bm-1", 0},
		{"reservation create --pool none", "", "No available nodes: not enough cpu", 3},
		{"reservation create --detach", "", "processing", 0},
		{"reservation create --pool slow --timeout 150ms --wait 5s", "", "jakarta/bm-1", 0}, // the timeout bounds a call, not the wait
		{"reservation create --cpu lots", "", "--cpu", 1},
		{"reservation claim " + id + " --by virtflow --text -", `{"vm": "a"}`, "is claimed by virtflow", 0},
		{"reservation claim " + id, "", "--by NAME is required", 1},
		{"reservation show " + id, "", `{"vm": "a"}`, 0},
		{"reservation show nothing", "", "there is no reservation", 1},
		{"reservation release " + id, "", "is released", 0},
		{"reservation list --state released", "", "released", 0},
		{"reservation list --state gone", "", "not one of processing", 1},
		{"reservation list -o json", "", `"text": "{\"vm\": \"a\"}"`, 0},
	} {
		out, errOut, code := f.run(t.Context(), c.stdin, append(strings.Fields(c.line), "--addr", f.addr)...)
		if code != c.code || !strings.Contains(out+errOut, c.want) {
			t.Errorf("%s: code %d\n%s%s", c.line, code, out, errOut)
		}
	}
}
