package region

import (
	"fmt"
	"time"

	"github.com/nusa-scheduler/nusa/internal/lease"
	"github.com/nusa-scheduler/nusa/internal/plant"
)

// Config is what a step depends on besides the region's state. It may change from one
// step to the next.
type Config struct {
	// Lease is the length of a granted lease, which the holder counts from sending the request. It
	// must be above 0.
	Lease time.Duration
	// LeaseMax is the greatest length of a lease that a predecessor may have granted.
	// It was stored before the first such grant. 0 = Lease.
	LeaseMax time.Duration
	// PredecessorUntil is the time until which a predecessor may have granted leases.
	PredecessorUntil time.Duration
	// ActiveUntil is the earliest time at which another server may become active. From then on this
	// server welcomes no stream and grants no lease.
	ActiveUntil time.Duration
	// Federation is the id of the federation.
	Federation string
	// Term is the term of this server as the active one.
	Term Term
	// Revision is the store's revision. If a region knows a greater one, the store was restored
	// from an old copy.
	Revision int64
	// Terms are the beginnings of the latest terms. The last one belongs to Term.
	Terms []Beginning
	// ServesFrom and GrantsFrom are set after a recovery of the store; 0: the store was not
	// recovered.
	//
	// Before ServesFrom no stream is welcomed, because a lease from before the recovery may last: a
	// region that holds it would start what the recovered store orders. Before GrantsFrom no lease
	// is granted, because an instance that such a lease bound may still run.
	ServesFrom, GrantsFrom time.Duration
	// Unconfirmed: some region has not Confirmed since a recovery of the store. It may run a
	// version that no lease stops, of an index that the store gives to another region. So no lease
	// is granted.
	Unconfirmed bool
	// Conflict: the store was restored from an old copy, and no operator has recovered it yet. No
	// stream is welcomed, and no lease is granted.
	Conflict bool
	// LogUnknown: the store has not reported the length of its log in this term, although an earlier
	// term has stored it. So the store may be an old copy. No stream is welcomed, nothing is
	// ordered, and no lease is granted.
	LogUnknown bool
}

// Serving reports whether this server may welcome streams, send orders and grant leases.
func (c Config) Serving(now time.Duration) bool {
	return (now < c.ActiveUntil || plant.Is(plant.DeposedServes)) && !c.Conflict && !c.LogUnknown && now >= c.ServesFrom
}

// AfterRecovery returns the configuration after a recovery of the store. stop is the longest stop
// time (from the stop signal to the kill) of the instances that leases bind.
func (c Config) AfterRecovery(stop time.Duration) Config {
	c.ServesFrom, c.GrantsFrom = c.predecessorsEnd(0), c.predecessorsEnd(stop)
	return c
}

// PredecessorsOver reports whether every lease that a predecessor may have granted is over.
func (c Config) PredecessorsOver(now time.Duration) bool {
	return now >= c.predecessorsEnd(0)
}

// predecessorsEnd returns when all instances have ended that a predecessor's lease bound. stop is
// their longest stop time.
func (c Config) predecessorsEnd(stop time.Duration) time.Duration {
	return c.PredecessorUntil + lease.Over(c.longest(), stop)
}

func (c Config) longest() time.Duration {
	if plant.Is(plant.LeaseForgotten) {
		return c.Lease
	}
	return max(c.Lease, c.LeaseMax)
}

// Term identifies the term of an active global server. Number grows with each election. Two terms
// with the same number and different nonces come from different histories of the store.
type Term struct {
	Number uint64
	Nonce  string
}

