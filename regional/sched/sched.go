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
	// MaxPlaces bounds a plan; 0 = 10,000. Plan.More says that it was reached.
	MaxPlaces int
}

// Place puts one instance on a node.
type Place struct {
	Key        state.GroupKey
	JobVersion int64
	Index      int32
	NodeID     string
	NodeName   string
	Epoch      int64 // that the allocation will get
	Resources  state.Resources
	Ports      []state.PortGrant
	GPUs       []state.GPUGrant
	Why        string // one line
	Score      float64
	Terms      []Term
}

// Stop ends one allocation.
type Stop struct {
	AllocID  string
	Key      state.GroupKey
	Index    int32
	NodeName string
	Reason   state.Reason
	Message  string
	GiveUp   bool // its node is lost: it becomes lost at once
}

// Range is From ≤ i < To.
type Range struct{ From, To int32 }

// Unplaced are instances that fit no node now.
type Unplaced struct {
	Key        state.GroupKey
	JobVersion int64
	Generation int64
	Ranges     []Range // within one slot, ascending
	// Reason is the one that stands against most nodes, no_nodes or
	// no_fitting_node.
	Reason  state.Reason
	Message string
	// Counts over nodes, most frequent first.
	Counts []state.Count
	// Never says that no node of the region fits even when it is empty.
	Never bool
}

// Waiting are instances that are due later.
type Waiting struct {
	Key    state.GroupKey
	Ranges []Range
	Reason state.Reason // backoff or node_lost
	// UntilUnixNano is the earliest of them.
	UntilUnixNano int64
}

// Plan is a value: printed, checked, turned into commands. Execution makes no
// choices.
type Plan struct {
	Stops    []Stop
	Places   []Place
	Unplaced []Unplaced
	Waiting  []Waiting
	// Wake is how long after NowUnixNano something is due; 0 = nothing is.
	Wake time.Duration
	// More says that MaxPlaces was reached: plan again at once.
	More bool
}

// Empty says that the plan changes nothing.
func (p *Plan) Empty() bool { return len(p.Stops) == 0 && len(p.Places) == 0 }

// String prints the plan, a line for each entry.
func (p *Plan) String() string { panic("todo") }

// Commands turns the plan into log commands of at most perCommand (≥ 1)
// entries each. newID makes a UUID for each allocation, in the plan's order.
func (p *Plan) Commands(newID func() string, perCommand int) []state.ApplyPlan { panic("todo") }

// Make makes the plan.
func Make(in Input) *Plan { panic("todo") }

// Check says whether a plan over-commits a node, doubles an instance or breaks
// a filter. It shares no code with Make.
func Check(in Input, p *Plan) error { panic("todo") }

// Term is one part of a score; the score is their sum.
type Term struct {
	Name   string
	Value  float64
	Detail string
}

// Verdict says how a node fares for one more instance of a group.
type Verdict struct {
	NodeID   string
	NodeName string
	Taken    int32        // live instances of the group there
	Reason   state.Reason // empty: it would do
	Message  string       // figures: "needs 500m, 300m free"
	Score    float64
	Terms    []Term
}

// Explain answers for every node, best first, the refused ones after them.
func Explain(in Input, key state.GroupKey) []Verdict { panic("todo") }

// ExplainAsk is Explain for a job that is not stored: a dry run.
func ExplainAsk(in Input, job *state.Job, group string) []Verdict { panic("todo") }

// FitCount is how many instances of an ask fit now, at most max.
func FitCount(in Input, ask *state.Ask, max int) int { panic("todo") }

// Bin is a group of nodes with about the same free vector.
type Bin struct {
	Nodes int32
	Pool  string
	Free  state.Resources // a lower bound of each
}

// Bins is the histogram of the eligible nodes' free vectors: at most max bins.
func Bins(view *state.View, max int) []Bin { panic("todo") }

// Totals sums the region up for its report.
type Totals struct {
	Ready, Lost, Draining, Cordoned int32           // nodes
	Capacity                        state.Resources // of ready nodes
	Free                            state.Resources // of nodes that take work
}

// Sum sums the region's nodes up.
func Sum(view *state.View) Totals { panic("todo") }
