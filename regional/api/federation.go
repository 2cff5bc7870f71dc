package api

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// federationID matches the id of a federation. crypto/rand.Text makes such ids.
var federationID = regexp.MustCompile(`^[A-Z2-7]{26,128}$`)

// Uplink is the region's session with the global tier: *uplink.Uplink.
type Uplink interface {
	// Connected reports whether a session exists.
	Connected() bool
	// Refused returns why the region stays without a session until an operator acts. It is
	// empty when no such reason is known.
	Refused() string
	// LeaseMissing returns why the region holds no lease. It is empty when the region holds
	// a lease, and when leases are not in use.
	LeaseMissing() string
	// CommitBlocked returns for how long the region has been unable to commit to its log.
	// It is 0 while the region can commit.
	CommitBlocked() time.Duration
}

// Rebind lets the region join another federation.
func (r regions) Rebind(ctx context.Context, req *nusav1.RebindRegionRequest) (*nusav1.RebindRegionResponse, error) {
	m, err := r.s.master()
	if err != nil {
		return nil, err
	}
	id, c := req.GetFederationId(), r.s.State.View().Cluster()
	switch {
	case !federationID.MatchString(id):
		return nil, status.Errorf(codes.InvalidArgument, "%.40q is not the id of a federation, which has 26 letters A-Z and digits 2-7: `nusa version --server` at a global server of the federation prints it", id)
	case m.Uplink.Connected():
		return nil, status.Errorf(codes.FailedPrecondition, "region %s is connected to federation %s: end that session first, for instance by a restart of its servers without --global", c.Region, c.FederationID)
	case c.FeatureLevel == 0:
		return nil, status.Errorf(codes.FailedPrecondition, "a server of region %s is of an earlier version: upgrade it first", c.Region)
	}
	e := audit.Entry{Verb: "rebind", Kind: "region", Name: c.Region, Reason: "to federation " + id}
	if _, err := m.Log.Commit(ctx, r.s.audited(ctx, state.Command{RebindFederation: &state.RebindFederation{FederationID: id}}, e)); err != nil {
		return nil, raftlog.StatusError(err)
	}
	return &nusav1.RebindRegionResponse{}, nil
}

// alarms returns the facts that an operator must know, one line each.
func alarms(s *Server, m *Master) []string {
	var out []string
	if blocked := m.Uplink.CommitBlocked(); blocked > 0 {
		out = append(out, fmt.Sprintf("the region has been unable to commit to its log for %s: look at the disks of its servers", blocked.Round(time.Second)))
	}
	if why := m.Uplink.Refused(); why != "" {
		out = append(out, why)
	}
	if why := m.Nodes.OldLog(); why != "" {
		out = append(out, why)
	}
	if s.State.View().Cluster().Recovered {
		out = append(out, "the region was recovered: nothing that a lease binds starts before every earlier lease is over")
	}
	return out
}
