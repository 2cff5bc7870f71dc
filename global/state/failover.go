package state

import "time"

// Failover says what is going to happen to the slots of a region that is silent or lost.
// The failover loop of the term replaces it about once a second; nil while the region is
// connected.
type Failover struct {
	SlotFailover
	// Slots by Slot.Key.
	Slots map[string]SlotFailover
}

// SlotFailover says when a slot may move to another region; for a region, when the first
// of its slots may.
type SlotFailover struct {
	// Moves: it moves at Due, on State.Clock, unless the region returns before or no other
	// region has room.
	Moves bool
	Due   time.Duration
	// Message says in one line what happens, or why nothing does: "would move unless
	// jakarta returns", "stays: disconnect.region.replace is false".
	Message string
}
