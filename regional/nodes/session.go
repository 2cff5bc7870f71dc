package nodes

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/presence"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
	"github.com/nusa-scheduler/nusa/security/enroll"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// protocol is the version of the wire protocol. Agents with this version, the one before or
// the one after are accepted.
const protocol = 1

// maxInventory bounds a node's inventory, in bytes.
const maxInventory = 256 << 10

type agentStream = grpc.BidiStreamingServer[nusav1.AgentMessage, nusav1.MasterMessage]

// errSuperseded ends the stream of an agent that has opened a newer stream.
var errSuperseded = status.Error(codes.Aborted, "a newer session of the same node has replaced this one")

// phase says whether the session's node can be used.
type phase uint8

const (
	// current: the node is registered and the master has all its reports.
	current phase = iota
	// resyncing: the node was lost or had left. The master does not have all the node's
	// reports of that time yet. The node is not ready before they are committed.
	resyncing
	// superseded: the node has a newer session. The old session ends at its next message.
	// Usually none arrives, because the connection of the old session is dead.
	superseded
)

// session is one agent's stream on the master. The goroutine of the gRPC handler receives
// and mostly waits. A master has thousands of sessions, so a second goroutine exists only
// while it sends, and calls that need a deep stack run on other goroutines (stack.go).
type session struct {
	agents *Agents
	node   *node
	stream agentStream
	hello  *nusav1.AgentHello
	// Only the receiver uses incoming and inbox: the message that it handles, and the
	// agent's set of reports.
	incoming wire.IncomingMessage
	inbox    *link.Inbox[state.AllocReport]
	// informed says which orders the node's supervisors know. Only the receiver uses it.
	informed presence.Informed

	// cursor is the agent's position in the node's outbox. The node's lock guards cursor.
	cursor *link.Cursor[uint64]

	mu      sync.Mutex
	phase   phase
	sending sendState
	// ordersFirst: all orders must be sent before the next grant.
	ordersFirst bool
	// regionLease: the latest grant had a part of the region's lease. Only the goroutine
	// that sends uses it.
	regionLease bool
	// ackDue is the position of the agent's latest reports that are not acknowledged yet.
	// These reports are committed or in flight. acknowledged is the last position that was
	// sent.
	ackDue, acknowledged state.Position
	// These are sent next: the ids of granted leases, the ids of tunnels to open, and, if
	// servers is true, the list of servers.
	grants  []uint64
	granted uint64 // the latest id in grants
	// empty is the id of the latest empty grant: see presence.Informed.
	empty   uint64
	tunnels []string
	servers bool
	// tunnel is the connection through the agent's tunnel. It is nil before the first use.
	tunnel *grpc.ClientConn
}

// serve serves the stream of an agent whose hello has arrived.
func (a *Agents) serve(stream agentStream, hello *nusav1.AgentHello) error {
	ctx := stream.Context()
	refused := a.refuseIdentity(ctx, hello)
	if refused == nil {
		refused = a.refuse(hello)
	}
	if refused == nil {
		describe(&a.cfg, hello)
		refused = refuseInventory(&a.cfg, hello)
	}
	if refused == nil {
		if err := a.claimName(hello); err != nil {
			refused = &nusav1.Refused{Message: err.Error()}
		}
	}
	if refused != nil {
		a.cfg.Logger.Warn("agent refused", "node", hello.GetName(), "id", hello.GetNodeId(), "reason", refused.Message)
		return stream.Send(&nusav1.MasterMessage{Kind: &nusav1.MasterMessage_Refused{Refused: refused}})
	}
	ss := &session{
		agents: a, node: a.ensure(hello.GetNodeId()), stream: stream, hello: hello,
		inbox: link.NewInbox[state.AllocReport](wire.MaxReports), sending: sendActive, // greet sends first
	}
	ss.node.accept()
	a.accepted(ss.node.id, hello.GetStopTime().AsDuration())
	defer ss.detach()
	if err := onNewStack(func() error { return ss.greet(ctx) }); err != nil {
		return err
	}
	return raftlog.StatusError(ss.receive(ctx))
}

