package api

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/uplink"
	"github.com/nusa-scheduler/nusa/internal/logtap"
	"github.com/nusa-scheduler/nusa/internal/submits"
	"github.com/nusa-scheduler/nusa/internal/tunnel"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/enroll"
	"github.com/nusa-scheduler/nusa/security/oidc"
	"github.com/nusa-scheduler/nusa/security/pki"
)

// Services are the gRPC services of a global server.
type Services struct {
	// Current returns the present leadership term, or nil if this server is not active.
	Current func() *Term
	Hub     *tunnel.Hub
	// Servers returns all global servers. The active one comes first.
	Servers func(context.Context) ([]*nusav1.GlobalServer, error)
	// Info describes this server.
	Info func() *nusav1.InfoResponse
	// Log gives the log of this server to callers.
	Log *logtap.Tap
	// Enroll gives certificates to regional servers and operators.
	Enroll *enroll.Server
	// Users verifies the logins of people.
	Users oidc.Verifier
	// Denied takes the entry of a refused login for the audit trail. It does not block.
	Denied func(audit.Entry)
	// GivenRoots returns the roots in the files of this server.
	GivenRoots func() ([]*pki.Authority, error)
}

// Register adds the services to a gRPC server that has not begun to serve.
func (s *Services) Register(to grpc.ServiceRegistrar) {
	nusav1.RegisterFederationServer(to, &federationAPI{s: s})
	submits.Register(to, &jobsAPI{s: s})
	nusav1.RegisterAllocationsServer(to, &allocationsAPI{s: s})
	nusav1.RegisterRegionsServer(to, &regionsAPI{s: s})
	nusav1.RegisterNodesServer(to, &nodesAPI{s: s})
	nusav1.RegisterTopologyServer(to, &topologyAPI{s: s})
	nusav1.RegisterOriginsServer(to, &originsAPI{s: s})
	nusav1.RegisterEventsServer(to, &eventsAPI{s: s})
	nusav1.RegisterAuditServer(to, &auditAPI{s: s})
	nusav1.RegisterAuthServer(to, &authAPI{s: s})
	nusav1.RegisterNamespacesServer(to, &namespacesAPI{a: &authAPI{s: s}})
	nusav1.RegisterSystemServer(to, &systemAPI{s: s})
	nusav1.RegisterRepairsServer(to, &repairsAPI{s: s})
	nusav1.RegisterMonitorServer(to, &logtap.Service{Tap: s.Log, Relay: s.followMember})
	nusav1.RegisterTokensServer(to, &tokensAPI{s: s})
	nusav1.RegisterMembersServer(to, &membersAPI{s: s})
	nusav1.RegisterKeysServer(to, &keysAPI{s: s})
	nusav1.RegisterPoolsServer(to, &poolsAPI{s: s})
	nusav1.RegisterOverridesServer(to, &overridesAPI{s: s})
	s.Enroll.Register(to)
}

// term returns the present leadership term. It fails only just after the end of a term, because a
// server that is not active forwards calls.
func (s *Services) term() (*Term, error) {
	if t := s.Current(); t != nil {
		return t, nil
	}
	return nil, rpcError(state.ErrNotActive)
}

// federationAPI serves the streams of the regions.
type federationAPI struct {
	nusav1.UnimplementedFederationServer
	s *Services
}

// Session implements nusav1.FederationServer.
func (f *federationAPI) Session(stream uplink.Stream) error {
	term, err := f.s.term()
	if err != nil {
		return err
	}
	return term.ServeRegion(stream)
}

// Tunnel implements nusav1.FederationServer.
func (f *federationAPI) Tunnel(stream grpc.BidiStreamingServer[nusav1.TunnelFrame, nusav1.TunnelFrame]) error {
	return f.s.Hub.Serve(stream)
}

// systemAPI describes the server that the client is connected to, because Info is never forwarded.
type systemAPI struct {
	nusav1.UnimplementedSystemServer
	s *Services
}

