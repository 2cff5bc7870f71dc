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
	// Lease is how long a granted lease lasts, counted by the holder from
	// sending the request. Must be > 0.
	Lease time.Duration
	// LeaseMax is the greatest length of a lease that a predecessor may have granted.
	// It was stored before the first such grant. 0 = Lease.
	LeaseMax time.Duration
	// PredecessorUntil is until when a predecessor may have granted leases.
	PredecessorUntil time.Duration
	// ActiveUntil is when another server may become the active one. From then on no
	// stream is welcomed and no lease granted.
	ActiveUntil time.Duration
	// Federation is the id of the federation.
	Federation string
	// Term of this server as the active one.
	Term Term
	// Revision of the store. A region that knows a greater one shows that the store
	// was restored from an old copy.
	Revision int64
	// Terms are the beginnings of the latest terms, that of Term last.
	Terms []Beginning
	// ServesFrom and GrantsFrom hold work back after a recovery of the store; 0 = the store was
	// not recovered. Before ServesFrom some lease from before the recovery may last, and a
	// region that holds one would start what the recovered store orders: no stream is welcomed.
	// Before GrantsFrom an instance that such a lease bound may still run: no lease is granted.
	ServesFrom, GrantsFrom time.Duration
	// Conflict: the store was restored from an old copy, and no operator has recovered
	// it yet. No stream is welcomed and no lease granted.
	Conflict bool
}

// Serving reports whether this server may welcome, order and grant.
func (c Config) Serving(now time.Duration) bool {
	return (now < c.ActiveUntil || plant.Is(plant.DeposedServes)) && !c.Conflict && now >= c.ServesFrom
}

// AfterRecovery returns the configuration for a store that was recovered. stop is the longest
// time between the stop signal and the kill, as far as a lease binds.
func (c Config) AfterRecovery(stop time.Duration) Config {
	c.ServesFrom, c.GrantsFrom = c.predecessorsEnd(0), c.predecessorsEnd(stop)
	return c
}

// PredecessorsOver reports whether every lease that a predecessor may have granted is over.
func (c Config) PredecessorsOver(now time.Duration) bool {
	return now >= c.predecessorsEnd(0)
}

// predecessorsEnd returns when everything has ended that a lease of a predecessor binds.
func (c Config) predecessorsEnd(stop time.Duration) time.Duration {
	return c.PredecessorUntil + lease.Over(c.longest(), stop)
}

func (c Config) longest() time.Duration {
	if plant.Is(plant.LeaseForgotten) {
		return c.Lease
	}
	return max(c.Lease, c.LeaseMax)
}

// Term numbers the terms of active global servers. Number grows with each election.
// Two terms with one number and different nonces come from different histories of the
// store.
type Term struct {
	Number uint64
	Nonce  string
}

// State is one region's session state in the active global server. Open makes
// one; the zero value is not usable.
type State struct {
	Record
	// Stream is the caller's number of the live stream, 0 = none.
	Stream uint64
	// LastSeen is when the region's last message arrived, or when this server became
	// active if there was none. Messages that show that nothing arrives at the region do
	// not count: requests while grants are missing, and a hello after a session in which
	// nothing followed the welcome.
	LastSeen time.Duration
	// Met: the region has said hello to this server, so LastSeen is not the election's time.
	Met bool
	// CommitBlocked is for how long, at its last request, the region had not been able to
	// commit to its log; 0 = it can.
	CommitBlocked time.Duration

	// welcomedAt is when the session began. answered: a message followed the latest
	// welcome, so what is sent arrives.
	welcomedAt time.Duration
	answered   bool
	// healthySince is since when the region has been connected without a break, see ConnectedFor.
	healthySince time.Duration
	// grantedAt and granted are the time and the length of the grant whose lease ends
	// last. At first that is a predecessor's.
	grantedAt, granted time.Duration
	// welcomed is the store's revision at the session's welcome. known is the greatest
	// that the region's log of this incarnation has for certain: before its log has what
	// a welcome said, a region sends only requests for its lease.
	welcomed, known int64
	// index is the greatest index of the log that a message named. bound: a hello named this
	// federation, so the log has revisions.
	index uint64
	bound bool
	// knownBy is the log that known, index and bound belong to. The stored record may name the
	// next log already, because the record is written before the welcome.
	knownBy logID
	// required is the position of the orders at the welcome, acked the position that the
	// log knownBy has. No lease is granted while acked < required.
	required, acked uint64
	// sent and confirmed are the ids of the session's last grant and of the last one that
	// the region has confirmed. While they differ, missingSince is when the first grant
	// after the last confirmation was sent.
	sent, confirmed uint64
	missingSince    time.Duration
}

