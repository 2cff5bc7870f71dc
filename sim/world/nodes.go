package world

import (
	"cmp"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/regional/presence"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/sim/world/machine"
)

// nodeState is what a master knows about a node beyond the log: the session, the orders that are
// not sent yet, and when a message last arrived.
type nodeState struct {
	id      string
	session *machine.End
	contact presence.Node
	resync  bool
	// ordersFirst: all orders are sent before the next grant. regionLease: the latest grant
	// included a part of the region's lease.
	ordersFirst, regionLease bool
	hello                    agentHello
	inbox                    *link.Inbox[state.AllocReport]
	outbox                   *link.Outbox[uint64]
	cursor                   *link.Cursor[uint64]
	filled                   uint64
	// newest is the greatest index of an order that was sent in this term.
	newest uint64
	// accepted: the node's agent was accepted in this term.
	accepted bool
	queued   bool // a step that sends orders is scheduled
	acked    state.Position
	granted  uint64 // id of the latest grant
	empty    uint64 // id of the latest grant that tells supervisors no deadline
	informed presence.Informed
	// reporting counts the commands with reports that are in flight. waiting are the welcomes of
	// sessions that began meanwhile.
	reporting int
	waiting   []func()
}

// The messages between an agent and its region.
type (
	agentHello struct {
		id, name           string
		orders             link.Position
		incarnation, index uint64
		cpu                int64
		stop               time.Duration
		old                bool
	}
	agentWelcome struct {
		incarnation, term uint64
		lease             time.Duration
		reports           link.Position
	}
	standby      struct{ leader *regionServer }
	leaseRequest struct{ id, granted uint64 }
	nodeGrant    struct {
		id         uint64
		lease      time.Duration
		regionLeft time.Duration
		// continues: the lease only continues what runs, and the agent must start nothing.
		continues bool
	}
	nodeOrders   struct{ b link.Batch[allocOrder] }
	nodeReports  struct{ b link.Batch[state.AllocReport] }
	reportsAck   struct{ at link.Position }
	ordersStored struct{ at link.Position }
)

// allocOrder is the order about one allocation.
type allocOrder struct {
	id                 string
	incarnation, index uint64
	want               state.Desired
	reason             state.Reason
	spec               *groupVersion
	instance           instance
	generation, epoch  int64
	region             string
	binding            lease.Binding
	local              bool
	placed             uint64 // index of the placement
}

// acceptAgent serves a stream of an agent.
func (s *regionServer) acceptAgent(e *machine.End) {
	var m *master
	var n *nodeState
	e.Recv = func(msg any) {
		if hello, ok := msg.(agentHello); ok {
			if s.lead == nil {
				e.Send(standby{s.r.knownLeader()})
				e.Close()
				return
			}
			if s.lead.knowsLess(hello) {
				e.Close() // the log is an old copy
				return
			}
			if !s.lead.claimName(hello) {
				e.Close()
				return
			}
			m = s.lead
			n = m.node(hello.id)
			m.greet(n, e, hello)
			return
		}
		if m == nil || m.l.ended || n.session != e {
			e.Close()
			return
		}
		n.contact.Arrived(s.h.Clock())
		if !m.receive(n, e, msg) {
			n.contact.Handled(s.h.Clock())
		}
	}
	e.Closed = func() {
		if n != nil && n.session == e {
			n.session = nil
		}
	}
}

// knownLeader returns the present leader, which standbys name to agents, or nil.
func (r *regionSim) knownLeader() *regionServer {
	if l := r.raft.leader; l != nil && !l.ended {
		return l.srv
	}
	return nil
}

// knowsLess reports whether an agent has orders that the log does not have, as regional/nodes does.
func (m *master) knowsLess(h agentHello) bool {
	if plant.Is(plant.OldLog) {
		return false
	}
	ends, have, accepted := m.began, m.view().Cluster().Incarnation, false
	if n := m.nodes[h.id]; n != nil {
		ends, accepted = max(ends, n.newest), n.accepted
	}
	newer := h.incarnation > have || h.incarnation == have && h.index > ends
	switch {
	case !newer:
		delete(m.knowsMore, h.id)
	case !accepted:
		m.knowsMore[h.id] = true
	}
	return newer
}

