package api

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/security/enroll"
)

// tokens is the Tokens service: the tokens for the region's agents.
type tokens struct {
	nusav1.UnimplementedTokensServer
	s *Server
}

// Create makes a token.
func (t tokens) Create(ctx context.Context, req *nusav1.CreateTokenRequest) (*nusav1.CreateTokenResponse, error) {
	return t.s.Enroll.CreateToken(ctx, req)
}

// List returns the tokens.
func (t tokens) List(ctx context.Context, req *nusav1.ListTokensRequest) (*nusav1.ListTokensResponse, error) {
	return t.s.Enroll.ListTokens(ctx, req)
}

// Revoke makes a token useless.
func (t tokens) Revoke(ctx context.Context, req *nusav1.RevokeTokenRequest) (*nusav1.JoinToken, error) {
	return t.s.Enroll.RevokeToken(ctx, req)
}

// Documents returns the documents of the region's log as the store of package enroll. It
// returns an error, which is a status, if this server is not the master, or if a server of the
// region has an earlier version.
func (s *Server) Documents() (enroll.Store, error) {
	m, err := s.master()
	if err != nil {
		return nil, err
	}
	if level := s.State.View().Cluster().FeatureLevel; level < state.DocumentLevel {
		return nil, status.Errorf(codes.FailedPrecondition, "region %s has servers of an earlier version (feature level %d), so it cannot store join tokens: upgrade all its servers", s.region(), level)
	}
	return documents{s, m.Log}, nil
}

// documents is the store of package enroll in the region's log.
type documents struct {
	s   *Server
	log Log
}

// Get implements enroll.Store.
func (d documents) Get(_ context.Context, key string) ([]byte, uint64, error) {
	doc, ok := d.s.State.View().Document(key)
	if !ok {
		return nil, 0, nil
	}
	return doc.Value, doc.Version, nil
}

// List implements enroll.Store.
func (d documents) List(_ context.Context, prefix string, visit func(string, []byte, uint64) error) error {
	for doc := range d.s.State.View().Documents(prefix) {
		if err := visit(doc.Key, doc.Value, doc.Version); err != nil {
			return err
		}
	}
	return nil
}

// Change implements enroll.Store.
func (d documents) Change(ctx context.Context, c enroll.Change) error {
	cmd := &state.ChangeDocuments{Deletes: c.Deletes}
	for _, check := range c.Checks {
		cmd.Checks = append(cmd.Checks, state.DocumentCheck{Key: check.Key, Version: check.Version})
	}
	for _, p := range c.Puts {
		cmd.Puts = append(cmd.Puts, state.Document{Key: p.Key, Value: p.Value})
	}
	whole := state.Command{ChangeDocuments: cmd}
	if c.Audit != nil {
		whole = d.s.audited(ctx, whole, *c.Audit)
	}
	_, err := d.log.Commit(ctx, whole)
	if errors.Is(err, state.ErrStaleRevision) {
		return enroll.ErrChanged
	}
	return raftlog.StatusError(err)
}