// Record is the durable part of State.
type Record struct {
	Name string
	// ClusterID binds the name; empty until a cluster connects under the name.
	ClusterID string
	// Incarnation and Term (of the master) of the latest accepted session.
	// AppliedIndex is the greatest index of the region's log that a hello of the
	// incarnation named.
	Incarnation, Term, AppliedIndex uint64
	// RestoreID is the id of the restore that began the incarnation; empty: no restore did.
	RestoreID string
	// Fence grows each time the region is declared lost. Leases with an older
	// fence are void.
	Fence uint64
	// Level is the feature level of the latest hello. From level 1 on a region confirms
	// the grants that it received.
	Level uint32
	// Lost: declared lost, and not connected since. NothingRuns: an operator stated that
	// nothing runs there any more, so another cluster may take the name.
	Lost, NothingRuns bool
}

// Open starts a region's state on a server that became active at now.
func Open(c Config, r Record, now time.Duration) State {
	return State{
		Record: r, LastSeen: now, answered: true,
		grantedAt: max(now, c.PredecessorUntil), granted: c.longest(),
	}
}

// Connected reports whether the region has a live stream.
func (s State) Connected() bool { return s.Stream != 0 }

// SilentFor is how long the region has sent nothing, or nothing that shows that its
// grants arrive. A connected region sends at least each third of its lease.
func (s State) SilentFor(now time.Duration) time.Duration { return max(0, now-s.LastSeen) }

// BoundUntil is when everything that the region's lease binds has certainly ended.
// stop is the longest time between the stop signal and the kill.
func (s State) BoundUntil(stop time.Duration) time.Duration {
	return s.grantedAt + lease.Over(s.granted, stop)
}

// grantsMissing reports whether grants have not arrived for half a lease.
func (s State) grantsMissing(c Config, now time.Duration) bool {
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
	// BoundName is another region name that ClusterID is bound to already;
	// empty = none. The caller looks it up.
	BoundName string
	// Federation that the region's log is bound to; empty = none yet.
	Federation string
	// KnownTerm and KnownRevision are the greatest that the region's log has.
	KnownTerm     Term
	KnownRevision int64
	// Acked is the position of the orders that the region has, as far as this server's
	// numbering has it; otherwise 0. Required is the position of the orders now, > 0.
	Acked, Required uint64
}

// logID names a region's log between two restores.
type logID struct {
	cluster     string
	incarnation uint64
}

func (h Hello) log() logID { return logID{h.ClusterID, h.Incarnation} }

// Received: a message other than the ones below arrived on the stream.
type Received struct{ Stream uint64 }

// OrdersAcked: the region's log has the orders up to a position of this server's
// numbering.
type OrdersAcked struct {
	Stream, Position uint64
	// Index of the region's log that the master has applied; 0 = unknown.
	Index uint64
}

// LeaseRequested: the stream's master asks for a lease.
type LeaseRequested struct {
	Stream, ID uint64
	// Granted is the id of the latest grant that the region received in this session.
	Granted uint64
	// CommitBlocked as in State.
	CommitBlocked time.Duration
	// Orders is the position of the orders now: the grant rests on it.
	Orders uint64
	// Index as in OrdersAcked.
	Index uint64
}

// StreamEnded: the stream ended, for whatever reason.
type StreamEnded struct{ Stream uint64 }

// Tick: time has passed.
type Tick struct{}

// Resumed: after a time in which it was not certain, it is certain again that this server
// is the active one. It may have been this server that was cut off or suspended, so the
// silence counts from now.
type Resumed struct{}

// Stored: the region's record is stored now.
type Stored struct{ Record Record }