// State is one region's session state in the active global server. Open makes a State; the zero
// value is not usable.
type State struct {
	Record
	// Stream is the number of the live stream, which the caller chose; 0: the region has none.
	Stream uint64
	// LastSeen is when the region's last message arrived. Without a message, it is when this server
	// became active. Messages that show that nothing arrives at the region do not count: requests
	// while grants are missing, and a hello after a session in which nothing followed the welcome.
	LastSeen time.Duration
	// Met: the region has said hello to this server, so LastSeen is the time of a message.
	Met bool
	// CommitBlocked is how long the region could not commit to its log, at its last request; 0: it
	// can commit.
	CommitBlocked time.Duration

	// welcomedAt is when the session began. answered: a message followed the latest welcome, so
	// messages arrive at the region.
	welcomedAt time.Duration
	answered   bool
	// healthySince is when the region's present time without a break began. See ConnectedFor.
	healthySince time.Duration
	// grantedAt and granted are the time and the length of the grant whose lease ends last. At
	// first they describe a predecessor's grant.
	grantedAt, granted time.Duration
	// welcomed is the store's revision at the session's welcome. known is the greatest revision
	// that the region's log of this incarnation certainly has: once the region has sent anything
	// but requests for its lease, the log has the content of the welcome.
	welcomed, known int64
	// index is the greatest index of the log that a message named. bound: a hello named this
	// federation, so the log has revisions of this store.
	index uint64
	bound bool
	// knownBy is the log that known, index and bound belong to. The stored record may name the
	// next log already, because the record is written before the welcome.
	knownBy logID
	// required is the position of the orders at the welcome. acked is the position that the log
	// knownBy has. No lease is granted while acked < required.
	required, acked uint64
	// ordered: the region has reported in this session that it runs nothing without an order.
	ordered bool
	// sent is the id of the session's last grant. confirmed is the id of the last grant that the
	// region has confirmed. While they differ, missingSince is when the first unconfirmed grant was
	// sent.
	sent, confirmed uint64
	missingSince    time.Duration
}

// Record is the durable part of State.
type Record struct {
	Name string
	// ClusterID is the cluster that owns the name. It is empty until a cluster connects under the
	// name.
	ClusterID string
	// Incarnation and Term describe the latest accepted session: the incarnation of the region's
	// log, and the Raft term of the master. AppliedIndex is the greatest index of the log that a
	// hello of this incarnation has named.
	Incarnation, Term, AppliedIndex uint64
	// RestoreID is the id of the restore that began the incarnation. Empty: no restore began it.
	RestoreID string
	// Fence grows each time the region is declared lost. Leases with a lower fence are void.
	Fence uint64
	// Level is the feature level of the latest hello. From level 1 on a region confirms
	// the grants that it received.
	Level uint32
	// Lost: the region was declared lost and has not connected since. NothingRuns: an operator
	// stated that nothing runs in the region any more, so another cluster may take the name.
	Lost, NothingRuns bool
}

// Open returns a region's state on a server that became active at now.
func Open(c Config, r Record, now time.Duration) State {
	return State{
		Record: r, LastSeen: now, answered: true,
		grantedAt: max(now, c.PredecessorUntil), granted: c.longest(),
	}
}

// Connected reports whether the region has a live stream.
func (s State) Connected() bool { return s.Stream != 0 }

// SilentFor returns how long the region has sent nothing, or only messages that show that its
// grants do not arrive. A connected region sends at least one message in each third of its lease.
func (s State) SilentFor(now time.Duration) time.Duration { return max(0, now-s.LastSeen) }

// BoundUntil returns when everything that the region's lease binds has certainly ended. stop is the
// longest time between the stop signal and the kill.
func (s State) BoundUntil(stop time.Duration) time.Duration {
	return s.grantedAt + lease.Over(s.granted, stop)
}

// Confirmed reports whether the region has shown in this session that it runs nothing without
// an order of the store. A region of an earlier version cannot show that.
func (s State) Confirmed() bool {
	return s.Connected() && !s.Lost && s.acked >= s.required && s.ordered
}

// Behind reports whether the region was lost before, and its log may still lack the orders of its
// welcome. These orders name what the region has lost. A new offer of such an index would take the
// place of the order to give the index up, and an attempt from before the loss would start again.
func (s State) Behind() bool {
	return s.Connected() && s.Fence > 0 && s.acked < s.required
}

// grantsMissing reports whether grants have not arrived for half a lease.
func (s *State) grantsMissing(c *Config, now time.Duration) bool {
	return s.Level > 0 && s.confirmed != s.sent && now-s.missingSince > c.Lease/2
}

