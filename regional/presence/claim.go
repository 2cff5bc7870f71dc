package presence

import (
	"time"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// Claim is the claim of an agent to a node name that another node holds.
type Claim struct {
	Name string
	// Own is the agent's node, nil if the log does not have the node. Charged is how many
	// allocations that node is charged for. Index is the greatest index of an order that
	// the agent has.
	Own     *state.Node
	Charged int32
	Index   uint64
	// Holder is the node that holds the name, nil if the log does not have that node.
	// Contact is the master's contact with the holder.
	Holder  *state.Node
	Contact Node
	// Lease is the length of a node's lease. Now is the present time.
	Lease, Now time.Duration
}

// Outcome is the result of a Claim.
type Outcome uint8

const (
	// Taken: the agent is refused.
	Taken Outcome = iota
	// Free: the agent's node becomes the holder of the name.
	Free
	// Shared: the agent is accepted although another node holds the name.
	Shared
)

// Outcome returns whether the agent is accepted. A name is free when its holder is lost or
// has left.
//
// In three cases the agent is accepted although another node holds the name:
//   - The node is registered under the name and is ready. Two nodes of one name may remain from
//     versions in which names had no holder.
//   - The node is registered under the name and is charged for allocations. It was lost and may
//     still run them. Only its session can order it to stop them.
//   - The node was forgotten together with its allocations, but it still has orders.
func (c Claim) Outcome() Outcome {
	if c.Own != nil && c.Own.Name == c.Name && (c.Own.Status == state.NodeReady || c.Charged > 0) || c.Own == nil && c.Index > 0 {
		return Shared
	}
	free := c.Contact.HasLeft()
	if c.Holder != nil {
		free = free || c.Holder.Status != state.NodeReady || c.Holder.Name != c.Name
	} else { // the holder is being registered now, or was forgotten
		free = free || c.Contact.SilentFor(c.Lease, c.Now)
	}
	if free {
		return Free
	}
	return Taken
}