// Info implements nusav1.SystemServer.
func (i *systemAPI) Info(context.Context, *nusav1.InfoRequest) (*nusav1.InfoResponse, error) {
	out := i.s.Info()
	if t := i.s.Current(); t != nil {
		out.Alarms = t.State.Alarms()
	}
	return out, nil
}

// recoverPause is the time between the response to a recovery and the end of the term.
const recoverPause = 500 * time.Millisecond

// errRecovered ends a term, so that the next term loads the recovered store.
var errRecovered = errors.New("the store was recovered")

// wouldStop returns the work that a recovery of the store would stop or start.
func wouldStop(t *Term) (*nusav1.RecoverResponse, error) {
	t.State.Lock()
	defer t.State.Unlock()
	if t.State.Leadership.GetConflict() == nil {
		return nil, rpcError(state.ErrNoConflict)
	}
	lost, leftOut, silent := t.State.WorkToLose()
	return &nusav1.RecoverResponse{Lost: lost, LeftOut: leftOut, Silent: silent, Starts: t.State.WorkToStart()}, nil
}

// Recover implements nusav1.SystemServer.
func (i *systemAPI) Recover(ctx context.Context, req *nusav1.RecoverRequest) (*nusav1.RecoverResponse, error) {
	term, err := i.s.term()
	if err != nil {
		return nil, err
	}
	term.State.Lock()
	federation, level := term.State.Sessions.Federation, term.State.GlobalLevel
	term.State.Unlock()
	switch {
	case req.GetDryRun():
		return wouldStop(term)
	case req.GetFederationId() != federation:
		return nil, invalid("federation_id", fmt.Sprintf("%q is not this federation, %s", req.GetFederationId(), federation))
	case level == 0:
		return nil, status.Error(codes.FailedPrecondition, "a global server of an earlier version stands for election and would not know of the recovery: upgrade or stop it first")
	}
	revision, err := term.Commit.Do(ctx, (*state.Tx).Recover)
	if err != nil {
		return nil, rpcError(err)
	}
	term.Log.Info("the store was recovered", "revision", revision)
	// The caller must get the response before the term ends, even through another server.
	time.AfterFunc(recoverPause, func() { term.Renew(errRecovered) })
	return &nusav1.RecoverResponse{Revision: revision}, nil
}

// repairsAPI compares the tiers, and repairs what differs.
type repairsAPI struct {
	nusav1.UnimplementedRepairsServer
	s *Services
}

// Run implements nusav1.RepairsServer.
func (r *repairsAPI) Run(ctx context.Context, req *nusav1.ReconcileRequest) (*nusav1.ReconcileResponse, error) {
	term, err := r.s.term()
	if err != nil {
		return nil, err
	}
	if name := req.GetRegion(); name != "" {
		if _, err := term.region(name); err != nil {
			return nil, err
		}
	}
	if err := term.record(ctx, audit.Entry{Verb: "reconcile", Kind: "system", Name: req.GetRegion(), Region: req.GetRegion(), Outcome: audit.Started}); err != nil {
		return nil, err
	}
	return &nusav1.ReconcileResponse{Results: term.Repairer.Now(ctx, req.GetRegion())}, nil
}

// followMember relays what the master of a region, or one of its agents, logs.
func (s *Services) followMember(req *nusav1.MonitorMemberRequest, down logtap.Stream) error {
	term, err := s.term()
	if err != nil {
		return err
	}
	conn, err := term.dial(req.GetRegion())
	if err != nil {
		return err
	}
	err = term.record(down.Context(), audit.Entry{Verb: "monitor", Kind: "system", Name: req.GetNode(), Region: req.GetRegion(), Outcome: audit.Started})
	if err != nil {
		return err
	}
	if req.GetNode() == "" {
		return logtap.FromSelf(conn, req.GetLevel(), down)
	}
	return logtap.FromMember(conn, req, down)
}
