package api

import (
	"context"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// membersAPI is the Members service: each region keeps its own members.
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

// List implements nusav1.MembersServer.
func (m *membersAPI) List(ctx context.Context, req *nusav1.ListMembersRequest) (*nusav1.ListMembersResponse, error) {
	_, c, err := m.region(req.GetRegion())
	if err != nil {
		return nil, err
	}
	return c.List(ctx, req)
}

// Ban implements nusav1.MembersServer.
func (m *membersAPI) Ban(ctx context.Context, req *nusav1.BanRequest) (*nusav1.MemberBan, error) {
	term, c, err := m.region(req.GetRegion())
	if err != nil {
		return nil, err
	}
	e := audit.Entry{Verb: "ban", Kind: "node", Name: req.GetName(), Region: req.GetRegion(), Outcome: audit.Started, Reason: req.GetReason()}
	if err := term.record(ctx, e); err != nil {
		return nil, err
	}
	req.By = ""
	if id, ok := trust.CallerOf(ctx); ok {
		req.By = id.String()
	}
	return c.Ban(ctx, req)
}

// Unban implements nusav1.MembersServer.
func (m *membersAPI) Unban(ctx context.Context, req *nusav1.UnbanRequest) (*nusav1.UnbanResponse, error) {
	term, c, err := m.region(req.GetRegion())
	if err != nil {
		return nil, err
	}
	e := audit.Entry{Verb: "ban", Kind: "node", Name: req.GetName(), Region: req.GetRegion(), Outcome: audit.Started, Reason: onOff(false)}
	if err := term.record(ctx, e); err != nil {
		return nil, err
	}
	return c.Unban(ctx, req)
}
