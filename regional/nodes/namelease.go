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

// claimName gives a node name to the agent of a hello, as presence.Claim decides.
func (a *Agents) claimName(h *nusav1.AgentHello) error {
	view, now := a.cfg.FSM.View(), a.cfg.Clock()
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
	c := presence.Claim{
		Name: h.GetName(), Charged: view.Use(h.GetNodeId()).Allocs, Index: h.GetIndex(),
		Contact: presence.New(a.cfg.Elected), Lease: a.cfg.NodeLease, Now: now,
	}
	c.Own, _ = view.Node(h.GetNodeId())
	c.Holder, _ = view.Node(id)
	if holder := a.nodes[id]; holder != nil {
		holder.mu.Lock()
		c.Contact = holder.contact
		holder.mu.Unlock()
	}
	switch c.Outcome() {
	case presence.Shared:
		a.cfg.Logger.Warn("two agents of one name: stop one of them and give it another --name", "node", h.GetName(), "id", h.GetNodeId(), "other", id,
			"allocations", c.Charged)
		return nil
	case presence.Taken:
		taken := &nameTakenError{name: h.GetName(), holder: id, address: "an address not known yet", lease: c.Lease, silent: now - c.Contact.Seen()}
		if c.Holder != nil {
			taken.address = c.Holder.Address
		}
		return taken
	}
	a.nameHolders[h.GetName()] = h.GetNodeId()
	return nil
}