// greet registers the node, attaches the session, and sends the welcome and then everything
// that is due. It sends nothing before all reports of earlier sessions are committed.
func (ss *session) greet(ctx context.Context) error {
	clock := ss.agents.cfg.Clock
	n := ss.node
	n.beginMessage(clock)
	registered, known := ss.agents.cfg.FSM.View().Node(n.id)
	var err error
	if known && registered.Status != state.NodeReady {
		ss.phase = resyncing
	} else {
		err = ss.register(ctx)
	}
	n.endMessage(clock)
	if err != nil {
		return raftlog.StatusError(err)
	}
	ss.attach()
	if err := ss.awaitEarlierReports(ctx); err != nil {
		return raftlog.StatusError(err)
	}
	if err := ss.stream.Send(&nusav1.MasterMessage{Kind: &nusav1.MasterMessage_Welcome{Welcome: ss.agents.welcome(ss.node.id)}}); err != nil {
		return err
	}
	ss.sendAll()
	return nil
}

// refuse returns the reason why an agent is refused, or nil if it is accepted.
func (a *Agents) refuse(h *nusav1.AgentHello) *nusav1.Refused {
	region := a.cfg.Region
	permanent := func(format string, args ...any) *nusav1.Refused {
		return &nusav1.Refused{Message: fmt.Sprintf(format, args...), Permanent: true}
	}
	switch {
	case h.GetNodeId() == "" || len(h.GetNodeId()) > 64 || len(h.GetName()) > 253:
		return permanent("node id and name must be set and at most 64 and 253 bytes")
	case h.GetRegion() != "" && h.GetRegion() != region:
		return permanent("this is region %q, the agent is configured for %q", region, h.GetRegion())
	case h.GetClusterId() != "" && h.GetClusterId() != a.cfg.Cluster.ID:
		return permanent("the agent's data directory belongs to another cluster of region %q: start it with an empty one", region)
	case h.GetInventory() == nil:
		return permanent("the hello carries no inventory")
	case proto.Size(h.GetInventory()) > maxInventory:
		return permanent("the inventory has more than %d bytes", maxInventory)
	case h.GetInventory().GetPortMin() < 0 || h.GetInventory().GetPortMax() > 65535:
		return permanent("ports %d..%d: not a range within 1..65535", h.GetInventory().GetPortMin(), h.GetInventory().GetPortMax())
	case h.GetProtocol() < protocol-1 || h.GetProtocol() > protocol+1:
		return permanent("protocol %d, this server speaks %d: upgrade the older one", h.GetProtocol(), protocol)
	}
	return a.refuseNewer(h)
}

// refuseIdentity refuses a hello that names another node than the agent's certificate does.
// An agent must not take the place of another node by the id of that node either.
func (a *Agents) refuseIdentity(ctx context.Context, h *nusav1.AgentHello) *nusav1.Refused {
	id, known := trust.CallerOf(ctx)
	if !known {
		return nil
	}
	if id.Kind != identity.Agent || id.Region != a.cfg.Region || id.Name != h.GetName() {
		return &nusav1.Refused{Permanent: true, Message: fmt.Sprintf("the certificate is that of %s, and the agent says that it is node %q", id.Describe(), h.GetName())}
	}
	if n, ok := a.cfg.FSM.View().Node(h.GetNodeId()); ok && n.Name != h.GetName() {
		return &nusav1.Refused{Permanent: true, Message: fmt.Sprintf("the node id %s belongs to node %q, and the certificate is that of %s: use an empty data directory", h.GetNodeId(), n.Name, id.Describe())}
	}
	return a.refusePool(h)
}

// refusePool refuses an agent that joined with a token or a registration for one pool, and now
// names another pool.
func (a *Agents) refusePool(h *nusav1.AgentHello) *nusav1.Refused {
	record, ok := a.cfg.FSM.View().Document(enroll.AgentKey(a.cfg.Region, h.GetName()))
	if !ok {
		return nil
	}
	pool, err := enroll.PoolOf(record.Value)
	if err != nil {
		return &nusav1.Refused{Message: fmt.Sprintf("the record of member %s cannot be read: %v", h.GetName(), err)}
	}
	now := cmp.Or(h.GetInventory().GetPool(), job.DefaultPool)
	if pool == "" || pool == now {
		return nil
	}
	return &nusav1.Refused{Permanent: true, Message: fmt.Sprintf("node %q has joined for pool %s, and now is in pool %s: use --pool %s", h.GetName(), pool, now, pool)}
}

