package global

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// protocol is the version of the wire between regions and this tier; the
	// one before it is understood, too.
	protocol = 1
	// helloWait is how long a new stream may take to present itself.
	helloWait = 10 * time.Second
	// sessionQueue bounds what waits to be sent to a region besides the sets:
	// lease grants, acknowledgements, tunnel requests.
	sessionQueue = 256
	// ordersBytes and ordersItems bound a SlotOrders message.
	ordersBytes = 256 * 1024
	ordersItems = 1024
	// summariesMax bounds the summaries of one region: its jobs.
	summariesMax = 200_000
)

var errSlowRegion = errors.New("the region does not read fast enough")

// refusal ends a session with a text for the region.
type refusal struct {
	message   string
	permanent bool
}

func (r *refusal) Error() string { return r.message }

type federationStream = grpc.BidiStreamingServer[nusav1.RegionMessage, nusav1.GlobalMessage]

// session is one stream of a region's master. Fields without a remark are set
// before it is opened and do not change.
type session struct {
	a      *active
	number uint64
	cancel context.CancelCauseFunc
	out    chan *nusav1.GlobalMessage
	woken  chan struct{} // capacity 1
	opened atomic.Bool

	// Set by open, then only read.
	region string
	conn   *grpc.ClientConn
	inbox  *link.Inbox[*nusav1.JobSummary]
	epoch  uint64 // incarnation, for summaries

	// Guarded by the state's lock. closed: the handler has returned.
	closed       bool
	cursor       *link.Cursor[*nusav1.SlotOrder]
	acked        link.Position
	peersDirty   bool
	shapesDirty  bool
	columnDirty  bool
	originsDirty bool
	// columnAt is when the latest column was sent, compact the matrix to send,
	// compactAt when the latest was given, or the session opened before the first;
	// compactSent: there was one.
	columnAt    time.Duration
	compact     *nusav1.GlobalMessage
	compactAt   time.Duration
	compactSent bool
}

func (s *session) wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// post queues a message; a region that does not keep up is cut off.
func (s *session) post(m *nusav1.GlobalMessage) {
	select {
	case s.out <- m:
	default:
		s.cancel(errSlowRegion)
	}
}

// farewellWait is how long a refused region may take to read what was sent
// before.
const farewellWait = 2 * time.Second

// serveSession serves a region's stream. One goroutine sends and one receives;
// both end at the latest when this one has returned, since the stream ends
// then: so a region that stopped reading holds up nobody.
func (a *active) serveSession(stream federationStream) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	defer context.AfterFunc(a.ctx, func() { cancel(ErrNotActive) })()
	s := &session{
		a: a, number: a.streams.Add(1), cancel: cancel,
		out: make(chan *nusav1.GlobalMessage, sessionQueue), woken: make(chan struct{}, 1),
	}
	defer time.AfterFunc(helloWait, func() {
		if !s.opened.Load() {
			cancel(fmt.Errorf("no hello within %s", helloWait))
		}
	}).Stop()
	sent := make(chan struct{})
	go func() { cancel(s.receive(ctx, stream)) }()
	go func() {
		defer close(sent)
		cancel(s.send(ctx, stream))
	}()
	<-ctx.Done()
	cause := context.Cause(ctx)
	a.endSession(s, cause)
	return farewell(stream, sent, cause)
}

// send writes what waits until the session ends.
func (s *session) send(ctx context.Context, stream federationStream) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case m := <-s.out:
			if err := stream.Send(m); err != nil {
				return err
			}
		case <-s.woken:
			for {
				m := s.next()
				if m == nil {
					break
				}
				if err := stream.Send(m); err != nil {
					return err
				}
				if ctx.Err() != nil {
					return ctx.Err()
				}
			}
		}
	}
}

// farewell maps why a session ended to what the region is told: a refusal in a
// message of its own, once nobody else sends.
func farewell(stream federationStream, sent <-chan struct{}, cause error) error {
	var refused *refusal
	switch {
	case errors.As(cause, &refused):
		late := time.NewTimer(farewellWait)
		defer late.Stop()
		select {
		case <-sent:
		case <-late.C:
			return status.Error(codes.Unavailable, cause.Error())
		}
		return stream.Send(&nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Refused{
			Refused: &nusav1.Refused{Message: refused.message, Permanent: refused.permanent},
		}})
	case errors.Is(cause, errGoodbye):
		return nil
	case errors.Is(cause, ErrNotActive), errors.Is(cause, errSlowRegion):
		return status.Error(codes.Unavailable, cause.Error())
	case cause != nil && status.Code(cause) != codes.Unknown:
		return cause
	}
	return status.Errorf(codes.InvalidArgument, "session ended: %v", cause)
}

