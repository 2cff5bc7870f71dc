package nodes

import (
	"fmt"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/presence"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// nameTakenError says that another agent, with another data directory, holds the name, and
// that its node is not lost.
type nameTakenError struct {
	name string
	// holder is the other node's id, and address its address. silent is the time since the
	// last message of that node.
	holder, address string
	silent, lease   time.Duration
}

func (e *nameTakenError) Error() string {
	return fmt.Sprintf("the name %s is taken by another agent, node %s at %s, last seen %s ago: give this agent another --name, or stop the other agent with --leave-on-shutdown; "+
		"if the other agent is gone for good, this agent is accepted %s after the other was last seen; if both are the same machine, start the agent with its earlier data directory",
		e.name, e.holder, e.address, e.silent.Round(time.Millisecond), e.lease)
}

// claimName gives a node name to the agent of a hello. A name is free when its holder is
// lost or has left.
//
// In three cases claimName accepts an agent although another agent holds the name:
//   - The node is registered under the name and is ready. Two nodes of one name may remain from
//     versions in which names had no holder.
//   - The node is registered under the name and is charged for allocations. It was lost and may
//     still run them. Only its session can order it to stop them.
//   - The node was forgotten together with its allocations, but it still has orders.
func (a *Agents) claimName(h *nusav1.AgentHello) error {
	view, now := a.cfg.FSM.View(), a.cfg.Clock()
	own, registered := view.Node(h.GetNodeId())
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.nameHolders == nil {
		a.nameHolders = map[string]string{}
		for n := range view.Nodes() {
			if n.Status == state.NodeReady {
				a.nameHolders[n.Name] = n.ID
			}
		}
	}
	a.ensureLocked(h.GetNodeId()) // without the node, dropUnregistered would release the name
	id := a.nameHolders[h.GetName()]
	if id == "" || id == h.GetNodeId() {
		a.nameHolders[h.GetName()] = h.GetNodeId()
		return nil
	}
	needed := registered && own.Name == h.GetName() && (own.Status == state.NodeReady || view.Use(own.ID).Allocs > 0)
	if needed || !registered && h.GetIndex() > 0 {
		a.cfg.Logger.Warn("two agents of one name: stop one of them and give it another --name", "node", h.GetName(), "id", h.GetNodeId(), "other", id,
			"allocations", view.Use(h.GetNodeId()).Allocs)
		return nil
	}
	taken := &nameTakenError{name: h.GetName(), holder: id, address: "an address not known yet", lease: a.cfg.NodeLease}
	contact := presence.New(a.cfg.Elected)
	if holder := a.nodes[id]; holder != nil {
		holder.mu.Lock()
		contact = holder.contact
		holder.mu.Unlock()
	}
	free := contact.HasLeft()
	taken.silent = now - contact.Seen()
	holder, known := view.Node(id)
	switch {
	case known:
		free = free || holder.Status != state.NodeReady || holder.Name != h.GetName()
		taken.address = holder.Address
	default: // the holder is being registered now, or was forgotten
		free = free || contact.SilentFor(taken.lease, now)
	}
	if !free {
		return taken
	}
	a.nameHolders[h.GetName()] = h.GetNodeId()
	return nil
}
