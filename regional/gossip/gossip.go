package gossip

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/notify"
)

// maxMembers bounds the known servers, including failed ones. A region has at most nine
// voters. The rest is room for servers that were replaced.
const maxMembers = 64

// rejoinEvery is how often a known address without a live server is contacted again.
// Without these contacts a partition would stay, because memberlist forgets dead members
// after a while.
const rejoinEvery = 5 * time.Second

// ErrTooLarge says that a server's metadata does not fit into a gossip message.
var ErrTooLarge = errors.New("gossip metadata too large")

// Meta is the metadata that a server publishes about itself. Its encoded form has at most
// 512 bytes.
type Meta struct {
	// ID is unique in the region and never used again. A server that replaces this one has
	// another ID.
	ID string `json:"i"`
	// Name is the operator's name for the server.
	Name string `json:"n"`
	// GRPC, Raft and Probe are addresses, "host:port", at which others reach the server.
	GRPC  string `json:"g"`
	Raft  string `json:"r"`
	Probe string `json:"p"`
	// Agents is the address for agents. It is empty if agents use GRPC.
	Agents string `json:"a,omitempty"`
	// Expect is the server's bootstrap_expect.
	Expect int `json:"e,omitempty"`
	// Bootstrapped is true when the server has Raft state and so belongs to a group.
	Bootstrapped bool `json:"b,omitempty"`
	// Cluster is the name of that group. It is empty while the server does not know it.
	Cluster string `json:"u,omitempty"`
	// Candidates is a hash of the set of servers with which this server would form a group.
	// It is empty while the server sees too few.
	Candidates string `json:"c,omitempty"`
	// Started is when the server was started, in Unix milliseconds of its own clock. Of two
	// servers at one address it shows the later one.
	Started int64 `json:"s,omitempty"`
	// Version is the version of the build.
	Version string `json:"v,omitempty"`
	// Level is the feature level of the build: state.FeatureLevel.
	Level uint32 `json:"l,omitempty"`
}

// Member is a server that gossip knows.
type Member struct {
	Meta
	// Gossip is the member's gossip address.
	Gossip string
	// Alive is false for a server that is silent, has left, or whose address belongs
	// to a later server.
	Alive bool
	// Since is when Alive last changed, on the local clock.
	Since time.Time
}

// Config is the configuration of a Group.
type Config struct {
	Net network.Net
	// Listen is the address of the packet socket and of the stream socket.
	Listen string
	// Advertise is the host under which others reach this server.
	Advertise string
	// Region is the label of the group. Packets with another label are refused.
	Region string
	// Keys encrypt everything: the first is used to send, each to receive. Whatever is encrypted
	// with none of them is refused. Empty: no encryption, unless KeyFile is set.
	Keys [][]byte
	// KeyFile is a file of keys that replaces Keys. It is read again when it changes.
	KeyFile string
	// Given: the federation writes KeyFile once each server has the keys that it needs. So the file
	// may change in any way.
	Given bool
	// Join lists gossip addresses of any members.
	Join []string
	// Fast makes gossip more frequent, for servers on one machine.
	Fast   bool
	Logger *slog.Logger
}

// Group is this server's view of its region's servers. It is safe for concurrent use.
type Group struct {
	cfg  Config
	addr string
	ml   *memberlist.Memberlist
	tr   *transport
	// ring has the keys. It is nil without encryption.
	ring         *memberlist.Keyring
	changingKeys sync.Mutex

	mu      sync.Mutex
	local   Meta
	members map[string]Member
	changed notify.Signal // notifies changes of local and members
}

// Listen opens the sockets. After Listen, Addr returns the address; before Run, nothing is
// sent.
func Listen(ctx context.Context, cfg Config) (*Group, error) {
	ring, err := newRing(cfg)
	if err != nil {
		return nil, err
	}
	tr, err := listen(ctx, cfg.Net, cfg.Listen, cfg.Logger, ring != nil)
	if err != nil {
		return nil, fmt.Errorf("gossip: listen on %s: %w", cfg.Listen, err)
	}
	_, port, err := net.SplitHostPort(tr.ln.Addr().String())
	if err != nil {
		tr.close()
		return nil, fmt.Errorf("gossip: address of the listener: %w", err)
	}
	return &Group{
		cfg: cfg, tr: tr, ring: ring, addr: net.JoinHostPort(cfg.Advertise, port),
		members: map[string]Member{},
	}, nil
}

