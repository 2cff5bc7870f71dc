package nodes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// noticedSilence divides the node lease: after half the lease without a message, a
// node with a session is shown as silent. A healthy agent sends at each third.
const noticedSilence = 2

// Watch commits which nodes are lost and which are ready again, until ctx ends.
func (a *Agents) Watch(ctx context.Context) error {
	tick := time.NewTicker(max(a.cfg.NodeLease/8, 20*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := a.updateStatuses(ctx); err != nil {
			return err
		}
		a.dropUnregistered()
	}
}

// updateStatuses commits the status of every node whose committed status is
// outdated.
func (a *Agents) updateStatuses(ctx context.Context) error {
	now := a.cfg.Clock()
	var waiting []*raftlog.Proposal
	for n := range a.cfg.FSM.View().Nodes() {
		status, silent := a.statusOf(n, now)
		if status == n.Status {
			continue
		}
		since := int64(0)
		if status == state.NodeLost {
			since = time.Now().Add(-silent).UnixNano()
			a.cfg.Events.Add("node.lost", n.Name, "silent for %v", silent.Round(time.Millisecond))
			a.cfg.Logger.Warn("node is lost", "node", n.Name, "id", n.ID, "silent", silent.Round(time.Millisecond))
		}
		if status == state.NodeReady {
			a.cfg.Events.Add("node.ready", n.Name, "its agent is connected again")
		}
		p, err := a.cfg.Log.Propose(state.Command{SetNodeStatus: &state.SetNodeStatus{ID: n.ID, Status: status, SinceUnixNano: since}})
		if err != nil {
			if errors.Is(err, raftlog.ErrQueueFull) {
				break // the next round continues
			}
			return err
		}
		waiting = append(waiting, p)
	}
	for _, p := range waiting {
		if _, err := p.Wait(ctx); err != nil && !errors.Is(err, state.ErrUnknownNode) {
			if ctx.Err() != nil {
				return nil // the error only says that ctx ended
			}
			return fmt.Errorf("commit a node's status: %w", err)
		}
	}
	return nil
}

// statusOf returns the status that a node should have now, and how long it has
// been silent.
func (a *Agents) statusOf(n *state.Node, now time.Duration) (state.NodeStatus, time.Duration) {
	if n.Status == state.NodeLeft {
		return n.Status, 0 // the node stays so until its next hello
	}
	known := a.ensure(n.ID)
	known.mu.Lock()
	defer known.mu.Unlock()
	silent := now - known.lastSeen
	switch {
	case known.left:
		return n.Status, silent // its goodbye is being committed
	case n.Status == state.NodeLost && (known.session == nil || known.session.inPhase(resyncing)):
		return n.Status, silent // the node stays so until the reports of its absence are committed
	case known.handling > 0:
		// This server is slow, for example because of the disks of the log: a message of
		// the node waits here.
		return state.NodeReady, 0
	case silent > a.cfg.NodeLease:
		return state.NodeLost, silent
	case known.session != nil:
		return state.NodeReady, silent
	}
	return n.Status, silent
}

// Silence returns how long, at least, a node that should send messages has sent
// none; nil while it sends. The node's committed status shows its silence only
// when its lease has ended.
func (a *Agents) Silence(n *state.Node) *durationpb.Duration {
	if n.Status == state.NodeLeft {
		return nil // the node left on purpose
	}
	lastSeen := a.cfg.Elected // for nodes that have not been seen in this term
	connected := false
	if known := a.find(n.ID); known != nil {
		known.mu.Lock()
		defer known.mu.Unlock()
		if known.handling > 0 {
			return nil // one of the node's messages waits here
		}
		lastSeen, connected = known.lastSeen, known.session != nil
	}
	silent := max(a.cfg.Clock()-lastSeen, 0)
	if n.Status == state.NodeLost { // the node may be lost since an earlier term
		silent = max(silent, time.Since(time.Unix(0, n.StatusUnixNano)))
	} else if connected && silent <= a.cfg.NodeLease/noticedSilence {
		return nil
	}
	return durationpb.New(silent)
}

// dropUnregistered forgets the nodes that are no longer registered and have no
// session.
func (a *Agents) dropUnregistered() {
	view := a.cfg.FSM.View()
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
	for name, id := range a.nameHolders {
		if a.nodes[id] == nil {
			delete(a.nameHolders, name)
		}
	}
}
