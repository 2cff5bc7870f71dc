package api

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/uplink"
	"github.com/nusa-scheduler/nusa/security/enroll"
	"github.com/nusa-scheduler/nusa/security/identity"
)

// keys is the Keys service: which agents do not have the roots that they should.
type keys struct {
	nusav1.UnimplementedKeysServer
	s *Server
}

// errGlobalKeys says who decides about keys.
var errGlobalKeys = status.Error(codes.FailedPrecondition, "the global tier keeps the root and the rings of keys: ask a global server")

// GetAuthority returns the agents that have not converged.
func (k keys) GetAuthority(ctx context.Context, req *nusav1.GetAuthorityRequest) (*nusav1.AuthorityStatus, error) {
	view := k.s.State.View()
	want := req.GetWant()
	if want == nil {
		goal, _ := uplink.StoredKeys(view)
		want = goal.GetWant()
	}
	ready := map[identity.ID]bool{}
	if k.s.Identity != nil {
		for n := range view.Nodes() {
			if n.Status == state.NodeReady {
				ready[identity.ID{Federation: k.s.Identity.ID().Federation, Kind: identity.Agent, Region: k.s.region(), Name: n.Name}] = true
			}
		}
	}
	lags, err := enroll.Lagging(ctx, k.s.Enroll, identity.Agent, k.s.region(), enroll.StateOf(want), ready)
	if err != nil {
		return nil, err
	}
	return &nusav1.AuthorityStatus{Converged: int32(lags.Converged), Waiting: int32(lags.Waiting), Lags: lags.Lags}, nil
}

// RotateAuthority is a method of the global tier.
func (keys) RotateAuthority(context.Context, *nusav1.RotateAuthorityRequest) (*nusav1.AuthorityStatus, error) {
	return nil, errGlobalKeys
}

// GetRing is a method of the global tier.
func (keys) GetRing(context.Context, *nusav1.GetRingRequest) (*nusav1.RingStatus, error) {
	return nil, errGlobalKeys
}

// ChangeRing is a method of the global tier.
func (keys) ChangeRing(context.Context, *nusav1.ChangeRingRequest) (*nusav1.RingStatus, error) {
	return nil, errGlobalKeys
}