// maxClaims bounds the claims of agents that are remembered.
const maxClaims = 64

// claim says that an agent has an order that the log lacks.
type claim struct {
	name string
	// index and incarnation are those of the agent's order. ends is the index at which the
	// log ended.
	index, incarnation, ends uint64
	// registered: the log had the node at that time. When an operator has removed the node
	// since, the claim no longer counts.
	registered bool
}

// accepted records that an agent has no order that the log lacks. stop is the longest kill
// timeout of the tasks that the agent runs.
func (a *Agents) accepted(id string, stop time.Duration) {
	for was := a.stop.Load(); int64(stop) > was && !a.stop.CompareAndSwap(was, int64(stop)); was = a.stop.Load() {
	}
	if a.certain.Load() {
		return
	}
	a.mu.Lock()
	a.suspicion.Accepted(id)
	a.mu.Unlock()
	a.LogSuspect()
}

// accept records that the node's agent was accepted.
func (n *node) accept() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.accepted = true
}

// refuseNewer refuses an agent that has an order that the log lacks. A master whose log has
// forgotten orders would use epochs again that already exist. The log has all orders of
// earlier terms from the beginning of this term. An agent that was accepted in this term
// got every later order from this master. If such an agent then claims another order, the
// agent's data is wrong, and not the log.
func (a *Agents) refuseNewer(h *nusav1.AgentHello) *nusav1.Refused {
	_, registered := a.cfg.FSM.View().Node(h.GetNodeId())
	a.mu.Lock()
	defer a.mu.Unlock()
	ends, accepted := a.ordered, false
	if n := a.nodes[h.GetNodeId()]; n != nil {
		n.mu.Lock()
		ends, accepted = max(ends, n.newest), n.accepted
		n.mu.Unlock()
	}
	have := a.cfg.Cluster.Incarnation
	newer := h.GetIncarnation() > have || h.GetIncarnation() == have && h.GetIndex() > ends
	if !newer {
		delete(a.knowsMore, h.GetNodeId())
		return nil
	}
	claims := fmt.Sprintf("the log of region %q ended at index %d of incarnation %d, but the agent has an order of index %d of incarnation %d",
		a.cfg.Region, ends, have, h.GetIndex(), h.GetIncarnation())
	if accepted {
		return &nusav1.Refused{Message: claims + ", which no master sent: its data directory is damaged or a copy; " +
			"stop the agent, run `nusa node remove`, and start the agent with an empty directory"}
	}
	if a.knowsMore == nil {
		a.knowsMore = map[string]claim{}
	}
	if _, known := a.knowsMore[h.GetNodeId()]; known || len(a.knowsMore) < maxClaims {
		a.knowsMore[h.GetNodeId()] = claim{h.GetName(), h.GetIndex(), h.GetIncarnation(), ends, registered}
	}
	return &nusav1.Refused{Message: claims + ": the log is an old copy, restore it with `nusa regional restore`, which begins a new incarnation"}
}

// OldLog returns why the log is an old copy: an agent has an order that the log lacks. Such
// a log has forgotten what runs, so the master must place nothing. OldLog returns an empty
// string if no agent has such an order, or if an operator has removed the nodes of all such
// agents.
func (a *Agents) OldLog() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.knowsMore) == 0 {
		return ""
	}
	view := a.cfg.FSM.View()
	maps.DeleteFunc(a.knowsMore, func(id string, c claim) bool {
		_, registered := view.Node(id)
		return c.registered && !registered
	})
	all := slices.SortedFunc(maps.Values(a.knowsMore), func(x, y claim) int { return cmp.Compare(x.name, y.name) })
	if len(all) == 0 {
		return ""
	}
	c := all[0]
	return fmt.Sprintf("the agent of node %s has an order of index %d of incarnation %d, but the log ended at index %d of incarnation %d (agents that know more: %d), so nothing is placed: "+
		"the log is an old copy, stop the region's servers and run `nusa regional restore`; if only that agent is wrong, stop it and run `nusa node remove %s`",
		c.name, c.index, c.incarnation, c.ends, a.cfg.Cluster.Incarnation, len(all), c.name)
}

