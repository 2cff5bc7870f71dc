package enroll

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/filter"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/join"
)

const (
	// maxTokens bounds the tokens of a tier.
	maxTokens = 10_000
	// tokenKept is how long a token that has ended is listed.
	tokenKept = 7 * 24 * time.Hour
	// defaultTokenLife is the life of a token without a ttl.
	defaultTokenLife = 24 * time.Hour
	// deletesAtOnce bounds the tokens that one call removes.
	deletesAtOnce = 64
)

// CreateToken makes a token of this tier: for regional servers and operators at the global tier, and
// for agents in a region.
func (s *Server) CreateToken(ctx context.Context, req *nusav1.CreateTokenRequest) (*nusav1.CreateTokenResponse, error) {
	store, _, err := s.ready()
	if err != nil {
		return nil, err
	}
	kind := kindOf(req.GetRole())
	switch {
	case kind == identity.None:
		return nil, status.Errorf(codes.InvalidArgument, "role %q: give agent, server or operator", req.GetRole())
	case kind == identity.Operator && s.Region != "":
		return nil, status.Error(codes.FailedPrecondition, "operators join at the global tier: ask a global server for a token with --role operator")
	case kind == identity.Server && s.Region != "":
		return nil, status.Error(codes.FailedPrecondition, "a region makes tokens for its own agents: ask a global server for one with --role server")
	case s.Region != "" && req.GetRegion() != s.Region:
		return nil, status.Errorf(codes.InvalidArgument, "region %q: this is a server of region %s", req.GetRegion(), s.Region)
	}
	root, err := s.rootHash()
	if err != nil {
		return nil, err
	}
	var random [join.RandomBytes]byte
	_, _ = rand.Read(random[:]) // it never fails
	token, now := join.New(random, root), s.Now()
	life := defaultTokenLife
	if req.GetTtl() != nil {
		life = req.GetTtl().AsDuration()
	}
	record := &join.Record{
		ID: token.ID(), Secret: token.Hash(), Kind: kind, Region: req.GetRegion(), Pool: req.GetPool(), Name: cmp.Or(req.GetName(), "*"),
		Uses: cmp.Or(int(req.GetUses()), 1), Created: now, Expires: now.Add(life), By: caller(ctx, req.GetBy()),
	}
	if err := record.Check(); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	old, err := s.oldTokens(ctx, store, now)
	if err != nil {
		return nil, err
	}
	stored := recordOf(record)
	write, err := put(tokenPrefix+record.ID, stored)
	if err != nil {
		return nil, err
	}
	made := &audit.Entry{Verb: "create", Kind: "join token", Name: record.ID, Region: record.Region, Reason: fmt.Sprintf("role %s, uses %d, until %s", req.GetRole(), record.Uses, record.Expires.UTC().Format(time.RFC3339))}
	err = store.Change(ctx, Change{Checks: []Check{{tokenPrefix + record.ID, 0}}, Puts: []Put{write}, Deletes: old, Audit: made})
	if err != nil {
		return nil, retry(func() error { return err })
	}
	s.Log.Info("a join token is made", "token", record.ID, "role", req.GetRole(), "region", record.Region, "uses", record.Uses, "by", record.By)
	return &nusav1.CreateTokenResponse{Token: token.Reveal(), Record: stored.GetToken()}, nil
}

// oldTokens returns the keys of tokens that ended long ago. It returns an error if there are
// too many tokens.
func (s *Server) oldTokens(ctx context.Context, store Store, now time.Time) (old []string, err error) {
	n := 0
	err = store.List(ctx, tokenPrefix, func(key string, value []byte, _ uint64) error {
		record := &nusav1.TokenRecord{}
		if err := proto.Unmarshal(value, record); err != nil {
			return err
		}
		if now.Sub(record.GetToken().GetExpiresAt().AsTime()) > tokenKept && len(old) < deletesAtOnce {
			old = append(old, key)
			return nil
		}
		n++
		return nil
	})
	if err == nil && n >= maxTokens {
		err = status.Errorf(codes.ResourceExhausted, "there are %d join tokens: wait until some have ended for %s", n, tokenKept)
	}
	return old, err
}

// ListTokens returns the tokens of this tier, without their secrets.
func (s *Server) ListTokens(ctx context.Context, req *nusav1.ListTokensRequest) (*nusav1.ListTokensResponse, error) {
	store, _, err := s.ready()
	if err != nil {
		return nil, err
	}
	if err := filter.Check(req.GetStates(), filter.TokenStates); err != nil {
		return nil, err
	}
	out, now := &nusav1.ListTokensResponse{}, time.Now()
	err = store.List(ctx, tokenPrefix, func(_ string, value []byte, _ uint64) error {
		record := &nusav1.TokenRecord{}
		if err := proto.Unmarshal(value, record); err != nil {
			return err
		}
		if (req.GetRegion() == "" || req.GetRegion() == record.GetToken().GetRegion()) && filter.Has(req.GetStates(), filter.Token(record.GetToken(), now)) {
			out.Tokens = append(out.Tokens, record.GetToken())
		}
		return nil
	})
	return out, err
}

// RevokeToken makes a token of this tier useless. It returns NOT_FOUND if the tier has no such
// token.
func (s *Server) RevokeToken(ctx context.Context, req *nusav1.RevokeTokenRequest) (*nusav1.JoinToken, error) {
	store, _, err := s.ready()
	if err != nil {
		return nil, err
	}
	record := &nusav1.TokenRecord{}
	err = retry(func() error {
		key := tokenPrefix + req.GetId()
		version, err := read(ctx, store, key, record)
		switch {
		case err != nil:
			return err
		case version == 0 || req.GetRegion() != "" && req.GetRegion() != record.GetToken().GetRegion():
			return status.Errorf(codes.NotFound, "no join token has the id %q: `nusa token list` shows them", req.GetId())
		case record.GetToken().GetRevoked():
			return nil
		}
		record.Token.Revoked = true
		return change(ctx, store, []Check{{key, version}}, map[string]proto.Message{key: record},
			&audit.Entry{Verb: "revoke", Kind: "join token", Name: req.GetId(), Region: record.GetToken().GetRegion()})
	})
	if err != nil {
		return nil, err
	}
	s.Log.Info("a join token is revoked", "token", req.GetId(), "by", caller(ctx, ""))
	return record.GetToken(), nil
}
