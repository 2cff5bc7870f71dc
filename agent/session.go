package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/internal/tunnel"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Bounds and times of a session.
const (
	protocolVersion = 1
	// clueless is how long a server may know no master while the agent has none
	// either. Longer than an election: it may be the one that is cut off, as
	// just after its restart, and another may know better.
	clueless = 3 * time.Second
	// greetLimit is how long a server may take from the dial to its first
	// message.
	greetLimit = 5 * time.Second
	// maxBatchItems and maxBatchBytes of reports in one message.
	maxBatchItems, maxBatchBytes = 256, 256 << 10
	// maxTunnels that a session answers at a time.
	maxTunnels = 16
	// defaultLease and defaultStats where the master names none.
	defaultLease, defaultStats = 15 * time.Second, 5 * time.Second
)

// Errors that end a session.
var (
	// errRefused: the server will not have this agent.
	errRefused = errors.New("refused")
	// errMove: another server is the master.
	errMove = errors.New("another server is the master")
	// errSuperseded: a session with a newer master has begun.
	errSuperseded = errors.New("a newer master has taken over")
	// errOldMaster: the server is a master whose time is over.
	errOldMaster = errors.New("master of the past")
	// errNoMaster: a standby does not know who the master is.
	errNoMaster = errors.New("the server knows no master")
	// errSilent: nothing came from the master for a whole lease.
	errSilent = errors.New("the master is silent")
)

// session is one stream to one server, in one of two roles: with the master it
// carries everything, with any other server it waits, warm.
type session struct {
	*pool
	lane   *lane
	addr   string
	log    *slog.Logger
	client nusav1.DispatchClient
	stream grpc.BidiStreamingClient[nusav1.AgentMessage, nusav1.MasterMessage]
	end    context.CancelCauseFunc
	group  *errgroup.Group
	ctx    context.Context

	received chan *nusav1.MasterMessage
	stats    chan sample
	inbox    *link.Inbox[*nusav1.AllocOrder]

	// With the master only.
	active   bool
	cursor   *link.Cursor[*nusav1.AllocReport]
	renewal  *time.Timer
	watchdog *time.Timer
	silence  time.Duration
	// unsent are statistics, and stored a position of orders, that the next message
	// takes along; measured: the master has had statistics.
	unsent   sample
	stored   *nusav1.Position
	measured bool
	// told is the inventory the master knows.
	told *nusav1.NodeInventory
	// elected: the server named itself as the master. It ends the stream once
	// it is ready to be greeted as that.
	elected bool
}

// sample is a measurement of the host, and when it was made.
type sample struct {
	stats *nusav1.NodeStats
	at    time.Duration
}

// converse holds one session with a server until it ends, and says why.
func (p *pool) converse(parent context.Context, l *lane, addr string) error {
	base, end := context.WithCancelCause(parent)
	defer end(nil)
	creds := p.cfg.Credentials
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	conn, err := serve.Dial(p.cfg.Net, addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		return err
	}
	defer conn.Close()
	group, ctx := errgroup.WithContext(base)
	s := &session{
		pool: p, lane: l, addr: addr, log: p.log.With("server", addr), client: nusav1.NewDispatchClient(conn),
		end: end, group: group, ctx: ctx,
		received: make(chan *nusav1.MasterMessage), stats: make(chan sample),
		inbox: link.NewInbox[*nusav1.AllocOrder](maxAllocs),
	}
	// Until the first message: a server that takes the connection and says
	// nothing must not hold the lane.
	s.watchdog = time.AfterFunc(greetLimit, func() { end(fmt.Errorf("%w: no greeting within %s", errSilent, greetLimit)) })
	defer func() { s.watchdog.Stop() }()
	if s.stream, err = s.client.Session(ctx); err == nil {
		group.Go(s.receive)
		err = s.loop()
	}
	// The first reason counts: what broke because of it says less.
	end(err)
	p.deactivate(s)
	_ = group.Wait()
	if err = context.Cause(base); s.elected && errors.Is(err, io.EOF) {
		return errMove
	}
	return err
}

// receive hands messages to the loop, one at a time.
func (s *session) receive() error {
	for {
		m, err := s.stream.Recv()
		if err != nil {
			return fmt.Errorf("session ended: %w", err)
		}
		select {
		case s.received <- m:
		case <-s.ctx.Done():
			return nil
		}
	}
}

// loop sends everything that is sent, so that the stream has one writer.
func (s *session) loop() error {
	if err := s.hello(); err != nil {
		return err
	}
	s.renewal = time.NewTimer(time.Hour)
	s.renewal.Stop()
	defer s.renewal.Stop()
	for {
		grown, changed := s.engine.reports.grown.next(), s.inventory.changed.next()
		if s.active {
			if err := errors.Join(s.sendReports(), s.sendInventory()); err != nil {
				return err
			}
		}
		select {
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		case m := <-s.received:
			if err := s.handle(m); err != nil {
				return err
			}
		case <-s.renewal.C:
			if err := s.requestLease(); err != nil {
				return err
			}
		case st := <-s.stats:
			if err := s.sampled(st); err != nil {
				return err
			}
		case <-s.leaving:
			return s.goodbye()
		case <-grown:
		case <-changed:
		}
	}
}

