package regional

import (
	"fmt"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// nameTakenError: another agent, with a data directory of its own, goes by that
// name, and is not lost.
type nameTakenError struct {
	name string
	// holder is its node's id, at address; it was heard silent ago.
	holder, address string
	silent, lease   time.Duration
}

func (e *nameTakenError) Error() string {
	return fmt.Sprintf("the name %s is taken by another agent, node %s at %s, heard %s ago: give this one another --name, or stop that one with --leave-on-shutdown; "+
		"if that one is gone for good this one is taken %s after it was last heard, and if this is the same machine start it with the data directory it had",
		e.name, e.holder, e.address, e.silent.Round(time.Millisecond), e.lease)
}

// claim a node's name for a session. A name is free when who has it is lost or
// has left. A node that is registered by the name is not refused beside another
// that has it by now if it is ready, since two of one name may be there from
// before names were held, or is charged for allocations: it was lost, may run
// them yet, and only its session tells it to stop them. Nor is one that was
// forgotten with its allocations and holds some.
func (a *agents) claim(h *nusav1.AgentHello) error {
	view, now := a.l.s.fsm.View(), a.l.s.cfg.Clock()
	own, registered := view.Node(h.GetNodeId())
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.names == nil {
		a.names = map[string]string{}
		for n := range view.Nodes() {
			if n.Status == state.NodeReady {
				a.names[n.Name] = n.ID
			}
		}
	}
	a.nodeLocked(h.GetNodeId()) // else its name would be forgotten
	id := a.names[h.GetName()]
	if id == "" || id == h.GetNodeId() {
		a.names[h.GetName()] = h.GetNodeId()
		return nil
	}
	here := registered && own.Name == h.GetName() && (own.Status == state.NodeReady || view.Use(own.ID).Allocs > 0)
	if here || !registered && h.GetIndex() > 0 {
		a.l.log.Warn("two agents of one name: stop one of them and give it another --name", "node", h.GetName(), "id", h.GetNodeId(), "other", id,
			"allocations", view.Use(h.GetNodeId()).Allocs)
		return nil
	}
	taken := &nameTakenError{name: h.GetName(), holder: id, address: "an address not known yet", lease: a.l.s.cfg.NodeLease}
	free := false
	heard := a.l.elected
	if held := a.nodes[id]; held != nil {
		held.mu.Lock()
		free = held.left
		heard = held.heard
		held.mu.Unlock()
	}
	taken.silent = now - heard
	other, known := view.Node(id)
	switch {
	case known:
		free = free || other.Status != state.NodeReady || other.Name != h.GetName()
		taken.address = other.Address
	default: // it is being registered, or was forgotten
		free = free || taken.silent > taken.lease
	}
	if !free {
		return taken
	}
	a.names[h.GetName()] = h.GetNodeId()
	return nil
}
