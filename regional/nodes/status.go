package nodes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/wait"
	"github.com/nusa-scheduler/nusa/regional/presence"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// Watch commits which nodes are lost and which are ready again, until ctx ends.
func (a *Agents) Watch(ctx context.Context) error {
	for range wait.Ticks(ctx, max(a.cfg.NodeLease/8, 20*time.Millisecond)) {
		a.LogSuspect() // earlier leases may have ended by now
		if err := a.updateStatuses(ctx); err != nil {
			return err
		}
		a.dropUnregistered()
	}
	return nil
}

// updateStatuses commits the status of every node whose committed status is outdated.
func (a *Agents) updateStatuses(ctx context.Context) error {
	now := a.cfg.Clock()
	var waiting []*raftlog.Proposal
	for n := range a.cfg.FSM.View().Nodes() {
		p, err := a.proposeStatus(n, now)
		if errors.Is(err, raftlog.ErrQueueFull) {
			break // the next round continues
		}
		if err != nil {
			return err
		}
		if p != nil {
			waiting = append(waiting, p)
		}
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

// proposeStatus proposes the status of a node if the node should have another status. If
// not, the proposal is nil. A lease request of the node is handled either before the
// decision, which then includes it, or after the proposal: see presence.Node.Grant.
func (a *Agents) proposeStatus(n *state.Node, now time.Duration) (*raftlog.Proposal, error) {
	if n.Status == state.NodeLeft {
		return nil, nil // the node stays left until its next hello
	}
	known := a.ensure(n.ID)
	known.mu.Lock()
	defer known.mu.Unlock()
	status, silent := known.contact.Status(n.Status, known.sessionState(), a.cfg.NodeLease, now)
	if status == n.Status {
		return nil, nil
	}
	since := int64(0)
	if status == state.NodeLost {
		since = time.Now().Add(-silent).UnixNano()
	}
	p, err := a.cfg.Log.Propose(state.Command{SetNodeStatus: &state.SetNodeStatus{ID: n.ID, Status: status, SinceUnixNano: since}})
	if err != nil {
		return nil, err
	}
	if status == state.NodeLost {
		a.cfg.Logger.Warn("node is lost", "node", n.Name, "id", n.ID, "silent", silent.Round(time.Millisecond))
	}
	return p, nil
}

// Silence returns how long a node that should send messages has at least sent none. It
// returns nil while the node is not silent. The node's committed status shows the silence
// only after the node's lease has ended.
func (a *Agents) Silence(n *state.Node) *durationpb.Duration {
	contact, with := presence.New(a.cfg.Elected), presence.None
	if known := a.find(n.ID); known != nil {
		known.mu.Lock()
		contact, with = known.contact, known.sessionState()
		known.mu.Unlock()
	}
	silent, is := contact.Silence(n.Status, with, a.cfg.NodeLease, time.Since(time.Unix(0, n.StatusUnixNano)), a.cfg.Clock())
	if !is {
		return nil
	}
	return durationpb.New(silent)
}

// Absences returns a function that returns how long a node of the view has been absent at
// the time of this call. The function returns the same value for a node each time. It is
// not safe for concurrent use.
func (a *Agents) Absences(view *state.View) func(nodeID string) presence.Absence {
	now := a.cfg.Clock()
	var answered map[string]presence.Absence // made when first needed: usually no node is lost
	return func(id string) presence.Absence {
		if absent, again := answered[id]; again {
			return absent
		}
		contact := presence.New(a.cfg.Elected)
		if known := a.find(id); known != nil {
			known.mu.Lock()
			contact = known.contact
			known.mu.Unlock()
		}
		stored := state.NodeLost
		if n, ok := view.Node(id); ok {
			stored = n.Status
		}
		if answered == nil {
			answered = map[string]presence.Absence{}
		}
		answered[id] = contact.Absence(stored, now)
		return answered[id]
	}
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
			a.ordered = max(a.ordered, n.newest) // the node's agent may come back with the order newest
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
