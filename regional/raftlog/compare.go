package raftlog

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
)

const (
	// compareTries bounds how often the servers are asked. Each try uses another index,
	// because the servers apply entries meanwhile.
	compareTries = 6
	// firstLead is how many entries the index lies ahead of the log at the second try. Each
	// further try doubles this distance.
	firstLead = 16
	// digestTimeout bounds the time in which a server computes the digest of a large state.
	digestTimeout = 20 * time.Second
)

// Comparison asks the region's servers for the digest of their state at one
// index.
type Comparison struct {
	Region string
	View   func() *state.View
	// Servers lists the region's servers.
	Servers func() []*nusav1.RegionalServer
	// Digest asks one server. Its error is a gRPC status: OutOfRange when the server has
	// passed the index, DeadlineExceeded when the server has not reached the index.
	Digest func(ctx context.Context, server *nusav1.RegionalServer, index uint64) (*nusav1.StateDigest, error)
}

// Run compares all servers at one index. While entries are committed, the index must lie
// ahead of the log, because a server that has passed the index no longer has that state.
// While no entries are committed, the index must be the present one. The error is a gRPC status.
// It is Aborted when the tries found no index at which all servers had the state.
func (c Comparison) Run(ctx context.Context) (*nusav1.VerifyRegionResponse, error) {
	lead, silent := uint64(0), map[string]bool{}
	for range compareTries {
		index := c.View().Index() + lead
		servers, complete := c.digests(ctx, index, silent)
		if err := ctx.Err(); err != nil {
			return nil, status.FromContextError(err).Err()
		}
		if !complete {
			lead = max(firstLead, 2*lead)
			if c.View().Index() < index {
				lead = 0 // no entries are being committed
			}
			continue
		}
		out := &nusav1.VerifyRegionResponse{Region: c.Region, Index: index, Servers: servers, Equal: len(servers) > 0}
		for _, s := range servers {
			out.Equal = out.Equal && s.Hash != "" && s.Hash == servers[0].Hash
		}
		return out, nil
	}
	return nil, status.Error(codes.Aborted, "the servers could not be compared at one index: ask again when fewer entries are committed")
}

// digests asks all servers at once. complete is false when a healthy server does not have
// the state at that index, because the server has not reached or has passed the index. A
// server that does not respond within digestTimeout is added to silent. A server in silent
// is not asked again.
func (c Comparison) digests(ctx context.Context, index uint64, silent map[string]bool) (out []*nusav1.ServerState, complete bool) {
	var mu sync.Mutex // guards complete and silent
	complete = true
	skip := maps.Clone(silent)
	var g errgroup.Group
	for _, server := range c.Servers() {
		st := &nusav1.ServerState{Id: server.GetId(), Address: server.GetAddress(), Leader: server.GetLeader(), Version: server.GetVersion()}
		out = append(out, st)
		if !server.GetHealthy() || skip[server.GetId()] {
			st.Error = "does not answer"
			continue
		}
		g.Go(func() error {
			asked, cancel := context.WithTimeout(ctx, digestTimeout)
			defer cancel()
			d, err := c.Digest(asked, server, index)
			mu.Lock()
			defer mu.Unlock()
			switch code := status.Code(err); {
			case err == nil:
				st.Hash = d.GetHash()
			case asked.Err() != nil:
				st.Error, silent[server.GetId()] = "does not answer", true
			case code == codes.OutOfRange || code == codes.DeadlineExceeded:
				complete = false
			case code == codes.Unavailable:
				st.Error = "does not answer"
			case code == codes.Unimplemented:
				st.Error = "an older version without this comparison"
			default:
				st.Error = status.Convert(err).Message()
			}
			return nil
		})
	}
	_ = g.Wait() // the functions return no error
	slices.SortFunc(out, func(a, b *nusav1.ServerState) int { return strings.Compare(a.GetId(), b.GetId()) })
	return out, complete
}