// Addr returns the gossip address at which others reach this server.
func (g *Group) Addr() string { return g.addr }

// Close closes the sockets of a group that never ran.
func (g *Group) Close() { g.tr.close() }

// Run takes part in gossip until ctx ends. It must be called once, after SetLocal.
func (g *Group) Run(ctx context.Context) error {
	if err := g.create(ctx, g.Local().ID); err != nil {
		g.tr.close()
		return fmt.Errorf("gossip: start: %w", err)
	}
	grp, ctx := errgroup.WithContext(ctx)
	grp.Go(func() error { return g.tr.run(ctx) })
	grp.Go(func() error { g.rejoin(ctx); return nil })
	grp.Go(func() error { g.publish(ctx); return nil })
	if g.cfg.KeyFile != "" {
		grp.Go(func() error { g.watchKeys(ctx); return nil })
	}
	grp.Go(func() error {
		<-ctx.Done()
		// A lost broadcast does no harm. The other servers then notice the leave later,
		// when their probes fail.
		_ = g.ml.Leave(100 * time.Millisecond)
		err := g.ml.Shutdown()
		g.tr.close()
		return err
	})
	return grp.Wait()
}

func (g *Group) create(ctx context.Context, id string) error {
	host, port, err := net.SplitHostPort(g.addr)
	if err != nil {
		return err
	}
	ip := net.ParseIP(host)
	if ip == nil {
		ips, err := net.DefaultResolver.LookupIP(ctx, "ip", host)
		if err != nil {
			return fmt.Errorf("resolve the advertised host: %w", err)
		}
		ip = ips[0]
	}
	g.tr.ip = ip
	if _, err := fmt.Sscan(port, &g.tr.port); err != nil {
		return err
	}
	c := memberlist.DefaultLANConfig()
	c.Name = id
	c.Transport = g.tr
	c.Label = "nusa/" + g.cfg.Region
	c.Keyring = g.ring
	c.Delegate, c.Events = delegate{g}, delegate{g}
	c.Alive = delegate{g}
	c.Logger = log.New(g.tr.lines, "", 0)
	c.EnableCompression = false // messages are small
	c.AdvertiseAddr, c.AdvertisePort = ip.String(), g.tr.port
	c.DeadNodeReclaimTime = time.Second
	c.TCPTimeout = 5 * time.Second
	if g.cfg.Fast {
		c.GossipInterval = 50 * time.Millisecond
		c.ProbeInterval = 500 * time.Millisecond
		c.ProbeTimeout = 250 * time.Millisecond
		c.PushPullInterval = 10 * time.Second
		c.TCPTimeout = 2 * time.Second
	}
	g.ml, err = memberlist.Create(c)
	return err
}

// rejoin contacts the configured addresses until one responds. After that it contacts every
// known address without a live server.
func (g *Group) rejoin(ctx context.Context) {
	wait := 50 * time.Millisecond
	for {
		missing := g.Missing()
		if len(missing) > 0 {
			if _, err := g.ml.Join(missing); err != nil && ctx.Err() == nil && len(g.alive()) <= 1 {
				if m := meaning(err.Error()); m != "" {
					g.tr.lines.warn(m, strings.Join(missing, " "), nil)
				}
				g.cfg.Logger.Debug("cannot join the gossip group yet", "addresses", missing, "error", err)
			}
		}
		if len(missing) == 0 || len(g.alive()) > 1 {
			wait = rejoinEvery
		}
		timer := time.NewTimer(wait)
		wait = min(2*wait, rejoinEvery)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// Missing returns, sorted, the configured and known gossip addresses at which no server is
// alive now.
func (g *Group) Missing() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	want := map[string]bool{}
	for _, a := range g.cfg.Join {
		want[a] = true
	}
	for _, m := range g.members {
		want[m.Gossip] = true
	}
	for _, m := range g.members {
		if m.Alive {
			delete(want, m.Gossip)
		}
	}
	delete(want, g.addr)
	return slices.Sorted(maps.Keys(want))
}

func (g *Group) alive() []Member {
	return slices.DeleteFunc(g.Members(), func(m Member) bool { return !m.Alive })
}

// publish broadcasts this server's metadata after each change.
func (g *Group) publish(ctx context.Context) {
	sent := g.Local()
	for {
		changed := g.Changed()
		if now := g.Local(); now != sent {
			// The timeout only bounds the wait until the broadcast is sent. The broadcast
			// is sent in any case.
			_ = g.ml.UpdateNode(time.Second)
			sent = now
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// Local returns the metadata that this server publishes.
func (g *Group) Local() Meta {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.local
}

// SetLocal replaces the metadata that this server publishes. With the error ErrTooLarge
// nothing changes.
func (g *Group) SetLocal(m Meta) error {
	if _, err := encode(m); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.local == m {
		return nil
	}
	g.local = m
	g.changed.Notify()
	return nil
}

// Members returns all known servers, including this one, sorted by ID.
func (g *Group) Members() []Member {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]Member, 0, len(g.members)+1)
	for id, m := range g.members {
		if id != g.local.ID {
			m.Alive = m.Alive && !g.replaced(m)
			out = append(out, m)
		}
	}
	if g.local.ID != "" {
		out = append(out, Member{Meta: g.local, Gossip: g.addr, Alive: true})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].ID < out[j].ID })
	return out
}

