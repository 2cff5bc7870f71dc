package uplink

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/topo"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/trust"
)

const (
	// protocol is the version of the protocol between regions and this tier. Versions that are one
	// less or one more are understood, too.
	protocol = 1
	// maxRegistrations bounds how often a hello is registered again because the region's record has
	// changed meanwhile.
	maxRegistrations = 3
	// maxServers bounds the servers of one region.
	maxServers = 64
	// maxHelloBytes bounds a hello.
	maxHelloBytes = 64 * 1024
	// maxSummaries bounds the summaries of one region. Each job has one summary.
	maxSummaries = 200_000
)

// checkHello refuses a hello that a correct region would not send.
func checkHello(h *nusav1.RegionHello) error {
	switch {
	case h == nil:
		return &refusal{message: "the first message of a session must be a hello", permanent: true}
	case h.GetProtocol() < protocol-1 || h.GetProtocol() > protocol+1:
		return &refusal{message: fmt.Sprintf("protocol %d, this server speaks %d: upgrade the older one", h.GetProtocol(), protocol), permanent: true}
	case h.GetClusterId() == "" || len(h.GetClusterId()) > 64:
		return &refusal{message: "hello without a cluster id of 1..64 bytes", permanent: true}
	case proto.Size(h) > maxHelloBytes:
		return &refusal{message: fmt.Sprintf("hello of %d bytes, at most %d", proto.Size(h), maxHelloBytes), permanent: true}
	case len(h.GetServers()) > maxServers:
		return &refusal{message: fmt.Sprintf("%d servers, at most %d", len(h.GetServers()), maxServers), permanent: true}
	}
	if err := job.ValidateRegion(h.GetDefinition()); err != nil {
		return &refusal{message: "region definition: " + err.Error(), permanent: true}
	}
	return nil
}

// checkIdentity refuses a hello that names another region than the caller's certificate does. The
// region that the hello names is not shown as refused, because it did nothing wrong.
func (s *Server) checkIdentity(ctx context.Context, h *nusav1.RegionHello) error {
	id, known := trust.CallerOf(ctx)
	name := h.GetDefinition().GetName()
	if !known || id.Kind == identity.Server && id.Region == name {
		return nil
	}
	s.Log.Warn("a session is refused: its certificate is not that of the region", "region", name, "id", id.String())
	return status.Errorf(codes.PermissionDenied, "%s may not open a session of region %q", id.Describe(), name)
}

// open makes the stream the region's session, or returns a refusal.
func (s *Server) open(ctx context.Context, c *session, h *nusav1.RegionHello) error {
	if err := checkHello(h); err != nil {
		return err
	}
	name := h.GetDefinition().GetName()
	release, err := s.hellos.lock(ctx, name)
	if err != nil {
		return err
	}
	defer release()
	if err := offerAgain(ctx, s, c, h); err != nil {
		return err
	}
	if err := s.register(ctx, c, h); err != nil {
		return err
	}
	c.region, c.shared.Conn = name, c.tunnel.conn
	c.inbox = link.NewInbox[summary](maxSummaries)
	for range maxRegistrations {
		welcomed, err := s.welcome(c, h)
		if err == nil && !welcomed {
			err = s.register(ctx, c, h) // the record has changed, for example by a verdict
		}
		if err != nil {
			return err
		}
		if welcomed {
			return nil
		}
	}
	return &refusal{message: "the record of region " + name + " changes too often"}
}

// noteRefused shows that the region of a hello is refused, by an alarm, an event and a line in the
// log, once for each reason. It shows nothing if only this stream is refused.
func (s *Server) noteRefused(h *nusav1.RegionHello, err error) {
	var refused *refusal
	if !errors.As(err, &refused) || !refused.ofRegion && !refused.permanent {
		return
	}
	name := h.GetDefinition().GetName()
	s.st.Lock()
	defer s.st.Unlock()
	if r := s.st.Regions[name]; r != nil && refused.otherCluster {
		r.OtherCluster = true
	}
	if !s.st.NoteRefused(name, refused.message) {
		return
	}
	s.st.Events.Add("region.refused", name, "%s", refused.message)
	s.Log.Error("a region is refused", "region", name, "why", refused.message, "servers", h.GetMasterAddress())
}

// helloEvent returns a hello in the form that the core of the session takes. The lock is held.
func helloEvent(st *state.State, c *session, h *nusav1.RegionHello) region.Hello {
	name := h.GetDefinition().GetName()
	out := region.Hello{
		Stream: c.shared.Number, ClusterID: h.GetClusterId(), Incarnation: h.GetIncarnation(), Term: h.GetTerm(), Master: h.GetMaster(),
		AppliedIndex: h.GetAppliedIndex(), Fence: h.GetFence(), Level: h.GetFeatureLevel(), RestoreID: h.GetRestoreId(),
		BoundName: boundName(st, name, h.GetClusterId()), Federation: h.GetFederationId(),
		KnownTerm:     region.Term{Number: h.GetLeadershipTerm().GetNumber(), Nonce: h.GetLeadershipTerm().GetNonce()},
		KnownRevision: h.GetStoreRevision(), Required: 1,
	}
	if r := st.Regions[name]; r != nil {
		out.Required = r.Orders.Position().Sequence
	}
	if h.GetOrders().GetEpoch() == st.Epoch {
		out.Acked = h.GetOrders().GetSequence()
	}
	return out
}

