// Package sched decides which node runs each instance: a pure function from a
// view of the region's state to a printable plan with reasons.
//
// Every node is considered for every instance, in a deterministic order. The
// same input gives the same plan, and a view in which nothing is to be done
// gives an empty one.
package sched

import (
	"time"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// Funcs evaluate expressions over nodes. The shell compiles and caches them,
// by (node.ID, node.InventoryIndex). An expression that fails counts as false
// and its error becomes the reason's message.
type Funcs struct {
	// Match evaluates a boolean expression of a constraint or affinity.
	Match func(expr string, n *state.Node) (bool, error)
	// Value evaluates a string expression of a spread.
	Value func(expr string, n *state.Node) (string, error)
}

// Input is what a plan is made from.
type Input struct {
	View *state.View
	// NowUnixNano of the master's clock; compared with the times that its
	// commands brought into the state.
	NowUnixNano int64
	// NodeLease is the agents' lease: an instance that must not run twice is
	// replaced only after NodeLease × 1.02 and its kill timeout.
	NodeLease time.Duration
	Funcs     Funcs
	// MaxPlaces is at how many placements no further group is begun; one group may
	// have eight times as many, or an eighth of what it has: they are the cheapest.
	// 0 = 10,000. Plan.More says that there may be more.
	MaxPlaces int
}
