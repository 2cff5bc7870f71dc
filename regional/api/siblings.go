package api

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
)

// siblings is the Siblings service. The other servers of the region call it.
type siblings struct {
	nusav1.UnimplementedSiblingsServer
	s *Server
}

// Kept returns this server's copy of the messages of the global tier.
func (b siblings) Kept(_ context.Context, req *nusav1.FederationCacheRequest) (*nusav1.FederationCache, error) {
	return b.s.Federation.Copy(req.GetToken()), nil
}

// State returns the digest of this server's state at a log index.
func (b siblings) State(ctx context.Context, req *nusav1.StateRequest) (*nusav1.StateDigest, error) {
	return digest(ctx, b.s.State, req.GetIndex())
}

// digest returns the digest of this server's state. Its error is a gRPC status: OutOfRange
// when the server has passed the index, DeadlineExceeded when the server has not reached
// it.
func digest(ctx context.Context, local State, index uint64) (*nusav1.StateDigest, error) {
	d, err := local.Digest(ctx, index)
	switch {
	case errors.Is(err, raftlog.ErrPast):
		return nil, status.Error(codes.OutOfRange, err.Error())
	case errors.Is(err, raftlog.ErrBusy):
		return nil, status.Error(codes.ResourceExhausted, err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return nil, status.Errorf(codes.DeadlineExceeded, "index %d was not applied in time", index)
	}
	return d, err
}
