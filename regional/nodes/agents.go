package nodes

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/lease"
	"github.com/nusa-scheduler/nusa/internal/tunnel"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/presence"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// Config holds what Agents needs from its server and its term.
type Config struct {
	Region  string
	Cluster state.Cluster
	Term    uint64
	// Epoch identifies the outboxes of this term. Each term has another Epoch.
	Epoch string
	// NodeLease is the time after which a silent node is lost.
	NodeLease time.Duration
	// RegionLease returns the remaining time of the region's lease. 0: the region has no
	// lease.
	RegionLease   func() time.Duration
	StatsInterval time.Duration
	// Clock is monotonic and runs through suspend. The term began at Elected, a time on
	// Clock.
	Clock   func() time.Duration
	Elected time.Duration
	// Start holds the time and the log index at which this server started. Certain is
	// called when a log that was suspect is known to be no old copy.
	Start   presence.Start
	Certain func()

	Log      *raftlog.Sequencer
	FSM      *raftlog.FSM
	Verifier *raftlog.Verifier
	Logger   *slog.Logger
	// Hub has the tunnels that agents open.
	Hub *tunnel.Hub
	// Streams counts the goroutines that use a gRPC stream. The server waits for them
	// before it stops.
	Streams *sync.WaitGroup
	// Servers returns the region's servers.
	Servers func() []*nusav1.RegionalServer
	// Keys returns the certificates that the agents should have, or nil. Without the function
	// nobody says that.
	Keys func() *nusav1.KeyGoal
	// Standby returns the message that sends an agent to another server.
	Standby func() *nusav1.MasterMessage
	// MorePlanned reports whether the scheduler is about to propose more orders.
	MorePlanned func() bool
}

// Agents holds what a master knows about the region's nodes beyond the committed state:
// their sessions, outboxes and statistics, and when the master last received a message from
// each. It is safe for concurrent use.
type Agents struct {
	cfg Config
	// ctx ends with the term.
	ctx context.Context

	mu    sync.Mutex
	nodes map[string]*node
	// nameHolders maps each name to the id of the node that holds the name. It is nil
	// before the first call of claimName.
	nameHolders map[string]string

	// ordered is the greatest index that an agent's order may have. It is the index of the log
	// at the beginning of the term, or the index of an order to a node that was removed since,
	// if that index is greater.
	ordered uint64
	// knowsMore has, by node id, the claims of refused agents: each has an order that the
	// log lacks. It has at most maxClaims entries. An agent that is accepted later is
	// removed.
	knowsMore map[string]claim

	// suspicion decides whether the log may be an old copy. certain is true once the log is
	// known to be no old copy.
	suspicion presence.Suspicion
	certain   atomic.Bool

	// stop is the longest kill timeout that an agent reported in this term.
	stop atomic.Int64

	turns turnQueue
}

// New returns the agents of a term. The term ends with ctx.
func New(ctx context.Context, cfg Config) *Agents {
	a := &Agents{cfg: cfg, ctx: ctx, nodes: map[string]*node{}, turns: newTurnQueue()}
	if cfg.FSM != nil {
		view := cfg.FSM.View()
		a.ordered = view.Index()
		longest := max(cfg.NodeLease, view.Cluster().NodeLeaseMax, view.Cluster().RegionLeaseMax)
		a.suspicion = presence.NewSuspicion(cfg.Start, view.Index(), lease.Over(longest, view.LongestStop()), view.Nodes())
	}
	a.certain.Store(!a.suspicion.At(cfg.Elected))
	return a
}

// LongestStop returns the longest kill timeout of the tasks that a lease binds, as the
// agents of this term reported it. After a restore the log may not know the job version of
// such a task.
func (a *Agents) LongestStop() time.Duration { return time.Duration(a.stop.Load()) }

// LogSuspect reports whether the log may still be an old copy.
func (a *Agents) LogSuspect() bool {
	if a.certain.Load() {
		return false
	}
	a.mu.Lock()
	still := a.suspicion.At(a.cfg.Clock())
	a.mu.Unlock()
	if !still && a.certain.CompareAndSwap(false, true) {
		a.cfg.Logger.Info("the log is not an old copy: tasks that a lease binds may start")
		a.RepeatGrants()
		a.cfg.Certain()
	}
	return still
}

// ensure finds or creates a node. A node from which nothing arrived in this term counts as
// last seen at the term's beginning. So no node is lost earlier than one full lease after
// the election.
func (a *Agents) ensure(id string) *node {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ensureLocked(id)
}

// ensureLocked is like ensure, for a caller that holds a.mu.
func (a *Agents) ensureLocked(id string) *node {
	n := a.nodes[id]
	if n == nil {
		n = &node{id: id, contact: presence.New(a.cfg.Elected), dirty: true}
		a.nodes[id] = n
	}
	return n
}