var errGoodbye = errors.New("the region said goodbye")

// receive reads until the stream ends, and answers why it ended.
func (s *session) receive(ctx context.Context, stream federationStream) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := s.a.open(ctx, s, first.GetHello()); err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := s.handle(ctx, m); err != nil {
			return err
		}
	}
}

func (s *session) handle(ctx context.Context, m *nusav1.RegionMessage) error {
	switch k := m.GetKind().(type) {
	case *nusav1.RegionMessage_Lease:
		s.a.lease(s, k.Lease.GetId())
	case *nusav1.RegionMessage_OrdersAck:
		s.a.st.mu.Lock()
		s.acked = link.Position{Epoch: k.OrdersAck.GetEpoch(), Sequence: k.OrdersAck.GetSequence()}
		s.a.st.mu.Unlock()
	case *nusav1.RegionMessage_Answers:
		return s.a.answers(ctx, s.region, k.Answers.GetAnswers())
	case *nusav1.RegionMessage_Report:
		s.a.report(s, k.Report)
	case *nusav1.RegionMessage_Summaries:
		return s.a.summaries(s, k.Summaries)
	case *nusav1.RegionMessage_Latency:
		s.a.latency(s, k.Latency)
	case *nusav1.RegionMessage_Update:
		s.a.serversChanged(s, k.Update.GetServers())
	case *nusav1.RegionMessage_Goodbye:
		return errGoodbye
	default:
		// A newer region may say more than this server understands.
	}
	return nil
}

// checkHello refuses what could not be a region, at the edge.
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

const (
	// maxServers bounds the servers of one region.
	maxServers = 64
	// maxHelloBytes bounds what a region says of itself.
	maxHelloBytes = 64 * 1024
)

// open makes the stream the region's session, or answers a refusal.
func (a *active) open(ctx context.Context, s *session, h *nusav1.RegionHello) error {
	if err := checkHello(h); err != nil {
		return err
	}
	name := h.GetDefinition().GetName()
	release, err := a.hellos.lock(ctx, name)
	if err != nil {
		return err
	}
	defer release()
	hello := region.Hello{
		Stream: s.number, ClusterID: h.GetClusterId(), Incarnation: h.GetIncarnation(), Term: h.GetTerm(), Master: h.GetMaster(),
	}
	if err := a.register(ctx, h, hello); err != nil {
		return err
	}
	conn, err := a.hub.Conn("region "+name, func(_ context.Context, id string) error {
		s.post(&nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Tunnel{Tunnel: &nusav1.TunnelRequest{Id: id}}})
		return nil
	})
	if err != nil {
		return fmt.Errorf("tunnels to region %s: %w", name, err)
	}
	s.region, s.conn, s.epoch = name, conn, h.GetIncarnation()
	s.inbox = link.NewInbox[*nusav1.JobSummary](summariesMax)
	if err := a.welcome(s, h, hello); err != nil {
		conn.Close()
		return err
	}
	return nil
}