// sampled keeps statistics for the next message. Only the first, for which
// somebody may be waiting, and those that nothing took along travel alone.
func (s *session) sampled(st sample) error {
	alone := s.unsent.stats != nil || !s.measured
	s.unsent, s.measured = st, true
	if alone {
		return s.send(&nusav1.AgentMessage{})
	}
	return nil
}

// send sends a message, and with it what waits to be taken along.
func (s *session) send(m *nusav1.AgentMessage) error {
	if st := s.unsent.stats; st != nil {
		st.Age = durationpb.New(s.engine.clock() - s.unsent.at)
		m.Stats, s.unsent = st, sample{}
	}
	m.OrdersAck, s.stored = s.stored, nil
	if err := s.stream.Send(m); err != nil {
		return fmt.Errorf("session ended: %w", err)
	}
	return nil
}

func (s *session) hello() error {
	id := s.identity()
	newest, err := s.engine.newest(s.ctx)
	if err != nil {
		return err
	}
	s.told = s.inventory.get()
	return s.send(&nusav1.AgentMessage{Kind: &nusav1.AgentMessage_Hello{Hello: &nusav1.AgentHello{
		NodeId: s.engine.node.id, Name: s.cfg.Name, Region: s.cfg.Region, ClusterId: id.cluster,
		Inventory: s.told, Orders: wirePosition(id.position),
		Incarnation: newest.GetIncarnation(), Index: newest.GetIndex(),
		StoreId: s.engine.store.id, Address: s.inventory.address(), Protocol: protocolVersion,
	}}})
}

// goodbye announces the leave, if this is the master, and ends the session.
func (s *session) goodbye() error {
	if s.active {
		if err := s.send(&nusav1.AgentMessage{Kind: &nusav1.AgentMessage_Goodbye{Goodbye: &nusav1.Goodbye{Message: "the agent was stopped"}}}); err != nil {
			return err
		}
	}
	if err := s.stream.CloseSend(); err != nil {
		return err
	}
	// The server answers by ending the stream: then the message has arrived.
	late := time.NewTimer(goodbyeLimit)
	defer late.Stop()
	for {
		select {
		case <-s.received:
		case <-s.ctx.Done():
			return errLeft
		case <-late.C:
			return errLeft
		}
	}
}

// goodbyeLimit is how long a server may take to end the stream.
const goodbyeLimit = time.Second

// errLeft: the agent has left on purpose.
var errLeft = errors.New("the agent has left")

func (s *session) handle(m *nusav1.MasterMessage) error {
	if s.active {
		s.watchdog.Reset(s.silence)
	}
	switch k := m.GetKind().(type) {
	case *nusav1.MasterMessage_Welcome:
		return s.welcome(k.Welcome)
	case *nusav1.MasterMessage_Standby:
		return s.standby(k.Standby)
	case *nusav1.MasterMessage_Refused:
		return &refusal{message: k.Refused.GetMessage(), permanent: k.Refused.GetPermanent()}
	case *nusav1.MasterMessage_Servers:
		s.learn(k.Servers)
	case *nusav1.MasterMessage_Lease:
		return s.granted(k.Lease)
	case *nusav1.MasterMessage_Orders:
		return s.orders(k.Orders)
	case *nusav1.MasterMessage_ReportsAck:
		s.engine.reports.ack(corePosition(k.ReportsAck))
	case *nusav1.MasterMessage_Tunnel:
		s.tunnel(k.Tunnel.GetId())
	}
	return nil // a newer server may say more than this agent understands
}

// refusal is a Refused message.
type refusal struct {
	message   string
	permanent bool
}

func (r *refusal) Error() string { return "refused by the regional server: " + r.message }
func (r *refusal) Unwrap() error { return errRefused }

// welcome makes this the session with the master.
func (s *session) welcome(w *nusav1.MasterWelcome) error {
	if err := s.activate(s, w); err != nil {
		return err
	}
	s.learn(w.GetServers())
	s.active = true
	s.silence = positive(w.GetLease().AsDuration(), defaultLease)
	s.watchdog.Stop()
	s.watchdog = time.AfterFunc(s.silence, func() { s.end(fmt.Errorf("%w for %s", errSilent, s.silence)) })
	s.engine.reports.ack(corePosition(w.GetReports())) // the last acknowledgement may not have come
	s.cursor = s.engine.reports.cursor(corePosition(w.GetReports()))
	s.log.Info("connected to the master", "term", w.GetTerm(), "incarnation", w.GetIncarnation())
	s.group.Go(func() error { return s.sampleStats(positive(w.GetStatsInterval().AsDuration(), defaultStats)) })
	// What the master lacks goes first: it makes a node that was away ready with
	// the first lease that it is asked for, and then judges by what it knows.
	if err := s.sendReports(); err != nil {
		return err
	}
	return s.requestLease()
}

// positive is d, or the default when the other side named none.
func positive(d, otherwise time.Duration) time.Duration {
	if d <= 0 {
		return otherwise
	}
	return d
}