// find returns a node, or nil if the node is unknown.
func (a *Agents) find(id string) *node {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.nodes[id]
}

// lockNode returns the session's node, locked. While the agent was being registered,
// dropUnregistered may have dropped the node and a new one may have been created. The
// session then gets the new one.
func (a *Agents) lockNode(ss *session) *node {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := a.nodes[ss.node.id]; n != nil {
		ss.node = n
	} else {
		a.nodes[ss.node.id] = ss.node
	}
	ss.node.mu.Lock() // lock the node first, so that dropUnregistered cannot see the node without a session
	return ss.node
}

// AddOrders passes committed orders to the outboxes, in the order of the log. All orders of
// one log entry for one node are added in one call, because they share a number
// (link.Outbox.PutAt). AddOrders owns the slice.
func (a *Agents) AddOrders(orders []*state.Alloc) {
	slices.SortStableFunc(orders, func(a, b *state.Alloc) int { return strings.Compare(a.NodeID, b.NodeID) })
	for len(orders) > 0 {
		id, count := orders[0].NodeID, 1
		for count < len(orders) && orders[count].NodeID == id {
			count++
		}
		if n := a.find(id); n != nil { // the outbox of an unknown node is filled later, by attach
			n.mu.Lock()
			n.addOrders(orders[:count])
			if n.session != nil {
				n.session.requestSend()
			}
			n.mu.Unlock()
		}
		orders = orders[count:]
	}
}

// MarkDirty records that the outboxes of these nodes may hold orders that the committed
// state no longer has.
func (a *Agents) MarkDirty(ids []string) {
	for _, id := range ids {
		n := a.find(id)
		if n == nil {
			continue // attach will fill the outbox
		}
		n.mu.Lock()
		n.dirty = true
		if n.session != nil {
			n.session.requestSend()
		}
		n.mu.Unlock()
	}
}

// ServersChanged makes every session send the list of the region's servers.
func (a *Agents) ServersChanged() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range a.nodes {
		n.mu.Lock()
		if ss := n.session; ss != nil {
			ss.mu.Lock()
			ss.servers = true
			ss.mu.Unlock()
			ss.requestSend()
		}
		n.mu.Unlock()
	}
}

// RepeatGrants sends each agent its latest grant again, with the remaining time of the
// region's lease. It is called when the region has a lease again after it had none, and
// when the log is known to be no old copy.
func (a *Agents) RepeatGrants() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range a.nodes {
		n.mu.Lock()
		if ss := n.session; ss != nil {
			ss.mu.Lock()
			repeat := ss.granted != 0 && len(ss.grants) == 0
			if repeat {
				ss.grants = append(ss.grants, ss.granted)
			}
			ss.mu.Unlock()
			if repeat {
				ss.requestSend()
			}
		}
		n.mu.Unlock()
	}
}

// Stats returns a node's latest statistics without their encoded form, and their age at
// now. It returns false if the node has sent none.
func (a *Agents) Stats(id string, now time.Duration) (wire.NodeStats, bool) {
	n := a.find(id)
	if n == nil {
		return wire.NodeStats{}, false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	out := n.stats
	out.Raw, out.Age = nil, now-n.statsAt
	return out, n.hasStats
}

// StatsToProto returns a node's latest statistics and their age. Both are nil if the node
// has sent none. Only the statistics are nil if they were too large to store.
func (a *Agents) StatsToProto(id string, now time.Duration) (*nusav1.NodeStats, *durationpb.Duration) {
	n := a.find(id)
	if n == nil {
		return nil, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.hasStats {
		return nil, nil
	}
	return n.stats.ToProto(), durationpb.New(now - n.statsAt)
}

// Conn returns a client connection to an agent. The connection uses a tunnel that the agent
// opens on first use. The error is Unavailable when the node has no session.
func (a *Agents) Conn(nodeID string) (*grpc.ClientConn, error) {
	name := nodeID
	if n, found := a.cfg.FSM.View().Node(nodeID); found {
		name = n.Name
	}
	noSession := status.Errorf(codes.Unavailable, "node %s has no session; `nusa node status %s` says whether it is back", name, name)
	n := a.find(nodeID)
	if n == nil {
		return nil, noSession
	}
	n.mu.Lock()
	ss := n.session
	n.mu.Unlock()
	if ss == nil {
		return nil, noSession
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.tunnel != nil {
		return ss.tunnel, nil
	}
	conn, err := a.cfg.Hub.Conn("node "+name, ss.requestTunnel)
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "node %s: %v", name, err)
	}
	ss.tunnel = conn
	return conn, nil
}
