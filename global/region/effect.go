package region

import (
	"fmt"
	"time"
)

// EffectKind says what the caller has to do.
type EffectKind string

const (
	// Persist the record before the effects that follow; if that fails, keep
	// the old state and end the stream.
	Persist EffectKind = "persist"
	// Welcome the stream: it is the region's session now.
	Welcome EffectKind = "welcome"
	// Refuse the stream with Message (Permanent: an operator has to act).
	Refuse EffectKind = "refuse"
	// Conflict: the region knows the revision Known or the leadership term KnownTerm,
	// which the store does not have. Store the conflict: nothing is placed, ordered or
	// granted until an operator has recovered the store.
	Conflict EffectKind = "conflict"
	// End the stream with Message.
	End EffectKind = "end"
	// Grant a lease of Lease as the response to request ID. It rests on the orders up
	// to Orders, on the record's fence and incarnation, and on the server's term.
	Grant EffectKind = "grant"
	// Disconnected: the region has no live stream from now on (an event to
	// show).
	Disconnected EffectKind = "disconnected"
)

// Effect is one thing to do. Effects are done in the given order.
type Effect struct {
	Kind      EffectKind
	Stream    uint64
	Record    Record
	Message   string
	Permanent bool
	// OfRegion: the region is refused, and not only this stream at this time.
	OfRegion  bool
	ID        uint64
	Lease     time.Duration
	Orders    uint64
	Known     int64
	KnownTerm uint64
}

// String prints the effect in one line.
func (e Effect) String() string {
	switch e.Kind {
	case Persist:
		return "persist " + e.Record.String()
	case Welcome:
		return fmt.Sprintf("welcome stream %d, lease %s, fence %d", e.Stream, e.Lease, e.Record.Fence)
	case Grant:
		return fmt.Sprintf("grant stream %d request %d %s, incarnation %d, fence %d, orders %d",
			e.Stream, e.ID, e.Lease, e.Record.Incarnation, e.Record.Fence, e.Orders)
	case Conflict:
		return fmt.Sprintf("conflict stream %d: revision %d, term %d", e.Stream, e.Known, e.KnownTerm)
	case Refuse:
		if e.Permanent {
			return fmt.Sprintf("refuse stream %d for good: %s", e.Stream, e.Message)
		}
	}
	return fmt.Sprintf("%s stream %d: %s", e.Kind, e.Stream, e.Message)
}

// String prints the record in one line.
func (r Record) String() string {
	out := fmt.Sprintf("%s cluster %s incarnation %d term %d index %d fence %d",
		r.Name, r.ClusterID, r.Incarnation, r.Term, r.AppliedIndex, r.Fence)
	if r.RestoreID != "" {
		out += " restore " + r.RestoreID
	}
	if r.Lost {
		out += " lost"
	}
	if r.NothingRuns {
		out += " empty"
	}
	return out
}
