package probe

import "time"

// Limits of the plan. The zero value of a field is its default.
type Limits struct {
	// Budget in probes per second over all peers; default 100.
	Budget float64
	// Interval between two probes of a peer in steady state; default 30 s. It
	// grows when the budget binds.
	Interval time.Duration
}