// Event is one of the types below.
type Event interface{ event() }

// Hello: a stream announces itself as the region.
type Hello struct {
	// Stream is a number chosen by the caller, > 0, never used before.
	Stream                                 uint64
	ClusterID                              string
	Incarnation, Term, AppliedIndex, Fence uint64
	Level                                  uint32
	RestoreID                              string
	Master                                 string
	// BoundName is another region name to which ClusterID is bound already. The caller looks it up.
	// Empty: none.
	BoundName string
	// Federation is the federation that the region's log is bound to. Empty: none yet.
	Federation string
	// KnownTerm and KnownRevision are the greatest term and revision in the region's log.
	KnownTerm     Term
	KnownRevision int64
	// Acked is the position of the orders that the region has, in this server's numbering; 0: the
	// region has another numbering. Required is the position of the orders now, above 0.
	Acked, Required uint64
}

// logID names a region's log between two restores.
type logID struct {
	cluster     string
	incarnation uint64
}

func (h Hello) log() logID { return logID{h.ClusterID, h.Incarnation} }

// Received: a message arrived on the stream that no other event describes.
type Received struct{ Stream uint64 }

// OrdersAcked: the region's log has the orders up to a position of this server's
// numbering.
type OrdersAcked struct {
	Stream, Position uint64
	// Index is the index of the region's log that the master has applied; 0: unknown.
	Index uint64
}

// LeaseRequested: the stream's master asks for a lease.
type LeaseRequested struct {
	Stream, ID uint64
	// Granted is the id of the latest grant that the region received in this session.
	Granted uint64
	// CommitBlocked is as in State.
	CommitBlocked time.Duration
	// Orders is the position of the orders now. The grant relies on these orders.
	Orders uint64
	// Index is as in OrdersAcked.
	Index uint64
	// Ordered: the region runs nothing without an order, as far as its log has the orders.
	Ordered bool
}

// StreamEnded: the stream ended, for any reason.
type StreamEnded struct{ Stream uint64 }

// Tick: time has passed.
type Tick struct{}

// Resumed: this server is certain again that it is the active one. It may have been cut off or
// suspended itself, so the silence of the region counts from now on.
type Resumed struct{}

// Stored: the region's record is stored now.
type Stored struct{ Record Record }

// Declare: the region is lost. The caller has decided it (package failover), or an operator has
// stated it.
type Declare struct {
	Why string
	// NothingRuns is as in Record.
	NothingRuns bool
}

func (Hello) event()          {}
func (Received) event()       {}
func (OrdersAcked) event()    {}
func (LeaseRequested) event() {}
func (StreamEnded) event()    {}
func (Tick) event()           {}
func (Resumed) event()        {}
func (Stored) event()         {}
func (Declare) event()        {}

// ConfirmLevel is the feature level from which on a region can confirm what it runs. Below this
// level its log does not show which instances on lost nodes the end of a lease has stopped.
const ConfirmLevel = 2

// Step advances the state by one event. Events of a stream that is not the live one change nothing.
func Step(c Config, s State, now time.Duration, e Event) (State, []Effect) {
	effects := s.Advance(&c, now, e)
	return s, effects
}

// Advance is Step in place. Each message of a region is a step, and copies of a State take more time than the rest.
func (s *State) Advance(c *Config, now time.Duration, e Event) []Effect {
	switch e := e.(type) {
	case Hello:
		return s.hello(c, now, &e)
	case LeaseRequested:
		granted, effects := s.Request(c, now, &e)
		if granted {
			effects = append(effects, Effect{Kind: Grant, Stream: e.Stream, ID: e.ID, Lease: c.Lease, Orders: e.Orders, Record: s.Record})
		}
		return effects
	case OrdersAcked:
		if s.live(e.Stream) {
			s.acked, s.index = max(s.acked, e.Position), max(s.index, e.Index)
		}
		s.joined(e.Stream)
		return s.received(c, now, e.Stream)
	case Received:
		s.joined(e.Stream)
		return s.received(c, now, e.Stream)
	case StreamEnded:
		if s.live(e.Stream) {
			return s.disconnect("its stream ended")
		}
	case Stored:
		return s.stored(now, &e.Record)
	case Declare:
		return s.declare(e)
	case Resumed:
		s.seen(c, now)
	case Tick:
		return s.tick(c, now)
	}
	return nil
}