func (a *Agents) welcome(nodeID string) *nusav1.MasterWelcome {
	return &nusav1.MasterWelcome{
		Session: uuid.NewString(), ClusterId: a.cfg.Cluster.ID, Incarnation: a.cfg.Cluster.Incarnation, Term: a.cfg.Term,
		Lease:         durationpb.New(a.cfg.NodeLease),
		StatsInterval: durationpb.New(a.cfg.StatsInterval),
		Reports:       wire.PositionToProto(a.cfg.FSM.View().Reports(nodeID)),
		Servers:       a.serverList(),
		Protocol:      protocol,
	}
}

func (a *Agents) serverList() *nusav1.ServerList {
	out := &nusav1.ServerList{Servers: a.cfg.Servers()}
	if a.cfg.Keys != nil {
		out.Keys = a.cfg.Keys()
	}
	return out
}

// register commits the hello's inventory if it differs from the inventory in the state. A
// node that returns with another address is the same node.
func (ss *session) register(ctx context.Context) error {
	if ss.hello.Inventory == nil {
		return nil // the node is already registered
	}
	cfg := &ss.agents.cfg
	n := wire.NodeFromProto(ss.hello)
	ss.hello.Inventory = nil // the state now has the inventory: a second copy would double the memory
	old, known := cfg.FSM.View().Node(n.ID)
	if known && old.Status == state.NodeReady && old.Name == n.Name && old.Address == n.Address && bytes.Equal(old.Inventory, n.Inventory) &&
		old.VolumesReported == n.VolumesReported && old.BindsLeases() == n.BindsLeases() { // an earlier version stored the bytes without reading these two fields
		return nil
	}
	if _, err := cfg.Log.CommitQueued(ctx, state.Command{UpsertNode: &state.UpsertNode{Node: n}}); err != nil {
		return fmt.Errorf("register node %s: %w", n.ID, err)
	}
	if !known {
		cfg.Logger.Info("node registered", "node", n.Name, "id", n.ID, "pool", n.Pool)
	}
	return nil
}

// finishResync makes a node ready that was lost or had left, once the node's reports of
// that time are committed. If the node were ready earlier, the master could keep an attempt
// that ended long ago and stop its replacement.
func (ss *session) finishResync(ctx context.Context) error {
	ss.mu.Lock()
	was := ss.phase
	if was == resyncing {
		ss.phase, ss.ordersFirst = current, true
	}
	ss.mu.Unlock()
	if was != resyncing {
		return nil
	}
	err := onNewStack(func() error { return ss.register(ctx) })
	if err == nil {
		ss.returned()
	}
	return err
}

// returned records that the log says that the session's node is ready.
func (ss *session) returned() {
	ss.node.mu.Lock()
	ss.node.contact.Returned()
	ss.node.mu.Unlock()
}

func (ss *session) inPhase(p phase) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.phase == p
}

// attach makes this session the node's session and ends an earlier one.
func (ss *session) attach() {
	n := ss.agents.lockNode(ss)
	defer n.mu.Unlock()
	n.contact.Attached(ss.agents.cfg.Clock())
	if old := n.session; old != nil {
		old.supersede()
	}
	n.session = ss
	n.fill(ss.agents.cfg.FSM.View(), ss.agents.cfg.Epoch)
	have := wire.PositionFromProto(ss.hello.GetOrders())
	if have.Epoch == ss.agents.cfg.Epoch {
		ss.informed.Stored(have.Sequence)
	}
	ss.cursor = n.outbox.Cursor(link.Position(have))
}

func (ss *session) supersede() {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.phase = superseded
}

func (ss *session) detach() {
	n := ss.node
	n.mu.Lock()
	if n.session == ss {
		n.session = nil
	}
	n.mu.Unlock()
	ss.mu.Lock()
	conn := ss.tunnel
	ss.tunnel = nil
	ss.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
	}
}
