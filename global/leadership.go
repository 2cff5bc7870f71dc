package global

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// campaignPause is how long a server waits after a failed campaign or reign
// before the next one.
const campaignPause = 500 * time.Millisecond

// campaign stands for election for as long as the server runs. A reign that
// ends, for whatever reason, leaves nothing behind; the next one loads anew.
func (s *server) campaign(ctx context.Context) error {
	forgot := false
	for {
		var err error
		if !forgot {
			err = s.forgetFormerSelf(ctx)
			forgot = err == nil
		}
		if err == nil {
			err = s.reign(ctx)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, ErrFormat) {
			return err // trying again would not make the records readable
		}
		s.log.Warn("not active", "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(campaignPause):
		}
	}
}

// forgetFormerSelf removes the candidacy of this server's former life, if it
// was killed: it holds the address now, so nobody else can be meant, and need
// not wait for the key to expire.
func (s *server) forgetFormerSelf(ctx context.Context) error {
	var former []store.KV
	_, err := s.store.List(ctx, ElectionPrefix, func(kv store.KV) error {
		c := new(nusav1.GlobalServer)
		if err := Decode(kv, c); err != nil {
			return err
		}
		if c.GetName() == s.leader.self.GetName() && c.GetAddress() == s.leader.self.GetAddress() {
			former = append(former, kv)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, kv := range former {
		_, err := s.store.Txn(ctx, []store.Compare{store.Mod(kv.Key, kv.ModRevision)}, []store.Op{store.Delete(kv.Key)})
		if err != nil && !errors.Is(err, store.ErrCompareFailed) {
			return err
		}
	}
	return nil
}

// reign waits to be elected and is the active server until it no longer is.
func (s *server) reign(ctx context.Context) error {
	value, err := Encode(s.leader.self)
	if err != nil {
		return err
	}
	election, err := s.store.Campaign(ctx, ElectionPrefix, string(value), s.cfg.ElectionTTL)
	if err != nil {
		return err
	}
	defer func() {
		// So that a successor need not wait for the key to expire.
		resign, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		if err := election.Resign(resign); err != nil {
			s.log.Debug("resign", "error", err)
		}
	}()
	start := time.Now()
	a, err := newActive(ctx, &s.cfg, s.store, election.Guard(), s.hub, s.metrics)
	if err != nil {
		return err
	}
	a.renew = election.Renew
	if err := a.hold(ctx); err != nil {
		a.end(err)
		return err
	}
	watching, cancel := context.WithCancel(a.ctx)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-election.Lost():
			a.end(ErrNotActive)
		case <-watching.Done():
		}
	}()
	s.active.Store(a)
	s.leader.changed(s.leader.self)
	s.log.Info("active", "name", s.cfg.Name, "jobs", len(a.st.Jobs), "regions", len(a.st.Regions), "took", time.Since(start))
	err = a.run()
	s.active.Store(nil)
	cancel()
	<-ended
	return err
}

// leaderTracker knows which server is active, and holds the connection that
// calls are forwarded over.
type leaderTracker struct {
	store store.Store
	cfg   Config
	self  *nusav1.GlobalServer
	// known is closed when there was a leader for the first time.
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
		self: &nusav1.GlobalServer{Name: cfg.Name, Address: address, Version: cfg.Version},
	}
}

// run follows the election key. It must not miss a change, so it reads and
// then watches from there.
func (l *leaderTracker) run(ctx context.Context) error {
	for {
		err := l.follow(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		l.cfg.Logger.Debug("follow the election", "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(campaignPause):
		}
	}
}

func (l *leaderTracker) follow(ctx context.Context) error {
	_, _, revision, err := l.store.Get(ctx, ClusterKey)
	if err != nil {
		return err
	}
	update := func([]store.Event) error {
		kv, ok, err := l.store.Leader(ctx, ElectionPrefix)
		if err != nil {
			return err
		}
		if !ok {
			l.changed(nil)
			return nil
		}
		server := new(nusav1.GlobalServer)
		if err := Decode(kv, server); err != nil {
			return err
		}
		// This server is the leader only once it has loaded the records: then
		// reign says so.
		if !proto.Equal(server, l.self) {
			l.changed(server)
		}
		return nil
	}
	if err := update(nil); err != nil {
		return err
	}
	return l.store.Watch(ctx, ElectionPrefix, revision, update)
}

// changed takes note of the active server; nil = there is none.
func (l *leaderTracker) changed(to *nusav1.GlobalServer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if proto.Equal(to, l.current) {
		return
	}
	if l.conn != nil {
		l.conn.Close() // what is under way there has no leader any more
		l.conn = nil
	}
	l.current = to
	if to == nil {
		return
	}
	if to != l.self {
		conn, err := serve.Dial(l.cfg.Net, to.GetAddress())
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

// target is where calls are answered: here, or over a connection.
func (s *server) target() (*grpc.ClientConn, bool, error) {
	if s.active.Load() != nil {
		return nil, true, nil
	}
	if s.leader != nil {
		if _, conn := s.leader.get(); conn != nil {
			return conn, false, nil
		}
	}
	return nil, false, retryable(codes.Unavailable, errNobody)
}

// errNobody is what calls are told between two reigns.
var errNobody = errors.New("no global server is active: etcd has no quorum or an election is under way")

// servers are all candidates of the election, the active one first.
func (s *server) servers(ctx context.Context) ([]*nusav1.GlobalServer, error) {
	active, ok, err := s.store.Leader(ctx, ElectionPrefix)
	if err != nil {
		return nil, err
	}
	var out []*nusav1.GlobalServer
	_, err = s.store.List(ctx, ElectionPrefix, func(kv store.KV) error {
		server := new(nusav1.GlobalServer)
		if err := Decode(kv, server); err != nil {
			return err
		}
		if server.Active = ok && kv.Key == active.Key; server.Active {
			out = append([]*nusav1.GlobalServer{server}, out...)
		} else {
			out = append(out, server)
		}
		return nil
	})
	return out, err
}
