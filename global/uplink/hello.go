package uplink

import (
	"context"
	"fmt"
	"math"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// protocol is the version of the wire between regions and this tier.
	protocol = 1
	// maxServers bounds the servers of one region.
	maxServers = 64
	// maxHelloBytes bounds a hello.
	maxHelloBytes = 64 * 1024
	// maxSummaries bounds the summaries of one region: its jobs.
	maxSummaries = 200_000
)

// checkHello refuses a hello that a correct region would not send.
func checkHello(h *nusav1.RegionHello) error {
	switch {
	case h == nil:
		return &refusal{message: "the first message of a session must be a hello", permanent: true}
	case h.GetProtocol() != protocol:
		return &refusal{message: fmt.Sprintf("protocol %d is not understood here, %d is", h.GetProtocol(), protocol), permanent: true}
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
	hello := region.Hello{
		Stream: c.shared.Number, ClusterID: h.GetClusterId(), Incarnation: h.GetIncarnation(), Term: h.GetTerm(), Master: h.GetMaster(),
	}
	if err := s.register(ctx, h, hello); err != nil {
		return err
	}
	conn, err := s.Hub.Conn("region "+name, func(_ context.Context, id string) error {
		c.post(&nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Tunnel{Tunnel: &nusav1.TunnelRequest{Id: id}}})
		return nil
	})
	if err != nil {
		return fmt.Errorf("tunnels to region %s: %w", name, err)
	}
	c.region, c.shared.Conn = name, conn
	c.inbox = link.NewInbox[*nusav1.JobSummary](maxSummaries)
	if err := s.welcome(c, h, hello); err != nil {
		conn.Close()
		return err
	}
	return nil
}

// register stores the changes of a hello: an unknown region, its cluster, its
// incarnation. It steps a copy of the region's session state; welcome steps the
// state itself.
func (s *Server) register(ctx context.Context, h *nusav1.RegionHello, hello region.Hello) error {
	name, st := h.GetDefinition().GetName(), s.st
	st.Lock()
	life, rec := lifeOf(st, name)
	hello.BoundName = boundName(st, name, hello.ClusterID)
	_, effects := region.Step(st.RegionConfig, life, st.Clock(), hello)
	persist := rec == nil || (!rec.GetDefinedByOperator() && !proto.Equal(rec.GetDefinition(), h.GetDefinition()))
	st.Unlock()
	record := region.Record{Name: name, ClusterID: hello.ClusterID, Incarnation: hello.Incarnation, Term: hello.Term, Fence: life.Fence}
	for _, e := range effects {
		switch e.Kind {
		case region.Refuse:
			return &refusal{message: e.Message, permanent: e.Permanent}
		case region.Persist:
			persist, record = true, e.Record
		}
	}
	if !persist {
		return nil
	}
	_, err := s.Commit.Do(ctx, func(t *state.Tx) error {
		next := &nusav1.Region{Definition: h.GetDefinition()}
		if old, _ := t.Region(name); old != nil {
			next = proto.CloneOf(old)
			if !old.GetDefinedByOperator() {
				next.Definition = h.GetDefinition()
			}
		}
		next.ClusterId, next.Incarnation, next.Term, next.Fence = record.ClusterID, record.Incarnation, record.Term, record.Fence
		return t.PutRegion(name, next)
	})
	if err != nil {
		return state.RPCErrors.Err(fmt.Errorf("register region %s: %w", name, err))
	}
	if rec == nil {
		st.Events.Add("region.registered", name, "the region connected for the first time, cluster %s", hello.ClusterID)
	}
	return nil
}

// lifeOf returns a region's session state, a new one if the name is unknown. The
// lock is held.
func lifeOf(st *state.State, name string) (region.State, *nusav1.Region) {
	if r := st.Regions[name]; r != nil {
		return r.Life, r.Record
	}
	return region.Open(st.RegionConfig, region.Record{Name: name}, st.Clock()), nil
}

// boundName returns the other region that a cluster is bound to, "" for none.
// The lock is held.
func boundName(st *state.State, name, clusterID string) string {
	for _, other := range st.RegionNames() {
		if other != name && st.Regions[other].Life.ClusterID == clusterID {
			return other
		}
	}
	return ""
}

// welcome makes the stream the live one and queues the sets for the region.
func (s *Server) welcome(c *session, h *nusav1.RegionHello, hello region.Hello) error {
	st := s.st
	st.Lock()
	defer st.Unlock()
	r := st.Regions[c.region]
	switch {
	case c.closed:
		return state.ErrNotActive // endSession was called already and is called only once
	case r == nil:
		return &refusal{message: "the region was removed meanwhile"}
	}
	hello.BoundName = boundName(st, c.region, hello.ClusterID)
	next, effects := region.Step(st.RegionConfig, r.Life, st.Clock(), hello)
	for _, e := range effects {
		if e.Kind == region.Refuse {
			return &refusal{message: e.Message, permanent: e.Permanent}
		}
	}
	r.EndStream(effects)
	r.Life, r.Session, s.live[c.region] = next, &c.shared, c
	r.Master, r.MasterAddress, r.Servers, r.Version = h.GetMaster(), h.GetMasterAddress(), h.GetServers(), h.GetVersion()
	// This is a new session. Earlier refused work may fit now, and nodes that were
	// disconnected may be back.
	r.KeepReasonsOnly()
	r.Disconnected = nil
	c.cursor = r.Orders.Cursor(link.Position{Epoch: h.GetOrders().GetEpoch(), Sequence: h.GetOrders().GetSequence()})
	c.shared.Unsent = state.Unsent{Shapes: true, Column: true, Origins: true}
	c.columnAt, c.matrixAt = math.MinInt64/2, st.Clock()
	c.post(&nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Welcome{Welcome: &nusav1.GlobalWelcome{
		Session: fmt.Sprintf("%s-%d", st.Epoch, c.shared.Number), Lease: durationpb.New(s.Lease),
		ReportInterval: durationpb.New(s.ReportInterval), Fence: next.Fence, Protocol: protocol,
		Summaries: &nusav1.Position{Epoch: r.SummariesAt.Epoch, Sequence: r.SummariesAt.Sequence},
	}}})
	c.opened.Store(true)
	st.RegionsChanged() // marks the peers as unsent, those of this session too
	st.Events.Add("region.connected", c.region, "master %s, term %d", h.GetMaster(), h.GetTerm())
	s.Log.Info("region connected", "region", c.region, "master", h.GetMaster(), "term", h.GetTerm(), "incarnation", h.GetIncarnation())
	c.wake()
	s.WakePlacer()
	return nil
}
