package regional

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
)

// State answers another server of the region.
func (b siblings) State(ctx context.Context, req *nusav1.StateRequest) (*nusav1.StateDigest, error) {
	d, err := b.s.fsm.Digest(ctx, req.GetIndex())
	switch {
	case errors.Is(err, raftlog.ErrPast):
		return nil, status.Error(codes.OutOfRange, err.Error())
	case errors.Is(err, raftlog.ErrBusy):
		return nil, status.Error(codes.ResourceExhausted, err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return nil, status.Errorf(codes.DeadlineExceeded, "index %d was not applied in time", req.GetIndex())
	}
	return d, err
}

// Verify compares what the region's servers hold at one index.
func (r regions) Verify(ctx context.Context, req *nusav1.GetRegionRequest) (*nusav1.VerifyRegionResponse, error) {
	own := r.s.cfg.Region.GetName()
	if name := req.GetName(); name != "" && name != own {
		return nil, status.Errorf(codes.NotFound, "this is region %q: ask a server of region %q, or a global one", own, name)
	}
	if _, err := r.s.leading(); err != nil {
		return nil, err
	}
	return raftlog.Comparison{Region: own, View: r.s.fsm.View, Servers: r.s.servers, Digest: r.s.digestOf}.Run(ctx)
}

// digestOf asks a server of the region for the digest of its state.
func (s *server) digestOf(ctx context.Context, one *nusav1.RegionalServer, index uint64) (*nusav1.StateDigest, error) {
	if one.GetAddress() == s.addrs.GRPC {
		return siblings{s: s}.State(ctx, &nusav1.StateRequest{Index: index})
	}
	conn, err := serve.Dial(s.cfg.Net, one.GetAddress())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return nusav1.NewSiblingsClient(conn).State(ctx, &nusav1.StateRequest{Index: index})
}