func (m *master) node(id string) *nodeState {
	n := m.nodes[id]
	if n == nil {
		n = &nodeState{id: id, contact: presence.New(m.elected)}
		m.nodes[id] = n
	}
	return n
}

// greet registers the node, and sends the welcome and the orders.
func (m *master) greet(n *nodeState, e *machine.End, hello agentHello) {
	n.hello, n.accepted = hello, true
	m.suspicion.Accepted(n.id)
	m.stop = max(m.stop, hello.stop)
	attach := func() {
		if m.l.ended || !e.Open {
			return
		}
		if n.session != nil {
			n.session.Close()
		}
		m.nodes[n.id] = n // the node may have been forgotten while it was registered
		n.session, n.granted, n.empty, n.regionLease, n.informed = e, 0, 0, false, presence.Informed{}
		n.stored(m, hello.orders)
		n.contact.Attached(m.srv.h.Clock())
		n.inbox = link.NewInbox[state.AllocReport](10_000)
		if n.reporting == 0 {
			m.welcome(n, e)
			return
		}
		n.contact.Arrived(m.srv.h.Clock())
		n.waiting = append(n.waiting, func() {
			n.contact.Handled(m.srv.h.Clock())
			if e.Open && n.session == e {
				m.welcome(n, e)
			}
		})
	}
	known, ok := m.view().Node(n.id)
	n.resync = ok && known.Status != state.NodeReady
	if n.resync || ok && known.BindsLeases() == !hello.old {
		attach()
		return
	}
	m.register(n, attach)
}

// welcome sends the welcome and the orders. All reports of earlier sessions are committed.
func (m *master) welcome(n *nodeState, e *machine.End) {
	n.acked = m.view().Reports(n.id)
	n.fill(m.view(), m.epoch)
	n.cursor = n.outbox.Cursor(n.hello.orders)
	c := m.view().Cluster()
	e.Send(agentWelcome{c.Incarnation, m.l.term, m.r.nodeLease, link.Position(n.acked)})
	m.sendOrders(n)
}

// register stores the node as ready.
func (m *master) register(n *nodeState, done func()) {
	capabilities := []string{"self_fencing"}
	if !n.hello.old {
		capabilities = append(capabilities, state.LeaseBinding)
	}
	node := state.Node{ID: n.id, Name: n.hello.name, Address: n.hello.name, Pool: "default",
		Capacity: state.Resources{CPUMilli: n.hello.cpu, MemoryBytes: 1 << 34, DiskBytes: 1 << 36},
		Drivers:  []state.Driver{{Name: "process", Healthy: true, Capabilities: capabilities}}, PortMin: 20000, PortMax: 21000}
	m.propose(state.Command{UpsertNode: &state.UpsertNode{Node: node}}, func(state.Result) { done() })
}

// receive handles a message. It returns true if the message is still being handled.
func (m *master) receive(n *nodeState, e *machine.End, msg any) bool {
	switch msg := msg.(type) {
	case leaseRequest:
		n.contact.Requested(msg.granted, m.r.nodeLease)
		m.confirmBindings(n, msg)
		arrived := m.r.w.Now
		grant := func() {
			m.l.confirm(func() {
				n.contact.Handled(m.srv.h.Clock())
				if e.Open && n.session == e && !n.resync {
					m.r.w.watch.grants(m, arrived)
					m.grantNode(n, e, msg.id)
				}
			})
		}
		if n.resync {
			m.register(n, func() {
				n.resync, n.ordersFirst = false, true
				n.contact.Returned()
				grant()
			})
			return true
		}
		grant()
		return true
	case nodeReports:
		return m.receiveReports(n, e, msg)
	case ordersStored:
		m.r.w.watch.nodeStored(m, n, msg.at)
		n.stored(m, msg.at)
	}
	return false
}

// stored notes which orders the agent has stored, as regional/nodes does.
func (n *nodeState) stored(m *master, at link.Position) {
	if at.Epoch == m.epoch {
		n.informed.Stored(at.Sequence)
	}
}

// confirmBindings handles a lease request, as regional/nodes does.
func (m *master) confirmBindings(n *nodeState, q leaseRequest) {
	if upTo := n.informed.Requested(q.id, q.granted, n.empty); upTo > 0 && m.view().BindingUnknownUpTo(n.id, upTo) {
		m.propose(state.Command{OrdersStored: &state.OrdersStored{NodeID: n.id, Index: upTo}}, nil)
	}
}

