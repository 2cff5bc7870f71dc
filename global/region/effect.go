package region

import (
	"fmt"
	"time"
)

// EffectKind says what the caller has to do.
type EffectKind string

const (
	// Persist the record before the effects that follow. If the write fails, keep the old state and
	// end the stream.
	Persist EffectKind = "persist"
	// Welcome the stream, which is the region's session from now on.
	Welcome EffectKind = "welcome"
	// Refuse the stream with Message. Permanent: an operator has to act.
	Refuse EffectKind = "refuse"
	// Conflict: the region knows the revision Known or the leadership term KnownTerm, which the
	// store does not have. The caller stores the conflict. Then nothing is placed, ordered or
	// granted until an operator has recovered the store.
	Conflict EffectKind = "conflict"
	// End the stream with Message.
	End EffectKind = "end"
	// Grant a lease of length Lease as the response to request ID. The lease rests on the orders up
	// to Orders, on the record's fence and incarnation, and on the server's term.
	Grant EffectKind = "grant"
	// Disconnected: the region has no live stream from now on. The caller shows an event.
	Disconnected EffectKind = "disconnected"
)

// Effect is one thing that the caller has to do. The caller handles effects in the given order.
type Effect struct {
	Kind      EffectKind
	Stream    uint64
	Record    Record
	Message   string
	Permanent bool
	// OfRegion: any stream of the region would be refused, not only this one.
	OfRegion bool
	// OtherCluster: the hello came from another cluster than the one that has the region's name.
	OtherCluster bool
	ID           uint64
	Lease        time.Duration
	Orders       uint64
	Known        int64
	KnownTerm    uint64
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
