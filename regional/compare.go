package regional

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
)

const (
	// maxAwaited bounds who waits for the state of an index.
	maxAwaited = 4
	// verifyTries is how often servers are asked for one index: they go on
	// meanwhile. verifyWait is for how long they wait until it comes.
	verifyTries = 6
	verifyWait  = 2 * time.Second
	// verifyLead is by how many entries the index lies ahead at the second try;
	// with each further one by twice as many.
	verifyLead = 16
	// digestWithin bounds the digest of a large state.
	digestWithin = 20 * time.Second
)

// errPast: the state of that index is gone, a later one has replaced it.
var errPast = errors.New("past")

// awaited wants the state of one index.
type awaited struct {
	index uint64
	view  chan *state.View // of capacity one; closed when the index was passed over
}

// serve hands a view to those who wait for it. mu is held.
func (f *fsm) serve(view *state.View) {
	f.awaited = slices.DeleteFunc(f.awaited, func(a awaited) bool {
		if view.Index() < a.index {
			return false
		}
		if view.Index() == a.index {
			a.view <- view
		}
		close(a.view)
		return true
	})
}

// At is the state as it is once exactly that index is applied; errPast when a
// later one is, an error of ctx when it did not come.
func (f *fsm) At(ctx context.Context, index uint64) (*state.View, error) {
	f.mu.Lock()
	switch {
	case f.view.Index() == index:
		defer f.mu.Unlock()
		return f.view, nil
	case f.view.Index() > index:
		defer f.mu.Unlock()
		return nil, fmt.Errorf("index %d is %w, this server is at %d", index, errPast, f.view.Index())
	case len(f.awaited) >= maxAwaited:
		defer f.mu.Unlock()
		return nil, status.Errorf(codes.ResourceExhausted, "%d comparisons of states wait already", maxAwaited)
	}
	a := awaited{index, make(chan *state.View, 1)}
	f.awaited = append(f.awaited, a)
	f.mu.Unlock()
	select {
	case v := <-a.view:
		if v == nil {
			return nil, fmt.Errorf("index %d is %w: no entry of the state has it", index, errPast)
		}
		return v, nil
	case <-ctx.Done():
		f.mu.Lock()
		defer f.mu.Unlock()
		f.awaited = slices.DeleteFunc(f.awaited, func(x awaited) bool { return x.view == a.view })
		return nil, ctx.Err()
	}
}

// digest is what this server holds at an index. The walk is over a view, which
// nothing waits for.
func (s *server) digest(ctx context.Context, index uint64) (*nusav1.StateDigest, error) {
	ctx, cancel := context.WithTimeout(ctx, verifyWait)
	defer cancel()
	view, err := s.fsm.At(ctx, index)
	if err != nil {
		return nil, err
	}
	if !s.digesting.TryLock() {
		return nil, status.Error(codes.ResourceExhausted, "this server is at another comparison of states, ask again")
	}
	defer s.digesting.Unlock()
	return &nusav1.StateDigest{Index: index, Hash: view.Hash()}, nil
}

// State answers another server of the region.
func (b siblings) State(ctx context.Context, req *nusav1.StateRequest) (*nusav1.StateDigest, error) {
	d, err := b.s.digest(ctx, req.GetIndex())
	switch {
	case errors.Is(err, errPast):
		return nil, status.Error(codes.OutOfRange, err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return nil, status.Errorf(codes.DeadlineExceeded, "index %d did not come within %s", req.GetIndex(), verifyWait)
	}
	return d, err
}

// Verify compares what the region's servers hold at one index.
func (r regions) Verify(ctx context.Context, req *nusav1.GetRegionRequest) (*nusav1.VerifyRegionResponse, error) {
	own := r.s.cfg.Region.GetName()
	if name := req.GetName(); name != "" && name != own {
		return nil, status.Errorf(codes.NotFound, "this is region %q: ask a server of region %q, or a global one", own, name)
	}
	l, err := r.s.leading()
	if err != nil {
		return nil, err
	}
	return l.compare(ctx)
}

// compare asks all servers for the digest of one index. While the region works
// that index has to lie ahead, so that nobody is past it when asked; while it
// rests nothing further comes.
func (l *leader) compare(ctx context.Context) (*nusav1.VerifyRegionResponse, error) {
	ahead, silent := uint64(0), map[string]bool{}
	for range verifyTries {
		index := l.s.fsm.View().Index() + ahead
		servers, caught := l.digests(ctx, index, silent)
		if err := ctx.Err(); err != nil {
			return nil, status.FromContextError(err).Err()
		}
		if !caught {
			ahead = max(verifyLead, 2*ahead)
			if l.s.fsm.View().Index() < index {
				ahead = 0 // it rests
			}
			continue
		}
		out := &nusav1.VerifyRegionResponse{Region: l.s.cfg.Region.GetName(), Index: index, Servers: servers, Equal: len(servers) > 0}
		for _, s := range servers {
			out.Equal = out.Equal && s.Hash != "" && s.Hash == servers[0].Hash
		}
		return out, nil
	}
	return nil, status.Error(codes.Aborted, "the servers could not be caught at one index: ask again when less is going on")
}

// digests asks every server at once. Not caught: one that lives has not, or no
// longer, the state of that index. One that does not answer within digestWithin
// is not asked again: it is noted in silent.
func (l *leader) digests(ctx context.Context, index uint64, silent map[string]bool) (out []*nusav1.ServerState, caught bool) {
	var mu sync.Mutex // of caught and silent
	caught = true
	skip := maps.Clone(silent)
	var g errgroup.Group
	for _, one := range l.s.servers() {
		st := &nusav1.ServerState{Id: one.GetId(), Address: one.GetAddress(), Leader: one.GetLeader(), Version: one.GetVersion()}
		out = append(out, st)
		if !one.GetHealthy() || skip[one.GetId()] {
			st.Error = "does not answer"
			continue
		}
		g.Go(func() error {
			asked, cancel := context.WithTimeout(ctx, digestWithin)
			defer cancel()
			d, err := l.digestOf(asked, one, index)
			mu.Lock()
			defer mu.Unlock()
			switch code := status.Code(err); {
			case err == nil:
				st.Hash = d.GetHash()
			case asked.Err() != nil:
				st.Error, silent[one.GetId()] = "does not answer", true
			case code == codes.OutOfRange || code == codes.DeadlineExceeded:
				caught = false
			case code == codes.Unavailable:
				st.Error = "does not answer"
			case code == codes.Unimplemented:
				st.Error = "an older version, which cannot say"
			default:
				st.Error = status.Convert(err).Message()
			}
			return nil
		})
	}
	_ = g.Wait() // none fails
	slices.SortFunc(out, func(a, b *nusav1.ServerState) int { return strings.Compare(a.GetId(), b.GetId()) })
	return out, caught
}

func (l *leader) digestOf(ctx context.Context, one *nusav1.RegionalServer, index uint64) (*nusav1.StateDigest, error) {
	if one.GetAddress() == l.s.addrs.GRPC {
		return siblings{s: l.s}.State(ctx, &nusav1.StateRequest{Index: index})
	}
	conn, err := serve.Dial(l.s.cfg.Net, one.GetAddress())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return nusav1.NewSiblingsClient(conn).State(ctx, &nusav1.StateRequest{Index: index})
}