// register stores what the hello changes: a region that nobody knew, its
// cluster, its incarnation. Step decides, on a copy; welcome takes the step.
func (a *active) register(ctx context.Context, h *nusav1.RegionHello, hello region.Hello) error {
	name := h.GetDefinition().GetName()
	a.st.mu.Lock()
	life, rec := a.st.lifeOf(name)
	hello.BoundName = a.st.boundName(name, hello.ClusterID)
	_, effects := region.Step(a.st.RegionConfig, life, a.st.Clock(), hello)
	persist := rec == nil || (!rec.GetDefinedByOperator() && !proto.Equal(rec.GetDefinition(), h.GetDefinition()))
	a.st.mu.Unlock()
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
	_, err := a.commit.Do(ctx, func(t *Tx) error {
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
		return apiError(fmt.Errorf("register region %s: %w", name, err))
	}
	if rec == nil {
		a.st.Events.Add("region.registered", name, "the region presented itself, cluster %s", hello.ClusterID)
	}
	return nil
}

// lifeOf answers a region's life, that of a region nobody knows if need be.
// mu is held.
func (st *State) lifeOf(name string) (region.State, *nusav1.Region) {
	if r := st.Regions[name]; r != nil {
		return r.Life, r.Record
	}
	return region.Open(st.RegionConfig, region.Record{Name: name}, st.Clock()), nil
}

// boundName is the other region that a cluster is bound to. mu is held.
func (st *State) boundName(name, clusterID string) string {
	for _, other := range st.RegionNames() {
		if other != name && st.Regions[other].Life.ClusterID == clusterID {
			return other
		}
	}
	return ""
}

// welcome makes the stream the live one and queues the sets for it.
func (a *active) welcome(s *session, h *nusav1.RegionHello, hello region.Hello) error {
	st := a.st
	st.mu.Lock()
	defer st.mu.Unlock()
	r := st.Regions[s.region]
	switch {
	case s.closed:
		return ErrNotActive // nobody would end this session
	case r == nil:
		return &refusal{message: "the region was removed meanwhile"}
	}
	hello.BoundName = st.boundName(s.region, hello.ClusterID)
	next, effects := region.Step(st.RegionConfig, r.Life, st.Clock(), hello)
	for _, e := range effects {
		switch e.Kind {
		case region.Refuse:
			return &refusal{message: e.Message, permanent: e.Permanent}
		}
	}
	r.end(effects)
	r.Life, r.Session = next, s
	r.Master, r.MasterAddress, r.Servers, r.Version = h.GetMaster(), h.GetMasterAddress(), h.GetServers(), h.GetVersion()
	r.KeepReasonsOnly()  // a new session: what it refused before may fit now
	r.Disconnected = nil // and what was away may be back
	s.cursor = r.Orders.Cursor(link.Position{Epoch: h.GetOrders().GetEpoch(), Sequence: h.GetOrders().GetSequence()})
	s.shapesDirty, s.columnDirty, s.originsDirty = true, true, true
	s.columnAt, s.compactAt = math.MinInt64/2, st.Clock()
	s.post(&nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Welcome{Welcome: &nusav1.GlobalWelcome{
		Session: fmt.Sprintf("%s-%d", st.Epoch, s.number), Lease: durationpb.New(a.cfg.Lease),
		ReportInterval: durationpb.New(a.cfg.ReportInterval), Fence: next.Fence, Protocol: protocol,
		Summaries: &nusav1.Position{Epoch: r.SummariesAt.Epoch, Sequence: r.SummariesAt.Sequence},
	}}})
	s.opened.Store(true)
	st.RegionsChanged() // marks peers, of this session too
	st.Events.Add("region.connected", s.region, "master %s, term %d", h.GetMaster(), h.GetTerm())
	a.log.Info("region connected", "region", s.region, "master", h.GetMaster(), "term", h.GetTerm(), "incarnation", h.GetIncarnation())
	s.wake()
	a.wakePlacer()
	return nil
}

// end carries out what a step says of the region's stream. mu is held.
func (r *Region) end(effects []region.Effect) {
	for _, e := range effects {
		if e.Kind == region.End && r.Session != nil && r.Session.number == e.Stream {
			r.Session.cancel(&refusal{message: e.Message})
		}
	}
}

// whyEnded is why a session ended, as people are told: of a connection that breaks
// gRPC says only that a context was canceled.
func whyEnded(cause error) string {
	if cause == nil || errors.Is(cause, context.Canceled) || status.Code(cause) == codes.Canceled {
		return "the connection ended"
	}
	return status.Convert(cause).Message()
}

// endSession is called once for each stream.
func (a *active) endSession(s *session, cause error) {
	a.st.mu.Lock()
	defer a.st.mu.Unlock()
	s.closed = true
	if !s.opened.Load() {
		return
	}
	s.conn.Close()
	r := a.st.Regions[s.region]
	if r == nil || r.Session != s {
		return
	}
	next, _ := region.Step(a.st.RegionConfig, r.Life, a.st.Clock(), region.StreamEnded{Stream: s.number})
	r.Life, r.Session = next, nil
	r.Stamp = a.st.Notify()
	a.st.Events.Add("region.disconnected", s.region, "its session ended: %s", whyEnded(cause))
	level := slog.LevelWarn
	if errors.Is(cause, errGoodbye) || a.ctx.Err() != nil {
		level = slog.LevelInfo // on purpose: theirs, or ours
	}
	a.log.Log(a.ctx, level, "region disconnected", "region", s.region, "why", cause)
	a.wakePlacer()
}

// lease answers a request with a grant, if the stream is the live one.
func (a *active) lease(s *session, id uint64) {
	a.st.mu.Lock()
	defer a.st.mu.Unlock()
	r := a.st.Regions[s.region]
	if r == nil || a.ctx.Err() != nil || a.election.At(a.cfg.Clock()).Left <= 0 {
		return // a successor may count on no lease that it did not see begin
	}
	next, effects := region.Step(a.st.RegionConfig, r.Life, a.st.Clock(), region.LeaseRequested{Stream: s.number, ID: id})
	r.Life = next
	for _, e := range effects {
		switch e.Kind {
		case region.End:
			s.cancel(&refusal{message: e.Message})
		case region.Grant:
			s.post(&nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Lease{
				Lease: &nusav1.LeaseGrant{Id: e.ID, Duration: durationpb.New(e.Lease)},
			}})
		}
	}
}