// ConnectedFor returns how long the region has been connected without a break. It returns 0 without
// a session, and while the region is lost. There is a break when the region counts as cut off, when
// it is lost, and when it returns with another log. A shorter reconnect is no break.
func (s State) ConnectedFor(now time.Duration) time.Duration {
	if !s.Connected() || s.Lost {
		return 0
	}
	return max(0, now-s.healthySince)
}

// brokenBy reports whether the change to the next record is a break of the connection: the region
// returns after a loss, or its log is another one. The next record is stored before the hello
// counts.
func (r Record) brokenBy(next Record) bool {
	return r.Lost && !next.Lost || r.ClusterID != next.ClusterID || r.Incarnation != next.Incarnation
}

// seen notes a sign of life. After a silence, healthySince begins again.
func (s *State) seen(c *Config, now time.Duration) {
	if _, cut := cutOff(c, s, now); cut {
		s.healthySince = now
	}
	s.LastSeen = max(s.LastSeen, now)
}

func (s *State) live(stream uint64) bool { return stream != 0 && stream == s.Stream }

// joined notes that the region's log has what the welcome of the live stream said.
func (s *State) joined(stream uint64) {
	if s.live(stream) && s.Level > 0 {
		s.known = max(s.known, s.welcomed)
	}
}

// received handles a message. If a region was lost and its hello did not count, the stream ends and
// the region has to say hello again, because only a hello ends the loss.
func (s *State) received(c *Config, now time.Duration, stream uint64) []Effect {
	if !s.live(stream) {
		return nil
	}
	s.answered = true
	if !s.grantsMissing(c, now) {
		s.seen(c, now)
	}
	if s.Lost {
		return s.end("the region was declared lost, and is connected again", "its session begins again")
	}
	return nil
}

// end ends the live stream.
func (s *State) end(message, why string) []Effect {
	end := Effect{Kind: End, Stream: s.Stream, Message: message}
	return append([]Effect{end}, s.disconnect(why)...)
}

// shown is the precision of durations in messages.
const shown = 100 * time.Millisecond

// tick ends a session after a silence of one lease. A live master requests several leases in that
// time. A master that requests none, or does not get the grants, has lost its leadership or its
// connection.
func (s *State) tick(c *Config, now time.Duration) []Effect {
	silent := now - max(s.LastSeen, s.welcomedAt)
	if !s.Connected() || silent <= c.Lease {
		return nil
	}
	message := fmt.Sprintf("no message for %s", silent.Round(shown))
	if s.grantsMissing(c, now) {
		message = fmt.Sprintf("leases that were granted %s ago have not arrived", (now - s.missingSince).Round(shown))
	}
	return s.end(message, "silent for longer than its lease")
}

// Request is Advance for LeaseRequested without the effect Grant, which takes memory: granted says that the caller
// grants a lease of length Config.Lease. A lease is granted if the region has acknowledged the orders of its welcome,
// and grants arrive at the region.
func (s *State) Request(c *Config, now time.Duration, e *LeaseRequested) (granted bool, effects []Effect) {
	if !s.live(e.Stream) {
		return false, []Effect{{Kind: End, Stream: e.Stream, Message: "another stream speaks for the region"}}
	}
	s.index = max(s.index, e.Index)
	s.ordered = s.ordered || e.Ordered && s.acked >= s.required && s.Level >= ConfirmLevel
	if e.Granted > s.confirmed && e.Granted <= s.sent {
		s.confirmed, s.missingSince = e.Granted, now
	}
	s.CommitBlocked = e.CommitBlocked
	effects = s.received(c, now, e.Stream)
	if !s.Connected() || !c.Serving(now) || s.acked < s.required && !plant.Is(plant.GrantBeforeOrders) || s.grantsMissing(c, now) || e.ID <= s.sent || now < c.GrantsFrom || c.Unconfirmed {
		return false, effects
	}
	if s.sent == s.confirmed {
		s.missingSince = now
	}
	s.sent = e.ID
	if now+lease.Over(c.Lease, 0) >= s.BoundUntil(0) {
		s.grantedAt, s.granted = now, c.Lease
	}
	return true, effects
}