// Declare: the region is lost. The caller has decided it (package failover), or an
// operator states it.
type Declare struct {
	Why string
	// NothingRuns as in Record.
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

// Step advances the state by one event. Events of streams that are not the live
// one change nothing.
func Step(c Config, s State, now time.Duration, e Event) (State, []Effect) {
	switch e := e.(type) {
	case Hello:
		return s.hello(c, now, e)
	case LeaseRequested:
		if s.live(e.Stream) {
			s.index = max(s.index, e.Index)
		}
		return s.request(c, now, e)
	case OrdersAcked:
		if s.live(e.Stream) {
			s.acked, s.index = max(s.acked, e.Position), max(s.index, e.Index)
		}
		return s.joined(e.Stream).received(c, now, e.Stream)
	case Received:
		return s.joined(e.Stream).received(c, now, e.Stream)
	case StreamEnded:
		if s.live(e.Stream) {
			return s.disconnect("its stream ended")
		}
	case Stored:
		return s.stored(now, e.Record)
	case Declare:
		return s.declare(e)
	case Resumed:
		s = s.seen(c, now)
	case Tick:
		return s.tick(c, now)
	}
	return s, nil
}

// ConnectedFor returns for how long the region has been connected without a break; 0 without a
// session, and while the region is lost. A region breaks off when it counts as cut off, when it
// is lost, and when its log is another one. A reconnect that takes less is no break.
func (s State) ConnectedFor(now time.Duration) time.Duration {
	if !s.Connected() || s.Lost {
		return 0
	}
	return max(0, now-s.healthySince)
}

// brokenBy reports whether the next record of a region ends its health: the region was lost and
// is back, or its log is another one. That record is stored before the hello counts.
func (r Record) brokenBy(next Record) bool {
	return r.Lost && !next.Lost || r.ClusterID != next.ClusterID || r.Incarnation != next.Incarnation
}

// seen notes that the region is there. After a silence its health counts from now on.
func (s State) seen(c Config, now time.Duration) State {
	if _, cut := CutOff(c, s, now); cut {
		s.healthySince = now
	}
	s.LastSeen = max(s.LastSeen, now)
	return s
}

func (s State) live(stream uint64) bool { return stream != 0 && stream == s.Stream }

// joined notes that the region's log has what the welcome of the live stream said.
func (s State) joined(stream uint64) State {
	if s.live(stream) && s.Level > 0 {
		s.known = max(s.known, s.welcomed)
	}
	return s
}

// received notes a message. A lost region whose hello did not count has to say hello
// again, because only a hello ends the loss.
func (s State) received(c Config, now time.Duration, stream uint64) (State, []Effect) {
	if !s.live(stream) {
		return s, nil
	}
	s.answered = true
	if !s.grantsMissing(c, now) {
		s = s.seen(c, now)
	}
	if s.Lost {
		return s.end("the region was declared lost, and is connected again", "its session begins again")
	}
	return s, nil
}

// end ends the live stream.
func (s State) end(message, why string) (State, []Effect) {
	end := Effect{Kind: End, Stream: s.Stream, Message: message}
	s, effects := s.disconnect(why)
	return s, append([]Effect{end}, effects...)
}

// tick ends a session that has been silent for a lease. A live master requests several
// leases within the length of one. A master that requests none, or does not get the
// grants, has lost its leadership or its connection.
func (s State) tick(c Config, now time.Duration) (State, []Effect) {
	silent := now - max(s.LastSeen, s.welcomedAt)
	if !s.Connected() || silent <= c.Lease {
		return s, nil
	}
	message := fmt.Sprintf("no message for %s", silent)
	if s.grantsMissing(c, now) {
		message = fmt.Sprintf("leases that were granted %s ago have not arrived", now-s.missingSince)
	}
	return s.end(message, "silent for longer than its lease")
}

// request grants a lease if the region has acknowledged the orders of its welcome and
// receives what it is granted.
func (s State) request(c Config, now time.Duration, e LeaseRequested) (State, []Effect) {
	if !s.live(e.Stream) {
		return s, []Effect{{Kind: End, Stream: e.Stream, Message: "another stream speaks for the region"}}
	}
	if e.Granted > s.confirmed && e.Granted <= s.sent {
		s.confirmed, s.missingSince = e.Granted, now
	}
	s.CommitBlocked = e.CommitBlocked
	s, effects := s.received(c, now, e.Stream)
	if !s.Connected() || !c.Serving(now) || s.acked < s.required && !plant.Is(plant.GrantBeforeOrders) || s.grantsMissing(c, now) || e.ID <= s.sent || now < c.GrantsFrom {
		return s, effects
	}
	if s.sent == s.confirmed {
		s.missingSince = now
	}
	s.sent = e.ID
	if now+lease.Over(c.Lease, 0) >= s.BoundUntil(0) {
		s.grantedAt, s.granted = now, c.Lease
	}
	return s, []Effect{{Kind: Grant, Stream: e.Stream, ID: e.ID, Lease: c.Lease, Orders: e.Orders, Record: s.Record}}
}

func (s State) disconnect(why string) (State, []Effect) {
	was := s.Stream
	s.Stream = 0
	return s, []Effect{{Kind: Disconnected, Stream: was, Message: why}}
}

// stored takes a record. When it declares the region lost, a live stream ends: the region
// must come back and learn what it lost. A record ends the loss only because the region has
// said hello. What it may keep is stored before its welcome, which can take seconds, and it
// must not be declared lost again meanwhile.
func (s State) stored(now time.Duration, r Record) (State, []Effect) {
	declared := r.Lost && !s.Lost
	if s.Lost && !r.Lost && s.answered {
		s.LastSeen = max(s.LastSeen, now)
	}
	if s.Record.brokenBy(r) {
		s.healthySince = now
	}
	s.Record = r
	if !declared || !s.Connected() {
		return s, nil
	}
	return s.end("the region was declared lost", "declared lost")
}

// declare raises the fence. Storing the record ends a live stream.
func (s State) declare(d Declare) (State, []Effect) {
	r := s.Record
	r.Fence, r.Lost, r.NothingRuns = r.Fence+1, true, r.NothingRuns || d.NothingRuns
	effects := []Effect{{Kind: Persist, Record: r, Message: d.Why}}
	s, ends := s.stored(0, r)
	return s, append(effects, ends...)
}

// hello decides whether a stream becomes the region's live stream. It must come
// from the cluster that the name is bound to, from its latest master, and from a log
// that has not gone back. An equal (incarnation, term) is the same master that
// reconnects; the newer stream wins.
func (s State) hello(c Config, now time.Duration, h Hello) (State, []Effect) {
	if effects := s.refuse(c, now, h); effects != nil {
		return s, effects
	}
	before, old := s.Record, s.Stream
	_, cut := CutOff(c, s, now)
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
	return s, append(effects, Effect{Kind: Welcome, Stream: h.Stream, Record: s.Record, Lease: c.Lease})
}
