package uplink

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/sets"
	"github.com/nusa-scheduler/nusa/internal/tunnel"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// Config holds the parts of the leadership term that a Server needs.
type Config struct {
	// Context ends with the term.
	Context context.Context
	State   *state.State
	Commit  *state.Committer
	Hub     *tunnel.Hub
	Log     *slog.Logger
	// ReportInterval is how often regions report.
	ReportInterval time.Duration
	// PeersInterval is the least time between two messages about peers that changed only their
	// coordinates, which drift slowly.
	PeersInterval time.Duration
	// WakePlacer makes the placer plan again.
	WakePlacer func()
	// Keys returns which roots and keys the members of a region should have, or nil. Equal results
	// are the same pointer. Without the function nobody says that.
	Keys func(region string) *nusav1.KeyGoal
}

// lateCheck is the time between two checks of silence from which on this server counts as busy. The
// checks are meant to be a second apart.
const lateCheck = 3 * time.Second

// Server serves the regions' streams of one leadership term.
type Server struct {
	Config
	st *state.State
	// streams is the number of the latest stream.
	streams atomic.Uint64
	hellos  keyedLock
	// rows has a buffer for each row that may be decoded at a time: as many as processors. An edge takes a quarter
	// of a kilobyte, and a thousand regions that connect send a thousand rows of a thousand edges.
	rows chan []topology.Edge

	// The state's lock guards the following fields. live are the sessions, by region. columnStamp
	// is the stamp of the matrix whose columns were last sent. peersAt is when the coordinates of
	// peers were last compared.
	live        map[string]*session
	columnStamp uint64
	peersAt     time.Duration
	// confirms counts how often unchanged columns were confirmed. confirmedAt is the time of the
	// last one.
	confirms    uint64
	confirmedAt time.Duration
	// began is when the term began. peers is the latest version of the peers.
	began time.Duration
	peers *peerSet
	// silenceAt is when the silence was last checked.
	silenceAt time.Duration
	turns     turns

	// matrix is the compact matrix at matrixAt. matrixWhole is the message with all of it.
	// matrixSince holds, by version, the messages with its changes since that version. compact is
	// the matrix at compactAt for regions of earlier versions. Only SendMatrix uses these fields.
	matrix      sets.Matrix
	matrixAt    time.Duration
	matrixWhole *nusav1.GlobalMessage
	matrixSince map[uint64]*nusav1.GlobalMessage
	// matrixCredit is how many bytes of whole matrices may be sent now: a matrix of many regions is
	// larger than what one tick adds.
	matrixCredit int
	compact      *nusav1.CompactMatrix
	compactAt    time.Duration
}

// New returns a Server without sessions.
func New(cfg Config) *Server {
	s := &Server{Config: cfg, st: cfg.State, live: map[string]*session{}, began: cfg.State.Clock(), peers: &peerSet{}}
	s.rows = make(chan []topology.Edge, runtime.GOMAXPROCS(0))
	for range cap(s.rows) {
		s.rows <- nil
	}
	return s
}

// WakeAll makes each session send what has changed.
func (s *Server) WakeAll() {
	s.st.Lock()
	defer s.st.Unlock()
	for _, c := range s.live {
		c.wake()
	}
}

// Tick makes the sessions send the changes since the last tick. It is called once in each report
// interval.
func (s *Server) Tick() {
	st := s.st
	st.Lock()
	defer st.Unlock()
	now := st.Clock()
	if now-s.confirmedAt >= s.PeersInterval {
		s.confirms, s.confirmedAt = s.confirms+1, now
		for _, c := range s.live {
			c.wake()
		}
	}
	st.Latency.DropOldView(now)
	newColumns := s.columnStamp != st.Latency.Stamp()
	s.columnStamp = st.Latency.Stamp()
	if !newColumns {
		return
	}
	if now-s.peersAt >= s.PeersInterval { // only coordinates have changed; other changes of peers are sent sooner
		st.PeersChange()
	}
	for name, c := range s.live {
		if c.known == nil || st.Latency.SetSince(name, c.columnAt) {
			c.shared.Unsent.Column = true
			c.wake()
		}
	}
}

// EndSilent ends the sessions of regions that have been silent for one lease. It also ends the
// sessions that began while a global server of an earlier version, which does not know leases of
// regions, stood for election. It is called each second.
//
// It ends no session while the leadership is not certain, because this server itself may be cut
// off. It ends no session because this server is busy: if the call is late, the silence counts from
// now on, and while a message of the region waits to be handled, there is no silence.
func (s *Server) EndSilent() {
	s.st.Lock()
	defer s.st.Unlock()
	now := s.st.Clock()
	s.turns.expire(now)
	late := s.silenceAt > 0 && now-s.silenceAt > lateCheck
	s.silenceAt = now
	if late {
		s.stepAll(region.Resumed{})
	}
	for _, c := range s.live {
		if c.level < leaseLevel && s.st.GlobalLevel >= leaseLevel {
			c.cancel(errLevel)
		}
		if r := s.liveRegion(c); r != nil && c.unhandled.Load() > 0 {
			s.stepRegion(c, r, region.Received{Stream: c.shared.Number})
		}
	}
	if s.serving() {
		s.stepAll(region.Tick{})
	}
}

// Resume is called when the leadership is certain again. The silence of all regions counts from now
// on. The streams send the messages that they held back. The lock is held.
func (s *Server) Resume() {
	s.stepAll(region.Resumed{})
	for _, r := range s.st.Regions {
		r.Wake()
	}
}

// stepAll steps the session states of all regions by an event. The lock is held.
func (s *Server) stepAll(e region.Event) {
	c, now := s.st.SessionConfig(), s.st.Clock()
	for _, r := range s.st.Regions {
		effects := r.Life.Advance(&c, now, e)
		if _, tick := e.(region.Tick); !tick || len(effects) > 0 { // a tick without effects changes nothing
			r.Touch()
		}
		r.EndStream(effects)
	}
}

