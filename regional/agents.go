package regional

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// agents are the nodes as a master holds them: their sessions, orders, and
// when each was last heard.
type agents struct {
	l *leader

	mu    sync.Mutex
	nodes map[string]*agentNode
	// names of nodes, and who goes by them; nil before the first claim.
	names map[string]string

	// turns are the sessions that are to send, each there once.
	turnMu    sync.Mutex
	turns     []*agentSession
	dismissed bool
	wake      chan struct{} // room for one
}

func newAgents(l *leader) *agents {
	return &agents{l: l, nodes: map[string]*agentNode{}, wake: make(chan struct{}, 1)}
}

// node finds or makes what is held of a node. One not heard of yet in this
// leadership counts as heard at its beginning: nobody is lost before one full
// lease after the election.
func (a *agents) node(id string) *agentNode {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.nodeLocked(id)
}

func (a *agents) nodeLocked(id string) *agentNode {
	n := a.nodes[id]
	if n == nil {
		n = &agentNode{id: id, heard: a.l.elected, dirty: true}
		a.nodes[id] = n
	}
	return n
}

// hold finds, locked, what is held of a session's node: what there was when the
// agent said hello may have been forgotten while it was being registered.
func (a *agents) hold(ss *agentSession) *agentNode {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := a.nodes[ss.node.id]; n != nil {
		ss.node = n
	} else {
		a.nodes[ss.node.id] = ss.node
	}
	ss.node.mu.Lock() // before forget can look at it
	return ss.node
}

// known finds what is held of a node; nil if nothing is.
func (a *agents) known(id string) *agentNode {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.nodes[id]
}

// ordered passes new orders on, in the order of the log; all that an entry has
// for a node at once, since it shares a number (link.Outbox.PutAt). The slice is
// given away.
func (a *agents) ordered(orders []*state.Alloc) {
	slices.SortStableFunc(orders, func(a, b *state.Alloc) int { return strings.Compare(a.NodeID, b.NodeID) })
	for len(orders) > 0 {
		id, some := orders[0].NodeID, 1
		for some < len(orders) && orders[some].NodeID == id {
			some++
		}
		if n := a.known(id); n != nil { // else its outbox is filled when it comes
			n.mu.Lock()
			n.order(orders[:some])
			if n.session != nil {
				n.session.poke()
			}
			n.mu.Unlock()
		}
		orders = orders[some:]
	}
}

// changed notes that these nodes need not hold all that they were ordered to.
func (a *agents) changed(ids []string) {
	for _, id := range ids {
		n := a.known(id)
		if n == nil {
			continue // its outbox is filled when it comes
		}
		n.mu.Lock()
		n.dirty = true
		if n.session != nil {
			n.session.poke()
		}
		n.mu.Unlock()
	}
}

// tellServers makes every session send the region's servers again.
func (a *agents) tellServers() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range a.nodes {
		n.mu.Lock()
		if s := n.session; s != nil {
			s.mu.Lock()
			s.servers = true
			s.mu.Unlock()
			s.poke()
		}
		n.mu.Unlock()
	}
}

// statsOf are a node's latest statistics, as old as they are now, but for the
// whole; false if there are none.
func (a *agents) statsOf(id string, now time.Duration) (wire.NodeStats, bool) {
	n := a.known(id)
	if n == nil {
		return wire.NodeStats{}, false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	out := n.stats
	out.Raw, out.Age = nil, now-n.statsAt
	return out, n.measured
}

// wholeStats are a node's latest statistics as people see them, and how old they
// are; nil where there are none, or they were too many to be kept.
func (a *agents) wholeStats(id string, now time.Duration) (*nusav1.NodeStats, *durationpb.Duration) {
	n := a.known(id)
	if n == nil {
		return nil, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.measured {
		return nil, nil
	}
	return n.stats.ToProto(), durationpb.New(now - n.statsAt)
}

// watch commits which nodes are lost, and which are back, until ctx ends.
func (a *agents) watch(ctx context.Context) error {
	tick := time.NewTicker(max(a.l.s.cfg.NodeLease/8, 20*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := a.judge(ctx); err != nil {
			return err
		}
		a.forget()
	}
}

// judge proposes the status of every node whose silence, or whose voice, does
// not fit the committed one.
func (a *agents) judge(ctx context.Context) error {
	now := a.l.s.cfg.Clock()
	var waiting []*raftlog.Proposal
	for n := range a.l.s.fsm.View().Nodes() {
		status, silent := a.status(n, now)
		if status == n.Status {
			continue
		}
		since := int64(0)
		if status == state.NodeLost {
			since = time.Now().Add(-silent).UnixNano()
			a.l.events.Add("node.lost", n.Name, "silent for %v", silent.Round(time.Millisecond))
			a.l.log.Warn("node is lost", "node", n.Name, "id", n.ID, "silent", silent.Round(time.Millisecond))
		}
		if status == state.NodeReady {
			a.l.events.Add("node.ready", n.Name, "it is heard again")
		}
		p, err := a.l.seq.Propose(state.Command{SetNodeStatus: &state.SetNodeStatus{ID: n.ID, Status: status, SinceUnixNano: since}})
		if err != nil {
			if errors.Is(err, raftlog.ErrQueueFull) {
				break // the next round goes on
			}
			return err
		}
		waiting = append(waiting, p)
	}
	for _, p := range waiting {
		if _, err := p.Wait(ctx); err != nil && !errors.Is(err, state.ErrUnknownNode) {
			return ignoreEnd(ctx, fmt.Errorf("commit a node's status: %w", err))
		}
	}
	return nil
}

// status is what a node's should be, and for how long it has been silent.
func (a *agents) status(n *state.Node, now time.Duration) (state.NodeStatus, time.Duration) {
	if n.Status == state.NodeLeft {
		return n.Status, 0 // until its next hello
	}
	held := a.node(n.ID)
	held.mu.Lock()
	defer held.mu.Unlock()
	silent := now - held.heard
	switch {
	case held.left:
		return n.Status, silent // its goodbye is being committed
	case n.Status == state.NodeLost && (held.session == nil || held.session.isUnheard()):
		return n.Status, silent // until it has told what happened meanwhile
	case held.busy > 0:
		// It is we who are slow, such as the disks of the log: what it said
		// since waits to be read.
		return state.NodeReady, 0
	case silent > a.l.s.cfg.NodeLease:
		return state.NodeLost, silent
	case held.session != nil:
		return state.NodeReady, silent
	}
	return n.Status, silent
}

// forget drops what is held of nodes that are no longer registered.
func (a *agents) forget() {
	view := a.l.s.fsm.View()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.nodes) <= view.NodeCount() {
		return
	}
	for id, n := range a.nodes {
		n.mu.Lock()
		if _, registered := view.Node(id); !registered && n.session == nil {
			delete(a.nodes, id)
		}
		n.mu.Unlock()
	}
	for name, id := range a.names {
		if a.nodes[id] == nil {
			delete(a.names, name)
		}
	}
}

// ignoreEnd turns an error into nil when ctx has ended: then it is only an echo
// of that.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
