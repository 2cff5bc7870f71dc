package region

import (
	"cmp"
	"fmt"
	"time"
)

// Config holds the bounds of a region's session.
type Config struct {
	// Lease is how long a granted lease lasts, counted by the holder from
	// sending the request. Must be > 0.
	Lease time.Duration
}

// State is one region's session state in the active global server. Open makes
// one; the zero value is not usable.
type State struct {
	Name string
	// ClusterID binds the name; empty until a cluster connects under the name.
	ClusterID string
	// Incarnation and Term of the latest accepted session, kept after its end.
	Incarnation, Term uint64
	// Fence grows each time the region is declared lost. Orders with an older
	// fence are void.
	Fence uint64
	// Stream is the caller's number of the live stream, 0 = none.
	Stream uint64
	// LastSeen is when the live stream last asked for a lease, or began.
	LastSeen time.Duration
	// LeaseEnd is when the region's lease has certainly ended, even by a clock that
	// runs 1 % slower than this server's.
	LeaseEnd time.Duration
	// DisconnectedAt is when the region's last stream ended, or when this
	// server became active; meaningful while Stream is 0.
	DisconnectedAt time.Duration
}

// Record is the durable part of State.
type Record struct {
	Name              string
	ClusterID         string
	Incarnation, Term uint64
	Fence             uint64
}

// Open starts a region's state on a server that became active at now. Its
// predecessor may have granted a lease just before, so one full lease is
// assumed.
func Open(c Config, r Record, now time.Duration) State {
	return State{
		Name: r.Name, ClusterID: r.ClusterID,
		Incarnation: r.Incarnation, Term: r.Term, Fence: r.Fence,
		LeaseEnd: now + withDrift(c.Lease), DisconnectedAt: now,
	}
}

// withDrift returns how long the grantor has to wait until a lease has certainly
// ended: both clocks may be 1 % off.
func withDrift(lease time.Duration) time.Duration { return lease + lease/50 }

// Record returns the durable part of the state.
func (s State) Record() Record {
	return Record{
		Name: s.Name, ClusterID: s.ClusterID,
		Incarnation: s.Incarnation, Term: s.Term, Fence: s.Fence,
	}
}

// Connected reports whether the region has a live stream.
func (s State) Connected() bool { return s.Stream != 0 }

// DisconnectedFor is how long the region has had no live stream; 0 while it has
// one.
func (s State) DisconnectedFor(now time.Duration) time.Duration {
	if s.Connected() {
		return 0
	}
	return max(0, now-s.DisconnectedAt)
}

// Event is Hello, LeaseRequested, StreamEnded or Tick.
type Event interface{ event() }

// Hello: a stream announces itself as the region.
type Hello struct {
	// Stream is a number chosen by the caller, > 0, never used before.
	Stream            uint64
	ClusterID         string
	Incarnation, Term uint64
	Master            string
	// BoundName is another region name that ClusterID is bound to already;
	// empty = none. The caller looks it up.
	BoundName string
}

// LeaseRequested: the stream's master asks for a lease.
type LeaseRequested struct {
	Stream, ID uint64
}

// StreamEnded: the stream ended, for whatever reason.
type StreamEnded struct {
	Stream uint64
}

// Tick: time has passed.
type Tick struct{}

func (Hello) event()          {}
func (LeaseRequested) event() {}
func (StreamEnded) event()    {}
func (Tick) event()           {}

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
	// End the stream with Message.
	End EffectKind = "end"
	// Grant a lease of Lease as the response to request ID.
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
	ID        uint64
	Lease     time.Duration
}

// String prints the effect in one line.
func (e Effect) String() string {
	switch e.Kind {
	case Persist:
		return fmt.Sprintf("persist %s cluster %s incarnation %d term %d fence %d",
			e.Record.Name, e.Record.ClusterID, e.Record.Incarnation, e.Record.Term, e.Record.Fence)
	case Welcome:
		return fmt.Sprintf("welcome stream %d, lease %s, fence %d", e.Stream, e.Lease, e.Record.Fence)
	case Grant:
		return fmt.Sprintf("grant stream %d request %d %s", e.Stream, e.ID, e.Lease)
	case Refuse:
		if e.Permanent {
			return fmt.Sprintf("refuse stream %d for good: %s", e.Stream, e.Message)
		}
	}
	return fmt.Sprintf("%s stream %d: %s", e.Kind, e.Stream, e.Message)
}