func (s *State) disconnect(why string) []Effect {
	was := s.Stream
	s.Stream = 0
	return []Effect{{Kind: Disconnected, Stream: was, Message: why}}
}

// stored takes a record that was written. If the record declares the region lost, a live stream
// ends: the region must come back and learn what it lost. If the record ends the loss, the region
// has said hello. The welcome can take seconds after that, because what the region may keep is
// stored first. The region must not be declared lost again in that time, so LastSeen advances here.
func (s *State) stored(now time.Duration, r *Record) []Effect {
	declared := r.Lost && !s.Lost
	if s.Lost && !r.Lost && s.answered {
		s.LastSeen = max(s.LastSeen, now)
	}
	if s.Record.brokenBy(*r) {
		s.healthySince = now
	}
	s.Record = *r
	if !declared || !s.Connected() {
		return nil
	}
	return s.end("the region was declared lost", "declared lost")
}

// declare raises the fence and marks the region lost. A live stream ends.
func (s *State) declare(d Declare) []Effect {
	r := s.Record
	r.Fence, r.Lost, r.NothingRuns = r.Fence+1, true, r.NothingRuns || d.NothingRuns
	effects := []Effect{{Kind: Persist, Record: r, Message: d.Why}}
	return append(effects, s.stored(0, &r)...)
}

// hello decides whether a stream becomes the region's live stream. The stream must come from the
// cluster that owns the name, from its latest master, and from a log that has not gone back. If
// (incarnation, term) equals that of the live stream, the same master has reconnected, and the
// newer stream replaces the older one.
func (s *State) hello(c *Config, now time.Duration, h *Hello) []Effect {
	if effects := s.refuse(*c, now, *h); effects != nil {
		return effects
	}
	before, old := s.Record, s.Stream
	_, cut := cutOff(c, s, now)
	fresh := cut || !s.Met
	if h.ClusterID != s.ClusterID || h.Incarnation != s.Incarnation {
		s.AppliedIndex, s.known = 0, 0
	}
	if s.knownBy != h.log() {
		s.known, s.index, s.bound, s.knownBy = 0, 0, false, h.log()
	}
	s.ClusterID, s.Incarnation, s.RestoreID, s.Term, s.Level = h.ClusterID, h.Incarnation, h.RestoreID, h.Term, h.Level
	s.AppliedIndex, s.Fence = max(s.AppliedIndex, h.AppliedIndex), max(s.Fence, h.Fence)
	if s.answered {
		s.LastSeen, s.Lost, s.NothingRuns = now, false, false
	}
	if fresh || before.brokenBy(s.Record) {
		s.healthySince = now
	}
	s.Stream, s.Met, s.welcomedAt, s.answered, s.CommitBlocked = h.Stream, true, now, false, 0
	s.required, s.acked, s.sent, s.confirmed = h.Required, h.Acked, 0, 0
	s.ordered = false
	s.welcomed, s.known = c.Revision, max(s.known, h.KnownRevision)
	s.index, s.bound = max(s.index, h.AppliedIndex), s.bound || h.Federation != ""
	var effects []Effect
	if s.Record != before {
		effects = append(effects, Effect{Kind: Persist, Stream: h.Stream, Record: s.Record})
	}
	if old != 0 {
		effects = append(effects, Effect{Kind: End, Stream: old, Message: fmt.Sprintf(
			"master %s (incarnation %d, term %d) speaks for the region now", h.Master, h.Incarnation, h.Term)})
	}
	return append(effects, Effect{Kind: Welcome, Stream: h.Stream, Record: s.Record, Lease: c.Lease})
}
