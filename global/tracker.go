package global

import (
	"cmp"
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/internal/submits"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/identity"
)

// leaderTracker knows which server is active, and holds the connection over which calls are
// forwarded to that server.
type leaderTracker struct {
	store store.Store
	cfg   Config
	self  *nusav1.GlobalServer
	// known is closed when the first leader is known.
	known chan struct{}

	mu      sync.Mutex
	current *nusav1.GlobalServer
	conn    *grpc.ClientConn // nil when the leader is this server, or unknown
	first   sync.Once
}

func newLeaderTracker(s store.Store, cfg Config, grpcAddr string) *leaderTracker {
	address := cfg.Advertise
	if address == "" {
		address = grpcAddr
	}
	return &leaderTracker{
		store: s, cfg: cfg, known: make(chan struct{}),
		self: &nusav1.GlobalServer{Name: cfg.Name, Address: address, Version: cfg.Version, FeatureLevel: featureLevel},
	}
}

// run follows the election key until ctx ends.
func (l *leaderTracker) run(ctx context.Context) error {
	for {
		err := l.follow(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		l.cfg.Logger.Debug("cannot follow the election", "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(campaignPause):
		}
	}
}

// follow reads the election key, and then watches the key from the revision of that read, so that
// it misses no change.
func (l *leaderTracker) follow(ctx context.Context) error {
	_, _, revision, err := l.store.Get(ctx, state.ClusterKey)
	if err != nil {
		return err
	}
	update := func([]store.Event) error {
		kv, ok, err := l.store.Leader(ctx, state.ElectionPrefix)
		if err != nil {
			return err
		}
		if !ok {
			l.changed(nil)
			return nil
		}
		server := new(nusav1.GlobalServer)
		if err := state.Decode(kv, server); err != nil {
			return err
		}
		// This server is active only after it has loaded the records. Then lead calls changed.
		if !proto.Equal(server, l.self) {
			l.changed(server)
		}
		return nil
	}
	if err := update(nil); err != nil {
		return err
	}
	return l.store.Watch(ctx, state.ElectionPrefix, revision, update)
}

// changed sets the active server. nil: no server is active.
func (l *leaderTracker) changed(to *nusav1.GlobalServer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if proto.Equal(to, l.current) {
		return
	}
	if l.conn != nil {
		l.conn.Close() // calls in progress fail: that server is not active any more
		l.conn = nil
	}
	l.current = to
	if to == nil {
		return
	}
	if to != l.self {
		conn, err := serve.Dial(l.cfg.Net, to.GetAddress(), l.cfg.Identity.Dial(identity.GlobalServers()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(submits.NewCodec())))
		if err != nil {
			l.cfg.Logger.Warn("cannot forward", "active", to.GetName(), "address", to.GetAddress(), "error", err)
			l.current = nil
			return
		}
		l.conn = conn
		l.cfg.Logger.Info("standing by", "active", to.GetName(), "address", to.GetAddress())
	}
	l.first.Do(func() { close(l.known) })
}

func (l *leaderTracker) get() (*nusav1.GlobalServer, *grpc.ClientConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current, l.conn
}

func (l *leaderTracker) close() {
	l.changed(nil)
}

// target returns where a call is served: in this process (true), or over the connection.
func (s *server) target() (*grpc.ClientConn, bool, error) {
	if s.active.Load() != nil {
		return nil, true, nil
	}
	if l := s.loading.Load(); l != nil { // the leader is still the one before this server
		return nil, false, cmp.Or(s.reach.err(), l.err(s.cfg.Name))
	}
	if s.leader != nil {
		if _, conn := s.leader.get(); conn != nil {
			return conn, false, nil
		}
	}
	if use := s.usage.Load(); use != nil && use.NoSpace {
		return nil, false, errNoSpace
	}
	if err := s.reach.err(); err != nil {
		return nil, false, err
	}
	return nil, false, errNoActive
}

// errNoSpace is the error of calls while no server is active because the store is full.
var errNoSpace = rpcerr.Error{
	Code: codes.Unavailable, RetryAfter: state.RetryAfter,
	Message: "no global server is active: etcd is full, and room is being made in it",
}.Err()

// errNoActive is the error of calls while no server is active.
var errNoActive = rpcerr.Error{
	Code: codes.Unavailable, RetryAfter: state.RetryAfter,
	Message: "no global server is active: etcd has no quorum or an election is under way",
}.Err()
