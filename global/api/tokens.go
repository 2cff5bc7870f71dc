package api

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/filter"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/authz"
	"github.com/nusa-scheduler/nusa/security/recorder"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// tokensAPI is the Tokens service: the tokens of the global tier, and those of all regions.
type tokensAPI struct {
	nusav1.UnimplementedTokensServer
	s *Services
}

// roleAgent is the role of tokens that regions keep. A token with the role roleOperator is for a
// person.
const roleAgent, roleOperator = "agent", "operator"

// Create implements nusav1.TokensServer.
func (t *tokensAPI) Create(ctx context.Context, req *nusav1.CreateTokenRequest) (*nusav1.CreateTokenResponse, error) {
	if call := rights.Of(ctx); call != nil && req.GetRole() == roleOperator {
		// Otherwise who may create tokens could become an operator with more rights.
		if set := (authz.Action{Verb: "set", Kind: "role"}); !call.Set.Allowed(call.Who, set) {
			return nil, call.Refuse(set)
		}
	}
	if req.GetRole() != roleAgent {
		return t.s.Enroll.CreateToken(ctx, req)
	}
	term, err := t.s.term()
	if err != nil {
		return nil, err
	}
	conn, err := term.dial(req.GetRegion())
	if err != nil {
		return nil, err
	}
	req.By = recorder.Of(ctx).Who
	return nusav1.NewTokensClient(conn).Create(ctx, req)
}

// List implements nusav1.TokensServer.
func (t *tokensAPI) List(ctx context.Context, req *nusav1.ListTokensRequest) (*nusav1.ListTokensResponse, error) {
	if err := filter.Check(req.GetStates(), filter.TokenStates); err != nil {
		return nil, err
	}
	out, err := t.s.Enroll.ListTokens(ctx, req)
	if err != nil {
		return nil, err
	}
	term, err := t.s.term()
	if err != nil {
		return nil, err
	}
	parts, errs := t.ask(ctx, term, req.GetRegion())
	out.Errors = errs
	for _, part := range parts {
		out.Tokens = append(out.Tokens, part.GetTokens()...)
	}
	now := time.Now()
	out.Tokens = slices.DeleteFunc(out.Tokens, func(x *nusav1.JoinToken) bool { return !filter.Has(req.GetStates(), filter.Token(x, now)) })
	slices.SortFunc(out.Tokens, func(a, b *nusav1.JoinToken) int {
		return cmp.Or(cmp.Compare(a.GetRegion(), b.GetRegion()), -a.GetCreatedAt().AsTime().Compare(b.GetCreatedAt().AsTime()), cmp.Compare(a.GetId(), b.GetId()))
	})
	return out, nil
}

// ask returns the tokens of a region, or of all regions.
func (t *tokensAPI) ask(ctx context.Context, term *Term, region string) ([]*nusav1.ListTokensResponse, []*nusav1.PartialError) {
	var names []string
	if region != "" {
		names = []string{region}
	}
	conns, errs := term.reach(names)
	parts, failed := askAll(ctx, conns, func(ctx context.Context, c regionConn) (*nusav1.ListTokensResponse, error) {
		out, err := nusav1.NewTokensClient(c.conn).List(ctx, &nusav1.ListTokensRequest{Region: c.name})
		if code := status.Code(err); code == codes.FailedPrecondition || code == codes.Unimplemented {
			return &nusav1.ListTokensResponse{}, nil // the region cannot have tokens
		}
		return out, err
	})
	return parts, append(errs, failed...)
}

// Revoke implements nusav1.TokensServer.
func (t *tokensAPI) Revoke(ctx context.Context, req *nusav1.RevokeTokenRequest) (*nusav1.JoinToken, error) {
	out, err := t.s.Enroll.RevokeToken(ctx, req)
	if status.Code(err) != codes.NotFound {
		return out, err
	}
	notFound := err
	term, err := t.s.term()
	if err != nil {
		return nil, err
	}
	region := req.GetRegion()
	if region == "" {
		parts, errs := t.ask(ctx, term, "")
		for _, part := range parts {
			for _, token := range part.GetTokens() {
				if token.GetId() == req.GetId() {
					region = token.GetRegion()
				}
			}
		}
		switch {
		case region != "":
		case len(errs) > 0:
			return nil, status.Errorf(codes.Unavailable, "no join token %q in the regions that answered; %s: %s", req.GetId(), errs[0].GetRegion(), errs[0].GetMessage())
		default:
			return nil, notFound
		}
	}
	conn, err := term.dial(region)
	if err != nil {
		return nil, err
	}
	return nusav1.NewTokensClient(conn).Revoke(ctx, &nusav1.RevokeTokenRequest{Id: req.GetId(), Region: region})
}