// replaced reports whether a later server uses m's address. Then m is gone, even if its
// silence was not noticed yet. The caller holds g.mu.
func (g *Group) replaced(m Member) bool {
	later := func(o Meta, addr string) bool {
		return addr == m.Gossip && o.ID != m.ID && (o.Started > m.Started || o.Started == m.Started && o.ID > m.ID)
	}
	for _, o := range g.members {
		if o.Alive && later(o.Meta, o.Gossip) {
			return true
		}
	}
	return later(g.local, g.addr)
}

// Changed returns a channel that is closed at the next change of Members.
func (g *Group) Changed() <-chan struct{} { return g.changed.C() }

// observe stores what memberlist reports about a node.
func (g *Group) observe(n *memberlist.Node, alive bool) {
	var meta Meta
	if err := json.Unmarshal(n.Meta, &meta); err != nil || meta.ID != n.Name {
		// The member is a server of a version with another format, or another program.
		g.cfg.Logger.Warn("gossip member with unreadable metadata is ignored", "member", n.Name, "address", n.Address(), "error", err)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	old, known := g.members[meta.ID]
	m := Member{Meta: meta, Gossip: n.Address(), Alive: alive, Since: time.Now()}
	if known && old.Alive == alive {
		m.Since = old.Since
	}
	if !known && len(g.members) >= maxMembers && !g.forgetOne() {
		g.cfg.Logger.Warn("too many gossip members, one is ignored", "member", meta.ID, "max", maxMembers)
		return
	}
	g.members[meta.ID] = m
	g.changed.Notify()
}

// forgetOne removes the member that failed first. It returns false if no member has failed.
func (g *Group) forgetOne() bool {
	oldest := ""
	for _, id := range slices.Sorted(maps.Keys(g.members)) {
		m := g.members[id]
		if !m.Alive && (oldest == "" || m.Since.Before(g.members[oldest].Since)) {
			oldest = id
		}
	}
	delete(g.members, oldest)
	return oldest != ""
}

func encode(m Meta) ([]byte, error) {
	raw, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if len(raw) > memberlist.MetaMaxSize {
		return nil, fmt.Errorf("%w: %d bytes, at most %d: shorten the server's name or its advertised host", ErrTooLarge, len(raw), memberlist.MetaMaxSize)
	}
	return raw, nil
}

// delegate implements the callbacks of memberlist.
type delegate struct{ g *Group }

func (d delegate) NodeMeta(int) []byte {
	raw, err := encode(d.g.Local())
	if err != nil {
		return nil // cannot happen: SetLocal refuses metadata that does not fit
	}
	return raw
}

// NotifyAlive refuses a server that says more of itself than fits into a gossip message: memberlist
// bounds only what it sends. If there is such a function, memberlist also refuses a message that
// lacks versions, which it would fail with.
func (delegate) NotifyAlive(n *memberlist.Node) error {
	if len(n.Meta) > memberlist.MetaMaxSize {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(n.Meta), memberlist.MetaMaxSize)
	}
	return nil
}

func (delegate) NotifyMsg([]byte)                  {}
func (delegate) GetBroadcasts(int, int) [][]byte   { return nil }
func (delegate) LocalState(bool) []byte            { return nil }
func (delegate) MergeRemoteState([]byte, bool)     {}
func (d delegate) NotifyJoin(n *memberlist.Node)   { d.g.observe(n, true) }
func (d delegate) NotifyUpdate(n *memberlist.Node) { d.g.observe(n, true) }
func (d delegate) NotifyLeave(n *memberlist.Node)  { d.g.observe(n, false) }