// register stores the changes of a hello: an unknown region, its cluster, its incarnation, the end
// of its loss. It steps a copy of the region's session state, with the record as the transaction
// finds it. The step of the state itself is made in welcome.
func (s *Server) register(ctx context.Context, c *session, h *nusav1.RegionHello) error {
	name := h.GetDefinition().GetName()
	var refused *region.Effect
	var conflict region.Effect
	added, stated := false, (*nusav1.LostRegion)(nil)
	_, err := s.Commit.Do(ctx, func(t *state.Tx) error {
		refused, conflict, added, stated = nil, region.Effect{}, false, nil
		old, _ := t.Region(name)
		_, effects := region.Step(t.State.SessionConfig(), t.Session(name), t.State.Clock(), helloEvent(t.State, c, h))
		persist := old == nil || !old.GetDefinedByOperator() && !proto.Equal(old.GetDefinition(), h.GetDefinition())
		var record region.Record
		for _, e := range effects {
			switch e.Kind {
			case region.Refuse:
				refused = &e
				return nil
			case region.Conflict:
				conflict = e
			case region.Persist:
				persist = true
			case region.Welcome:
				record = e.Record
			}
		}
		if err := t.Outlasts(h.GetLeaseMax(), h.GetStopTime()); err != nil || !persist {
			return err
		}
		added = old == nil
		next := &nusav1.Region{Definition: h.GetDefinition()}
		if old != nil {
			next = proto.CloneOf(old)
			if !old.GetDefinedByOperator() {
				next.Definition = h.GetDefinition()
			}
		}
		state.SetSession(next, record)
		if old.GetLost().GetNothingRuns() && next.GetLost() == nil && old.GetClusterId() == next.GetClusterId() {
			stated = old.GetLost()
		}
		addRegistered(t, name, added, stated, h)
		return t.PutRegion(name, next)
	})
	if err != nil {
		return state.RPCErrors.Err(fmt.Errorf("register region %s: %w", name, err))
	}
	if conflict.Kind != "" {
		s.storeConflict(ctx, h, conflict)
	}
	if refused != nil {
		return &refusal{message: refused.Message, permanent: refused.Permanent, ofRegion: refused.OfRegion, otherCluster: refused.OtherCluster, tellWork: s.noteWork(h)}
	}
	return heal(ctx, s, name, h)
}

// addRegistered adds the events of a registration: the region connected for the first time, or although
// an operator stated its loss.
func addRegistered(t *state.Tx, name string, added bool, stated *nusav1.LostRegion, h *nusav1.RegionHello) {
	if added {
		t.Event("region.registered", name, "the region connected for the first time, cluster %s", h.GetClusterId())
	}
	if stated != nil {
		t.Event("region.returned", name, "although %s stated that nothing runs there any more: what it still runs of the work that moved stops, "+
			"also with disconnect.reconcile: keep_original, and the replacements stay", stated.GetBy())
	}
}

// noteWork notes what a refused region runs. It reports whether the region must tell what it runs,
// which is so if the store was restored from an old copy.
func (s *Server) noteWork(h *nusav1.RegionHello) bool {
	s.st.Lock()
	defer s.st.Unlock()
	if s.st.Leadership.GetConflict() == nil {
		return false
	}
	s.st.NoteWork(h)
	return true
}

// storeConflict stores that a region knows more than the store. From then on nothing is placed,
// ordered or granted until an operator has recovered the store, so all sessions end. Only the
// elected server can store a conflict. So a deposed server, which lacks what its successor has
// written, cannot store a wrong one.
func (s *Server) storeConflict(ctx context.Context, h *nusav1.RegionHello, e region.Effect) {
	name, first := h.GetDefinition().GetName(), false
	_, err := s.Commit.Do(ctx, func(t *state.Tx) error {
		first = t.State.Leadership.GetConflict() == nil
		return t.PutConflict(&nusav1.RevisionConflict{
			Region: name, Known: e.Known, KnownTerm: e.KnownTerm, LeaseMax: h.GetLeaseMax(), StopTime: h.GetStopTime(),
		})
	})
	switch {
	case err != nil:
		s.Log.Warn("cannot store a conflict of revisions", "region", name, "conflict", e.Message, "error", err)
	case first:
		s.st.Events.Add("store.conflict", name, "%s", e.Message)
		s.Log.Error("nothing is placed or ordered: a region knows more than the store", "region", name, "conflict", e.Message)
		s.endAll("the store was restored from an old copy")
	}
}

// boundName returns the other region name that a cluster owns, or "". The lock is held.
func boundName(st *state.State, name, clusterID string) string {
	for _, other := range st.RegionNames() {
		if other != name && st.Regions[other].Life.ClusterID == clusterID {
			return other
		}
	}
	return ""
}