// grantNode grants a lease.
func (m *master) grantNode(n *nodeState, e *machine.End, id uint64) {
	if !n.contact.Grant(id) { // the node was declared lost: its return must be in the log first
		m.propose(state.Command{SetNodeStatus: &state.SetNodeStatus{ID: n.id, Status: state.NodeReady}}, func(state.Result) {
			n.contact.Returned()
			n.ordersFirst = true
			if e.Open && n.session == e && !n.resync {
				m.grantNode(n, e, id)
			}
		})
		return
	}
	m.sendGrant(n, e, id)
}

func (m *master) receiveReports(n *nodeState, e *machine.End, msg nodeReports) bool {
	change, complete, err := n.inbox.Add(msg.b, func(func(string) bool) {})
	if err != nil {
		e.Close()
		return false
	}
	if !complete {
		return false
	}
	cmd := &state.AgentReports{NodeID: n.id, Position: state.Position(change.Position)}
	mentioned := map[string]bool{}
	for _, item := range change.Upserts {
		cmd.Reports = append(cmd.Reports, item.Value)
		mentioned[item.Key] = true
	}
	if change.Full {
		cmd.Released = m.view().Unmentioned(n.id, func(id string) bool { return mentioned[id] })
	}
	n.reporting++
	m.propose(state.Command{AgentReports: cmd}, func(state.Result) {
		n.reporting--
		n.contact.Handled(m.srv.h.Clock())
		if e.Open {
			e.Send(reportsAck{link.Position(m.view().Reports(n.id))})
		}
		if n.reporting == 0 {
			waiting := n.waiting
			n.waiting = nil
			for _, welcome := range waiting {
				welcome()
			}
		}
	})
	if plant.Is(plant.AckBeforeSync) {
		e.Send(reportsAck{change.Position})
	}
	return true
}

// ordersChanged schedules that a node gets its new orders.
func (m *master) ordersChanged(id string) {
	n := m.nodes[id]
	if n == nil || n.session == nil || n.queued {
		return
	}
	n.queued = true
	m.p.After(time.Millisecond, func() {
		n.queued = false
		if n.session != nil && len(n.waiting) == 0 && !m.l.ended {
			n.fill(m.view(), m.epoch)
			m.sendOrders(n)
		}
	})
}

func (m *master) sendOrders(n *nodeState) {
	for {
		b, more := n.cursor.Next(64)
		if !more {
			return
		}
		out := link.Batch[allocOrder]{Full: b.Full, Last: b.Last, Removed: b.Removed, Position: b.Position}
		for _, item := range b.Items {
			a, ok := m.view().Alloc(item.Key)
			if !ok {
				continue
			}
			if g := m.r.w.groupOf(m.view(), a); g != nil {
				out.Items = append(out.Items, link.Item[allocOrder]{Key: item.Key, Value: m.order(a, g)})
				n.newest = max(n.newest, a.OrderIndex)
			}
		}
		n.session.Send(nodeOrders{out})
	}
}

func (m *master) order(a *state.Alloc, g *groupVersion) allocOrder {
	return allocOrder{
		id: a.ID, incarnation: m.view().Cluster().Incarnation, index: a.OrderIndex, want: a.Desired, reason: a.Reason,
		spec: g, instance: instanceOf(m.r, a),
		generation: a.Generation, epoch: a.Epoch, region: m.r.name, local: a.Local, binding: m.bindingOf(g, a.Local), placed: a.CreateIndex,
	}
}