// Step advances the state by one event. Events of streams that are not the live
// one change nothing.
func Step(c Config, s State, now time.Duration, e Event) (State, []Effect) {
	switch e := e.(type) {
	case Hello:
		return s.hello(c, now, e)
	case LeaseRequested:
		if e.Stream != s.Stream || e.Stream == 0 {
			return s, []Effect{{Kind: End, Stream: e.Stream, Message: "another stream speaks for the region"}}
		}
		s.LastSeen = now
		s.LeaseEnd = max(s.LeaseEnd, now+withDrift(c.Lease))
		return s, []Effect{{Kind: Grant, Stream: e.Stream, ID: e.ID, Lease: c.Lease}}
	case StreamEnded:
		if e.Stream != s.Stream || e.Stream == 0 {
			return s, nil
		}
		return s.disconnect(now, "its stream ended")
	case Tick:
		// A live master requests several leases within the length of one. A master that
		// requests none has lost its leadership or its connection.
		if !s.Connected() || now-s.LastSeen <= c.Lease {
			return s, nil
		}
		silent := Effect{Kind: End, Stream: s.Stream, Message: fmt.Sprintf("no lease request for %s", now-s.LastSeen)}
		s, effects := s.disconnect(now, "silent for longer than its lease")
		return s, append([]Effect{silent}, effects...)
	}
	return s, nil
}

func (s State) disconnect(now time.Duration, why string) (State, []Effect) {
	was := s.Stream
	s.Stream, s.DisconnectedAt = 0, now
	return s, []Effect{{Kind: Disconnected, Stream: was, Message: why}}
}

// hello decides whether a stream becomes the region's live stream. It must come
// from the cluster that the name is bound to, and from its latest master. An
// equal (incarnation, term) is the same master that reconnects; the newer
// stream wins.
func (s State) hello(c Config, now time.Duration, h Hello) (State, []Effect) {
	refuse := func(permanent bool, format string, args ...any) (State, []Effect) {
		return s, []Effect{{Kind: Refuse, Stream: h.Stream, Permanent: permanent, Message: fmt.Sprintf(format, args...)}}
	}
	switch {
	case h.ClusterID == "":
		return refuse(true, "region %s: no cluster id was given", s.Name)
	case s.ClusterID != "" && s.ClusterID != h.ClusterID:
		return refuse(true, "region %s belongs to cluster %s, not to %s: choose another name, or remove the region first",
			s.Name, s.ClusterID, h.ClusterID)
	case h.BoundName != "" && h.BoundName != s.Name:
		return refuse(true, "cluster %s is region %s already: a cluster has one name, remove %s first to give it the name %s",
			h.ClusterID, h.BoundName, h.BoundName, s.Name)
	case cmp.Or(cmp.Compare(h.Incarnation, s.Incarnation), cmp.Compare(h.Term, s.Term)) < 0:
		return refuse(false, "region %s: incarnation %d term %d is older than %d, %d: there is a later master",
			s.Name, h.Incarnation, h.Term, s.Incarnation, s.Term)
	}
	before, old := s.Record(), s.Stream
	s.ClusterID, s.Incarnation, s.Term = h.ClusterID, h.Incarnation, h.Term
	s.Stream, s.LastSeen = h.Stream, now
	var effects []Effect
	if s.Record() != before {
		effects = append(effects, Effect{Kind: Persist, Stream: h.Stream, Record: s.Record()})
	}
	if old != 0 {
		effects = append(effects, Effect{Kind: End, Stream: old, Message: fmt.Sprintf(
			"master %s (incarnation %d, term %d) speaks for the region now", h.Master, h.Incarnation, h.Term)})
	}
	return s, append(effects, Effect{Kind: Welcome, Stream: h.Stream, Record: s.Record(), Lease: c.Lease})
}