// welcome makes the stream the live one, and queues the sets for the region. It returns false when
// the hello must be registered again.
func (s *Server) welcome(c *session, h *nusav1.RegionHello) (bool, error) {
	st := s.st
	st.Lock()
	defer st.Unlock()
	r := st.Regions[c.region]
	switch {
	case c.closed:
		return false, state.ErrNotActive // endSession was called already, and is called only once
	case r == nil:
		return false, &refusal{message: "the region was removed meanwhile"}
	}
	if len(returns(st, c.region, h)) > 0 {
		return false, nil
	}
	next, effects := region.Step(st.SessionConfig(), r.Life, st.Clock(), helloEvent(st, c, h))
	for _, e := range effects {
		switch e.Kind {
		case region.Refuse:
			return false, &refusal{message: e.Message, permanent: e.Permanent, ofRegion: e.OfRegion, otherCluster: e.OtherCluster}
		case region.Persist:
			return false, nil
		}
	}
	r.EndStream(effects)
	r.Life, r.Session, s.live[c.region], r.Refused, r.OtherCluster, r.Unordered = next, &c.shared, c, "", false, 0
	r.Touch()
	if r.Version != h.GetVersion() {
		st.Forms.Remove(c.region) // a master of an earlier version of Nusa does not say when the forms change
	}
	r.Master, r.MasterAddress, r.Servers, r.Version = h.GetMaster(), h.GetMasterAddress(), h.GetServers(), h.GetVersion()
	// This is a new session. Work that the region refused before may fit now, and disconnected
	// nodes may be back.
	r.KeepReasonsOnly()
	r.Disconnected = nil
	c.fence, c.level = next.Fence, st.GlobalLevel
	c.cursor, c.held = ordersCursor(st, r, h)
	c.ordersAt = r.Orders.Position().Sequence
	c.known = h.GetKnown()
	r.Auth = state.AuthCopy{Hash: c.known.GetAuth(), Version: c.known.GetAuthVersion()}
	if at := topo.PlausibleCoordinate(h.GetCoordinate()); at != nil {
		r.Coordinate = at
	}
	c.shared.Unsent = state.Unsent{Demand: true, Asks: true, Column: true, Origins: true, Auth: true}
	c.columnAt, c.matrixAt = math.MinInt64/2, st.Clock()
	if at := h.GetKnown().GetColumn(); at.GetEpoch() == st.Epoch {
		c.columnAt = min(time.Duration(at.GetSequence()), st.Clock())
	}
	if at := h.GetKnown().GetMatrix(); at.GetEpoch() == st.Epoch {
		c.matrixVersion = at.GetSequence()
	}
	c.post(&nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Welcome{Welcome: &nusav1.GlobalWelcome{
		Session: fmt.Sprintf("%s-%d", st.Epoch, c.shared.Number), Lease: durationpb.New(st.Sessions.Lease),
		ReportInterval: durationpb.New(s.ReportInterval), Fence: next.Fence, Protocol: protocol,
		Summaries:    &nusav1.Position{Epoch: r.SummariesAt.Epoch, Sequence: r.SummariesAt.Sequence},
		FederationId: st.Sessions.Federation, LeadershipTerm: leadershipTerm(st), StoreRevision: st.Revision, FeatureLevel: st.GlobalLevel,
		Row: &nusav1.Position{Epoch: r.Row.Epoch, Sequence: r.Row.Sequence}, Confirm: slices.Contains(st.Unconfirmed(), c.region),
		Forms: proto.Uint64(st.Forms.Hash(c.region)),
	}}})
	c.opened.Store(true)
	st.RegionsChanged()
	st.Events.Add("region.connected", c.region, "master %s, term %d", h.GetMaster(), h.GetTerm())
	s.Log.Info("region connected", "region", c.region, "master", h.GetMaster(), "term", h.GetTerm(), "incarnation", h.GetIncarnation())
	c.wake()
	s.WakePlacer()
	return true, nil
}

// ordersCursor returns a cursor over the orders that a region lacks. held: the region got its orders in an earlier
// leadership term, and still has exactly those of now, so it lacks only their position. The lock is held.
func ordersCursor(st *state.State, r *state.Region, h *nusav1.RegionHello) (c *link.Cursor[state.Order], held *nusav1.Position) {
	at := link.Position{Epoch: h.GetOrders().GetEpoch(), Sequence: h.GetOrders().GetSequence()}
	if known := h.GetKnown().GetOrders(); known != 0 && at.Epoch != st.Epoch && known == state.HashOrders(st, r) {
		at = r.Orders.Position()
		held = &nusav1.Position{Epoch: at.Epoch, Sequence: at.Sequence}
	}
	return r.Orders.Cursor(at), held
}

// leadershipTerm returns the term in the form of welcomes and grants. The lock is held.
func leadershipTerm(st *state.State) *nusav1.LeadershipTerm {
	return &nusav1.LeadershipTerm{Number: st.Sessions.Term.Number, Nonce: st.Sessions.Term.Nonce}
}