// fill makes the outbox contain the orders that the log has, as regional/nodes does.
func (n *nodeState) fill(view *state.View, epoch string) {
	fresh := n.outbox == nil
	if fresh {
		n.outbox = link.NewOutbox[uint64](epoch, 256)
	}
	n.filled = view.Index()
	var changed, charged, ended []*state.Alloc
	for a := range view.NodeAllocs(n.id) {
		switch {
		case a.Charged:
			charged = append(charged, a)
		case !a.Declined:
			ended = append(ended, a)
		}
	}
	wanted := map[string]bool{}
	for _, a := range append(charged, ended[max(0, len(ended)-8):]...) {
		wanted[a.ID] = true
		if old, held := n.outbox.Get(a.ID); !held || old != a.OrderIndex {
			changed = append(changed, a)
		}
	}
	slices.SortStableFunc(changed, func(a, b *state.Alloc) int { return cmp.Compare(a.OrderIndex, b.OrderIndex) })
	for _, a := range changed {
		n.outbox.PutAt(a.OrderIndex, a.ID, a.OrderIndex)
	}
	if n.outbox.Len() > len(wanted) {
		gone := slices.DeleteFunc(n.outbox.Keys(), func(id string) bool { return wanted[id] })
		slices.Sort(gone)
		for _, id := range gone {
			n.outbox.DeleteAt(view.Index(), id)
		}
	}
	if fresh {
		n.outbox.ForgetUpTo(view.Index())
	}
}

// watchNodes commits which nodes are lost, or ready again.
func (m *master) watchNodes() {
	m.p.Every(m.r.nodeLease/8, func() bool {
		if m.l.ended {
			return false
		}
		m.logSuspect()
		now := m.srv.h.Clock()
		for n := range m.view().Nodes() {
			status, silent := m.statusOf(n, now)
			if status == n.Status {
				continue
			}
			since := int64(0)
			if status == state.NodeLost {
				since = m.srv.h.Wall() - int64(silent)
			}
			if m.r.w.Tracing() {
				m.r.w.Tracef("%s: node %s is %s", m.r.name, n.Name, status)
			}
			m.propose(state.Command{SetNodeStatus: &state.SetNodeStatus{ID: n.ID, Status: status, SinceUnixNano: since}}, nil)
		}
		m.dropUnregistered()
		return true
	})
}

// dropUnregistered forgets the removed nodes that have no session, as regional/nodes does.
func (m *master) dropUnregistered() {
	if len(m.nodes) <= m.view().NodeCount() {
		return
	}
	for _, id := range sortedKeys(m.nodes) {
		n := m.nodes[id]
		if _, registered := m.view().Node(id); registered || n.session != nil {
			continue
		}
		m.began = max(m.began, n.newest) // the node's agent may come back with the order newest
		delete(m.nodes, id)
		if m.holders[n.hello.name] == id {
			delete(m.holders, n.hello.name)
		}
	}
}

func (m *master) statusOf(n *state.Node, now time.Duration) (state.NodeStatus, time.Duration) {
	if n.Status == state.NodeLeft {
		return n.Status, 0
	}
	known := m.node(n.ID)
	with := presence.Current
	switch {
	case known.session == nil:
		with = presence.None
	case known.resync:
		with = presence.Resyncing
	}
	return known.contact.Status(n.Status, with, m.r.nodeLease, now)
}

// absence returns how long a node has been absent.
func (m *master) absence(id string) presence.Absence {
	stored := state.NodeLost
	if n, ok := m.view().Node(id); ok {
		stored = n.Status
	}
	return m.node(id).contact.Absence(stored, m.srv.h.Clock())
}

// bindingOf returns which leases bind the instances of a group.
func bindingOf(g *groupVersion, local bool) lease.Binding {
	spec := g.toState(local)
	return [...]lease.Binding{state.BindNone: lease.None, state.BindNode: lease.Node, state.BindRegion: lease.Region, state.BindBoth: lease.Both}[spec.Binding(local)]
}

// claimName reports whether an agent is accepted under its name, as regional/nodes does.
func (m *master) claimName(h agentHello) bool {
	view := m.view()
	if m.holders == nil {
		m.holders = map[string]string{}
		for n := range view.Nodes() {
			if n.Status == state.NodeReady {
				m.holders[n.Name] = n.ID
			}
		}
	}
	id := m.holders[h.name]
	if id == "" || id == h.id {
		m.holders[h.name] = h.id
		return true
	}
	c := presence.Claim{Name: h.name, Charged: view.Use(h.id).Allocs, Index: h.index, Contact: presence.New(m.elected), Lease: m.r.nodeLease, Now: m.srv.h.Clock()}
	c.Own, _ = view.Node(h.id)
	c.Holder, _ = view.Node(id)
	if holder := m.nodes[id]; holder != nil {
		c.Contact = holder.contact
	}
	out := c.Outcome()
	if out == presence.Free {
		m.holders[h.name] = h.id
	}
	return out != presence.Taken
}