// serving reports whether this server may send orders and grant leases. The lock is held.
func (s *Server) serving() bool { return s.Context.Err() == nil && s.st.Serving() }

// step steps the state of a session's region by an event, and handles the effects.
func (s *Server) step(c *session, e region.Event) {
	st := s.st
	st.Lock()
	defer st.Unlock()
	r := st.Regions[c.region]
	if r == nil {
		return
	}
	s.stepRegion(c, r, e)
}

// stepRegion is step with the lock held.
func (s *Server) stepRegion(c *session, r *state.Region, e region.Event) {
	behind := r.Life.Behind()
	config := s.st.SessionConfig()
	s.stepped(c, r, behind, r.Life.Advance(&config, s.st.Clock(), e))
}

// stepped handles the effects of a step, before which the region was behind, or was not. The lock is held.
func (s *Server) stepped(c *session, r *state.Region, behind bool, effects []region.Effect) {
	r.Touch()
	if behind && !r.Life.Behind() {
		s.WakePlacer()
	}
	for i := range effects {
		if e := &effects[i]; e.Kind == region.End && e.Stream == c.shared.Number {
			c.shared.Refuse(e.Message)
		}
	}
}

// requestLease handles a request for a lease, and grants the lease if the region may have it.
func (s *Server) requestLease(c *session, q *nusav1.LeaseRequest, index uint64) {
	if g := s.leaseFor(c, q, index); g != nil {
		c.grant(g, q.GetGranted())
	}
}

// leaseFor returns the grant of a lease, or nil.
func (s *Server) leaseFor(c *session, q *nusav1.LeaseRequest, index uint64) (grant *grantMessage) {
	st := s.st
	st.Lock()
	defer st.Unlock()
	r := st.Regions[c.region]
	if r == nil || s.Context.Err() != nil {
		return nil // a successor may not know of a lease that begins now
	}
	blocked, behind := r.Life.CommitBlocked > 0, r.Life.Behind()
	config := st.SessionConfig()
	e := region.LeaseRequested{
		Stream: c.shared.Number, ID: q.GetId(), Granted: q.GetGranted(), CommitBlocked: q.GetCommitBlocked().AsDuration(),
		Orders: r.Orders.Position().Sequence, Index: index, Ordered: q.GetConfirmed(),
	}
	granted, effects := r.Life.Request(&config, st.Clock(), &e)
	s.stepped(c, r, behind, effects)
	if granted {
		grant = newGrant(&e, &config, &r.Life.Record, st.Epoch)
	}
	if c.lateDue {
		c.wake() // the grant relies on orders that wait
	}
	if n := int(q.GetUnordered()); n != r.Unordered {
		r.Unordered, r.Stamp = n, st.Notify()
	}
	if now := r.Life.CommitBlocked > 0; now != blocked {
		s.noteCommits(r, now)
	}
	return grant
}

// noteCommits shows that a region cannot commit to its log, or that it can again. The lock is held.
func (s *Server) noteCommits(r *state.Region, blocked bool) {
	r.Stamp = s.st.Notify()
	if blocked {
		s.st.Events.Add("region.commits_blocked", r.Name, "the region cannot commit to its log; it takes no new slots")
		s.Log.Warn("a region cannot commit to its log", "region", r.Name, "for", r.Life.CommitBlocked)
		return
	}
	s.st.Events.Add("region.commits", r.Name, "the region can commit to its log again")
	s.WakePlacer()
}

// ackOrders notes the position up to which the region's log has the orders.
func (s *Server) ackOrders(c *session, p *nusav1.Position, index uint64) {
	if p.GetEpoch() != s.st.Epoch {
		s.step(c, region.Received{Stream: c.shared.Number})
		return
	}
	s.step(c, region.OrdersAcked{Stream: c.shared.Number, Position: p.GetSequence(), Index: index})
}

// Run sends the changes of peers to all regions until ctx ends.
func (s *Server) Run(ctx context.Context) error { return publishEach(ctx, s) }

// endTurn ends a session's turn after it has sent a large message.
func (s *Server) endTurn(c *session) {
	s.st.Lock()
	defer s.st.Unlock()
	s.turns.give(c, s.st.Clock())
}

// endAll ends all sessions.
func (s *Server) endAll(why string) {
	s.st.Lock()
	defer s.st.Unlock()
	for _, r := range s.st.Regions {
		if r.Session != nil {
			r.Session.Refuse(why)
		}
	}
}

// endSession cleans up after a session. It is called once for each stream.
func (s *Server) endSession(c *session, cause error) {
	st := s.st
	st.Lock()
	defer st.Unlock()
	c.closed = true
	c.tunnel.close()
	c.late.Stop()
	s.turns.give(c, st.Clock())
	if !c.opened.Load() {
		return
	}
	if s.live[c.region] == c {
		delete(s.live, c.region)
	}
	r := st.Regions[c.region]
	if r == nil || r.Session != &c.shared {
		return
	}
	next, _ := region.Step(st.SessionConfig(), r.Life, st.Clock(), region.StreamEnded{Stream: c.shared.Number})
	r.Life, r.Session = next, nil
	r.Touch()
	r.Stamp = st.Notify()
	st.Events.Add("region.disconnected", c.region, "its session ended: %s", causeText(cause))
	level := slog.LevelWarn
	if errors.Is(cause, errGoodbye) || s.Context.Err() != nil {
		level = slog.LevelInfo // the region or this server ended the session on purpose
	}
	s.Log.Log(s.Context, level, "region disconnected", "region", c.region, "why", cause)
	s.WakePlacer()
}
