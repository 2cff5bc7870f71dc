package api

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/rights"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// membersAPI is the Members service: the global tier keeps the regional servers, and each region
// keeps its own agents.
type membersAPI struct {
	nusav1.UnimplementedMembersServer
	s *Services
}

// region returns the term of this server and the service of a region.
func (m *membersAPI) region(name string) (*Term, nusav1.MembersClient, error) {
	term, err := m.s.term()
	if err != nil {
		return nil, nil, err
	}
	conn, err := term.dial(name)
	if err != nil {
		return nil, nil, err
	}
	return term, nusav1.NewMembersClient(conn), nil
}

// started returns the service of a region, after it has stored the entry of a change that begins.
func (m *membersAPI) started(ctx context.Context, e audit.Entry) (nusav1.MembersClient, error) {
	term, c, err := m.region(e.Region)
	if err != nil {
		return nil, err
	}
	e.Outcome = audit.Started
	return c, term.record(ctx, e)
}

// callerText returns who makes a call, for a region.
func callerText(ctx context.Context) string {
	if call := rights.Of(ctx); call != nil && call.Token != nil {
		return call.Who.Name
	}
	if id, ok := trust.CallerOf(ctx); ok {
		return id.String()
	}
	return ""
}

// List implements nusav1.MembersServer.
func (m *membersAPI) List(ctx context.Context, req *nusav1.ListMembersRequest) (*nusav1.ListMembersResponse, error) {
	term, err := m.s.term()
	if err != nil {
		return nil, err
	}
	out, err := m.s.Enroll.Members().List(ctx, req)
	if err != nil {
		return nil, err
	}
	var names []string
	if region := req.GetRegion(); region != "" {
		if _, err := term.region(region); err != nil {
			return nil, err
		}
		names = []string{region}
	}
	conns, errs := term.reach(names)
	parts, failed := askAll(ctx, conns, func(ctx context.Context, c regionConn) (*nusav1.ListMembersResponse, error) {
		return nusav1.NewMembersClient(c.conn).List(ctx, &nusav1.ListMembersRequest{Region: c.name})
	})
	out.Errors = append(errs, failed...)
	for _, part := range parts {
		out.Members, out.Nodes = append(out.Members, part.GetMembers()...), append(out.Nodes, part.GetNodes()...)
		out.Bans, out.Removed = append(out.Bans, part.GetBans()...), append(out.Removed, part.GetRemoved()...)
	}
	slices.SortStableFunc(out.Members, func(a, b *nusav1.Member) int {
		return cmp.Or(cmp.Compare(a.GetRegion(), b.GetRegion()), -cmp.Compare(a.GetRole(), b.GetRole()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return out, nil
}

// Ban implements nusav1.MembersServer.
func (m *membersAPI) Ban(ctx context.Context, req *nusav1.BanRequest) (*nusav1.MemberBan, error) {
	c, err := m.started(ctx, audit.Entry{Verb: "ban", Kind: "node", Name: req.GetName(), Region: req.GetRegion(), Reason: req.GetReason()})
	if err != nil {
		return nil, err
	}
	req.By = callerText(ctx)
	return c.Ban(ctx, req)
}

// Unban implements nusav1.MembersServer.
func (m *membersAPI) Unban(ctx context.Context, req *nusav1.UnbanRequest) (*nusav1.UnbanResponse, error) {
	c, err := m.started(ctx, audit.Entry{Verb: "ban", Kind: "node", Name: req.GetName(), Region: req.GetRegion(), Reason: onOff(false)})
	if err != nil {
		return nil, err
	}
	return c.Unban(ctx, req)
}

// Register implements nusav1.MembersServer.
func (m *membersAPI) Register(ctx context.Context, req *nusav1.RegisterRequest) (*nusav1.RegisterResponse, error) {
	c, err := m.started(ctx, audit.Entry{Verb: "register", Kind: "node", Region: req.GetRegion(), Reason: fmt.Sprintf("register %d nodes", len(req.GetNodes()))})
	if err != nil {
		return nil, err
	}
	return c.Register(ctx, req)
}

// Unregister implements nusav1.MembersServer.
func (m *membersAPI) Unregister(ctx context.Context, req *nusav1.UnregisterRequest) (*nusav1.RegisterResponse, error) {
	c, err := m.started(ctx, audit.Entry{Verb: "register", Kind: "node", Region: req.GetRegion(), Reason: fmt.Sprintf("unregister %d nodes", len(req.GetNames()))})
	if err != nil {
		return nil, err
	}
	return c.Unregister(ctx, req)
}

// GetPolicy implements nusav1.MembersServer.
func (m *membersAPI) GetPolicy(ctx context.Context, req *nusav1.GetJoinPolicyRequest) (*nusav1.JoinPolicy, error) {
	_, c, err := m.region(req.GetRegion())
	if err != nil {
		return nil, err
	}
	return c.GetPolicy(ctx, req)
}

// SetPolicy implements nusav1.MembersServer.
func (m *membersAPI) SetPolicy(ctx context.Context, req *nusav1.SetJoinPolicyRequest) (*nusav1.JoinPolicy, error) {
	c, err := m.started(ctx, audit.Entry{Verb: "register", Kind: "node", Region: req.GetRegion(), Reason: "join policy"})
	if err != nil {
		return nil, err
	}
	return c.SetPolicy(ctx, req)
}

// BanRegion implements nusav1.MembersServer.
func (m *membersAPI) BanRegion(ctx context.Context, req *nusav1.BanRegionRequest) (*nusav1.BanRegionResponse, error) {
	term, err := m.s.term()
	if err == nil {
		_, err = term.region(req.GetRegion())
	}
	if err != nil {
		return nil, err
	}
	req.By = callerText(ctx)
	ban, err := m.s.Enroll.Members().BanRegion(ctx, req)
	if err != nil {
		return nil, err
	}
	out := &nusav1.BanRegionResponse{Ban: ban}
	if req.GetName() != "" {
		out.RegionError, _ = m.tell(ctx, req.GetRegion(), func(ctx context.Context, c nusav1.MembersClient) error {
			_, err := c.BanRegion(ctx, req)
			return err
		})
	}
	return out, nil
}

// UnbanRegion implements nusav1.MembersServer. The region comes first, so that a call that fails can
// be repeated.
func (m *membersAPI) UnbanRegion(ctx context.Context, req *nusav1.UnbanRegionRequest) (*nusav1.UnbanResponse, error) {
	there := &nusav1.UnbanResponse{}
	if req.GetName() != "" {
		_, c, err := m.region(req.GetRegion())
		if err == nil {
			there, err = c.UnbanRegion(ctx, req)
		}
		if err != nil {
			return nil, err
		}
	}
	out, err := m.s.Enroll.Members().UnbanRegion(ctx, req)
	if out != nil {
		out.Removed = out.GetRemoved() || there.GetRemoved()
	}
	return out, err
}

// RemoveServer implements nusav1.MembersServer. The region says whether the server lives.
func (m *membersAPI) RemoveServer(ctx context.Context, req *nusav1.RemoveServerRequest) (*nusav1.RemoveServerResponse, error) {
	known, err := m.s.Enroll.Members().ServerToRemove(ctx, req.GetRegion(), req.GetName())
	if err != nil {
		return nil, err
	}
	out := &nusav1.RemoveServerResponse{}
	out.RegionError, err = m.tell(ctx, req.GetRegion(), func(ctx context.Context, c nusav1.MembersClient) error {
		_, err := c.RemoveServer(ctx, &nusav1.RemoveServerRequest{
			Region: req.GetRegion(), Name: req.GetName(), Key: known.GetKey(), Until: known.GetUntil(), By: callerText(ctx),
		})
		return err
	})
	if status.Code(err) == codes.FailedPrecondition {
		return nil, err
	}
	return out, m.s.Enroll.Members().RemoveServer(ctx, req.GetRegion(), req.GetName())
}

// tell tells a region of a change. It returns the error, also as a text for the operator.
func (m *membersAPI) tell(ctx context.Context, region string, call func(context.Context, nusav1.MembersClient) error) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, regionDeadline)
	defer cancel()
	_, c, err := m.region(region)
	if err == nil {
		err = call(ctx, c)
	}
	if err != nil {
		return failureText(err), err
	}
	return "", nil
}
