// Package reserved tells the global tier on which nodes of the region reservations are. Everything else
// about reservations belongs to the global tier.
//
//	reserved.go  the Reservations service of a region
package reserved

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// most bounds the jobs of one request.
const most = 1000

// Service is the Reservations service of a region.
type Service struct {
	nusav1.UnimplementedReservationsServer
	// View returns the committed state.
	View func() *state.View
}

// Locate implements nusav1.ReservationsServer.
func (s *Service) Locate(_ context.Context, req *nusav1.LocateReservationsRequest) (*nusav1.LocateReservationsResponse, error) {
	if n := len(req.GetJobs()); n > most {
		return nil, rpcerr.Invalid(&nusav1.Problem{Field: "jobs", Message: fmt.Sprintf("has %d jobs, at most %d are allowed", n, most)})
	}
	view, out := s.View(), &nusav1.LocateReservationsResponse{}
	for _, ref := range req.GetJobs() {
		out.Nodes = append(out.Nodes, locate(view, state.JobKey{Namespace: ref.GetNamespace(), Job: ref.GetName()}))
	}
	return out, nil
}

// locate returns the node of the latest instance of a job that runs and that is wanted. The node is empty
// if there is none.
func locate(view *state.View, k state.JobKey) *nusav1.ReservedNode {
	var found *state.Alloc
	for g := range view.JobGroups(k) {
		for x := range view.AllocsIn(g) {
			if x.State == state.Running && x.Desired == state.Run && !x.Disconnected && (found == nil || x.Seq > found.Seq) {
				found = x
			}
		}
	}
	if found == nil {
		return &nusav1.ReservedNode{}
	}
	n, ok := view.Node(found.NodeID)
	if !ok {
		return &nusav1.ReservedNode{}
	}
	return &nusav1.ReservedNode{Id: n.ID, Name: n.Name, Address: host(n.Address)}
}

// host returns an address without its port.
func host(address string) string {
	if h, _, err := net.SplitHostPort(address); err == nil {
		return h
	}
	return address
}

// elsewhere refuses a call that belongs to the global tier.
func elsewhere(ctx context.Context) error {
	if call := rights.Of(ctx); call != nil {
		call.Filtered() // the answer is the same for everybody
	}
	return status.Error(codes.FailedPrecondition, "reservations are made at the global tier: use --addr of a global server; on an island submit a job with the driver reserve")
}

// Create implements nusav1.ReservationsServer.
func (s *Service) Create(ctx context.Context, _ *nusav1.CreateReservationRequest) (*nusav1.Reservation, error) {
	return nil, elsewhere(ctx)
}

// Get implements nusav1.ReservationsServer.
func (s *Service) Get(ctx context.Context, _ *nusav1.GetReservationRequest) (*nusav1.Reservation, error) {
	return nil, elsewhere(ctx)
}

// List implements nusav1.ReservationsServer.
func (s *Service) List(ctx context.Context, _ *nusav1.ListReservationsRequest) (*nusav1.ListReservationsResponse, error) {
	return nil, elsewhere(ctx)
}

// Claim implements nusav1.ReservationsServer.
func (s *Service) Claim(ctx context.Context, _ *nusav1.ClaimReservationRequest) (*nusav1.Reservation, error) {
	return nil, elsewhere(ctx)
}

// Release implements nusav1.ReservationsServer.
func (s *Service) Release(ctx context.Context, _ *nusav1.ReleaseReservationRequest) (*nusav1.Reservation, error) {
	return nil, elsewhere(ctx)
}
