package region

import "time"

// Config are the bounds of a region's session.
type Config struct {
	// Lease is what a grant is worth to its holder, counted from sending the
	// request. Must be > 0.
	Lease time.Duration
}

// State is one region's life, as the active global server keeps it. The zero
// value is of no use: see Open.
type State struct {
	Name string
	// ClusterID binds the name; empty until a region presents itself.
	ClusterID string
	// Incarnation and Term of the latest accepted session, kept after its end.
	Incarnation, Term uint64
	// Fence grows with every verdict; orders with an older one are void.
	Fence uint64
	// Stream is the shell's number of the live stream, 0 = none.
	Stream uint64
	// Heard is when the live stream last asked for a lease, or began.
	Heard time.Duration
	// LeaseEnd is when the region's lease is surely over, also by a clock that
	// runs 1 % slower than ours.
	LeaseEnd time.Duration
	// Left is when the region's last stream ended, or when this server began;
	// meaningful while Stream is 0.
	Left time.Duration
}

// Record is the durable part of State.
type Record struct {
	Name              string
	ClusterID         string
	Incarnation, Term uint64
	Fence             uint64
}

// Open starts a region's life on a server that became active at now. A
// predecessor may have granted a lease an instant ago, so one full lease is
// assumed.
func Open(c Config, r Record, now time.Duration) State { return State{} }

// Connected says whether a live stream speaks for the region.
func (s State) Connected() bool { return s.Stream != 0 }

// DisconnectedFor is how long no stream has spoken for the region; 0 while
// one does.
func (s State) DisconnectedFor(now time.Duration) time.Duration { return 0 }

// Event is Hello, LeaseRequested, StreamEnded or Tick.
type Event interface{ event() }

// Hello: a stream presents itself as the region.
type Hello struct {
	// Stream is a number of the shell's choice, > 0, never used before.
	Stream            uint64
	ClusterID         string
	Incarnation, Term uint64
	Master            string
	// BoundName is the other region name that ClusterID is bound to already;
	// empty = none. The shell looks it up.
	BoundName string
}

// LeaseRequested: the stream's master asks for a lease.
type LeaseRequested struct {
	Stream, ID uint64
}

// StreamEnded: the stream is gone, for whatever reason.
type StreamEnded struct {
	Stream uint64
}

// Tick: time has passed.
type Tick struct{}

func (Hello) event()          {}
func (LeaseRequested) event() {}
func (StreamEnded) event()    {}
func (Tick) event()           {}

// EffectKind says what the shell has to do.
type EffectKind string

const (
	// Persist the record before the effects behind it; if that fails, keep the
	// old state and end the stream.
	Persist EffectKind = "persist"
	// Welcome the stream: it is the region's session now.
	Welcome EffectKind = "welcome"
	// Refuse the stream with Message (Permanent: an operator has to act).
	Refuse EffectKind = "refuse"
	// End the stream with Message.
	End EffectKind = "end"
	// Grant a lease of Lease in answer to request ID.
	Grant EffectKind = "grant"
	// Disconnected: nobody speaks for the region from now on (an event to show).
	Disconnected EffectKind = "disconnected"
)

// Effect is one thing to do, in the given order.
type Effect struct {
	Kind      EffectKind
	Stream    uint64
	Record    Record
	Message   string
	Permanent bool
	ID        uint64
	Lease     time.Duration
}

// Step is the whole life: one event at one time. Events of streams that are
// not the live one change nothing.
func Step(c Config, s State, now time.Duration, e Event) (State, []Effect) { return s, nil }