// standby keeps this session warm, or ends it when the master is elsewhere and
// nobody talks to it.
func (s *session) standby(m *nusav1.Standby) error {
	s.watchdog.Stop()
	s.renewal.Stop()
	s.learn(m.GetServers())
	if s.active {
		s.active = false
		s.deactivate(s)
		s.hint(s.lane, m.GetMasterAddress())
		return errMove // its streams have state: start afresh
	}
	s.elected = m.GetMasterAddress() == s.addr
	if s.hint(s.lane, m.GetMasterAddress()) {
		return errMove
	}
	if m.GetMasterAddress() == "" && !s.connected() {
		s.watchdog = time.AfterFunc(clueless, func() { s.end(fmt.Errorf("%w for %s", errNoMaster, clueless)) })
	}
	return nil
}

// requestLease asks for the lease, counted from now, and arms the next request.
func (s *session) requestLease() error {
	var id uint64
	var next time.Duration
	if !s.engine.do(s.ctx, func() {
		id = s.engine.lease.Request(s.engine.clock())
		next = s.engine.lease.Renewal(s.silence / 3)
	}) {
		return context.Cause(s.ctx)
	}
	s.renewal.Reset(next)
	return s.send(&nusav1.AgentMessage{Kind: &nusav1.AgentMessage_Lease{Lease: &nusav1.LeaseRequest{Id: id}}})
}

func (s *session) granted(g *nusav1.LeaseGrant) error {
	if !s.active {
		return nil
	}
	ok := s.engine.do(s.ctx, func() {
		if s.engine.lease.Granted(g.GetId(), g.GetDuration().AsDuration()) {
			s.engine.renew(s.engine.lease.At(s.engine.clock()).Deadline)
		}
	})
	if !ok {
		return context.Cause(s.ctx)
	}
	return nil
}

// orders takes a batch; when a change is complete and stored, the next message
// acknowledges it.
func (s *session) orders(m *nusav1.AllocOrders) error {
	if !s.active {
		return nil
	}
	b := link.Batch[*nusav1.AllocOrder]{Full: m.GetFull(), Last: m.GetLast(), Removed: m.GetRemoved(), Position: corePosition(m.GetPosition())}
	for _, o := range m.GetOrders() {
		b.Items = append(b.Items, link.Item[*nusav1.AllocOrder]{Key: o.GetAllocation().GetId(), Value: o})
	}
	var known []string
	if b.Full && b.Last {
		var err error
		if known, err = s.engine.known(s.ctx); err != nil {
			return err
		}
	}
	change, complete, err := s.inbox.Add(b, slices.Values(known))
	if err != nil || !complete {
		return err
	}
	if err := s.engine.apply(s.ctx, change, func() bool { return s.owns(s) }); errors.Is(err, errOwed) {
		return nil // not acknowledged
	} else if err != nil {
		return err
	}
	s.setPosition(change.Position)
	s.stored = wirePosition(change.Position)
	return nil
}

// sendReports sends what the master lacks.
func (s *session) sendReports() error {
	for {
		b, more := s.engine.reports.next(s.cursor)
		if !more {
			return nil
		}
		m := &nusav1.AllocReports{Full: b.Full, Last: b.Last, Removed: b.Removed, Position: wirePosition(b.Position)}
		for _, item := range b.Items {
			m.Reports = append(m.Reports, item.Value)
		}
		if err := s.send(&nusav1.AgentMessage{Kind: &nusav1.AgentMessage_Reports{Reports: m}}); err != nil {
			return err
		}
	}
}

// sendInventory sends it when it is not the one the master was told.
func (s *session) sendInventory() error {
	now := s.inventory.get()
	if now == s.told {
		return nil
	}
	s.told = now
	return s.send(&nusav1.AgentMessage{Kind: &nusav1.AgentMessage_Inventory{Inventory: now}})
}

// sampleStats measures on its own time, so that a slow host does not delay
// leases.
func (s *session) sampleStats(every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if st, err := s.inventory.stats(s.ctx); err != nil {
			s.log.Warn("no statistics of the host", "error", err)
		} else {
			select {
			case s.stats <- sample{stats: st, at: s.engine.clock()}:
			case <-s.ctx.Done():
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			return nil
		}
	}
}

// tunnel answers a request for one. Who awaited it sees a failure as a missing
// answer.
func (s *session) tunnel(id string) {
	s.group.Go(func() error {
		err := tunnel.Answer(s.ctx, func(ctx context.Context) (tunnel.ClientStream, error) { return s.client.Tunnel(ctx) }, id, s.tunnels)
		if err != nil && s.ctx.Err() == nil {
			s.log.Warn("tunnel failed", "error", err)
		}
		return nil
	})
}

func wirePosition(p link.Position) *nusav1.Position {
	return &nusav1.Position{Epoch: p.Epoch, Sequence: p.Sequence}
}

func corePosition(p *nusav1.Position) link.Position {
	return link.Position{Epoch: p.GetEpoch(), Sequence: p.GetSequence()}
}
