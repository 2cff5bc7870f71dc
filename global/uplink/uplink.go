package uplink

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/tunnel"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Config holds the parts of the leadership term that a Server needs.
type Config struct {
	// Context ends with the term.
	Context context.Context
	State   *state.State
	Commit  *state.Committer
	Hub     *tunnel.Hub
	Log     *slog.Logger
	// Lease is the duration of a region's lease.
	Lease time.Duration
	// ReportInterval is how often regions report.
	ReportInterval time.Duration
	// PeersInterval is the least time between two messages about peers whose only
	// change is in their coordinates, which drift slowly.
	PeersInterval time.Duration
	// MayGrant says whether this server is still certain to be the only active
	// one. The state's lock is held.
	MayGrant func() bool
	// WakePlacer makes the placer plan again.
	WakePlacer func()
}

// Server serves the regions' streams of one leadership term.
type Server struct {
	Config
	st *state.State
	// streams numbers the streams.
	streams atomic.Uint64
	hellos  keyedLock

	// The state's lock guards these. live are the sessions by region. columnStamp
	// is the stamp of the matrix whose columns were last sent. peersAt is when
	// peers were last sent because of their coordinates.
	live        map[string]*session
	columnStamp uint64
	peersAt     time.Duration

	// compact is the compact matrix as of compactAt; only SendMatrix uses them.
	compact   *nusav1.CompactMatrix
	compactAt time.Duration
}

// New returns a Server without sessions.
func New(cfg Config) *Server {
	return &Server{Config: cfg, st: cfg.State, live: map[string]*session{}}
}

// Tick makes the changes that depend only on time: it ends sessions of regions
// without a lease and sends the changes since the tick before. It is called once in
// each report interval.
func (s *Server) Tick() {
	st := s.st
	st.Lock()
	defer st.Unlock()
	now := st.Clock()
	newColumns := s.columnStamp != st.Latency.Stamp()
	s.columnStamp = st.Latency.Stamp()
	// Coordinates are sent with the peers; other changes of peers are sent at
	// once.
	newPeers := newColumns && now-s.peersAt >= s.PeersInterval
	if newPeers {
		s.peersAt = now
	}
	for _, r := range st.Regions {
		var effects []region.Effect
		r.Life, effects = region.Step(st.RegionConfig, r.Life, now, region.Tick{})
		r.EndStream(effects)
		if newColumns && r.Session != nil {
			r.Session.Unsent.Column = true
			r.Session.Unsent.Peers = r.Session.Unsent.Peers || newPeers
			r.Session.Wake()
		}
	}
}

// grantLease grants a requested lease if the stream is the live one.
func (s *Server) grantLease(c *session, id uint64) {
	st := s.st
	st.Lock()
	defer st.Unlock()
	r := st.Regions[c.region]
	if r == nil || s.Context.Err() != nil || !s.MayGrant() {
		return // a successor may not know of a lease that begins now
	}
	next, effects := region.Step(st.RegionConfig, r.Life, st.Clock(), region.LeaseRequested{Stream: c.shared.Number, ID: id})
	r.Life = next
	for _, e := range effects {
		switch e.Kind {
		case region.End:
			c.cancel(&refusal{message: e.Message})
		case region.Grant:
			c.post(&nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Lease{
				Lease: &nusav1.LeaseGrant{Id: e.ID, Duration: durationpb.New(e.Lease)},
			}})
		}
	}
}

// endSession is called once for each stream.
func (s *Server) endSession(c *session, cause error) {
	st := s.st
	st.Lock()
	defer st.Unlock()
	c.closed = true
	if !c.opened.Load() {
		return
	}
	c.shared.Conn.Close()
	if s.live[c.region] == c {
		delete(s.live, c.region)
	}
	r := st.Regions[c.region]
	if r == nil || r.Session != &c.shared {
		return
	}
	next, _ := region.Step(st.RegionConfig, r.Life, st.Clock(), region.StreamEnded{Stream: c.shared.Number})
	r.Life, r.Session = next, nil
	r.Stamp = st.Notify()
	st.Events.Add("region.disconnected", c.region, "its session ended: %s", causeText(cause))
	level := slog.LevelWarn
	if errors.Is(cause, errGoodbye) || s.Context.Err() != nil {
		level = slog.LevelInfo // the region or this server ended the session on purpose
	}
	s.Log.Log(s.Context, level, "region disconnected", "region", c.region, "why", cause)
	s.WakePlacer()
}
