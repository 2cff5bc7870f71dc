package master

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/agent/engine"
	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Bounds and times of a session.
const (
	protocolVersion = 1
	// featureLevel is the value of AgentHello.feature_level. Level 1 means that the agent
	// enforces AllocOrder.binding.
	featureLevel = 1
	// noMasterLimit is how long the agent, without a session with a master, stays connected
	// to a server that knows no master. It is longer than an election. A server that is cut
	// off, for example after its restart, may not know the master that another server
	// knows.
	noMasterLimit = 3 * time.Second
	// greetLimit bounds the time from the dial to the server's first message.
	greetLimit = 5 * time.Second
	// goodbyeLimit bounds the time until the server ends the stream.
	goodbyeLimit = time.Second
	// maxBatchItems and maxBatchBytes bound the reports in one message.
	maxBatchItems, maxBatchBytes = 256, 256 << 10
	// maxTunnels bounds the concurrent tunnels of a session.
	maxTunnels = 16
	// defaultLease and defaultStats are used if a master sends no values.
	defaultLease, defaultStats = 15 * time.Second, 5 * time.Second
)

// Errors that end a session.
var (
	// ErrRefused: the server refuses this agent.
	ErrRefused = errors.New("refused")

	errMove      = errors.New("another server is the master")
	errOldMaster = errors.New("the server's leadership is over")
	errNoMaster  = errors.New("the server knows no master")
	errSilent    = errors.New("the server is silent")
	errLeft      = errors.New("the agent has left")
)

// refusalError is the error that the message Refused causes.
type refusalError struct {
	message   string
	permanent bool
}

func (r *refusalError) Error() string { return "refused by the regional server: " + r.message }
func (r *refusalError) Unwrap() error { return ErrRefused }

// sessionState is the role of a session's server.
type sessionState int

const (
	// greeting: the server has sent nothing yet.
	greeting sessionState = iota
	// standingBy: the server is not the master. The session stays open.
	standingBy
	// elected: the server named itself as the master. It ends the stream once it is ready
	// for a new session.
	elected
	// active: the server is the master. The session carries orders, reports and leases.
	active
)

// session is one stream to one server. The goroutine of its loop owns the fields that
// change.
type session struct {
	cfg    Config
	pool   *Pool
	slot   *slot
	addr   string
	log    *slog.Logger
	client nusav1.DispatchClient
	stream grpc.BidiStreamingClient[nusav1.AgentMessage, nusav1.MasterMessage]
	// discovery is for the instances of services.
	discovery nusav1.DiscoveryClient
	end       context.CancelCauseFunc
	group     *errgroup.Group
	ctx       context.Context

	received chan *nusav1.MasterMessage
	samples  chan sample
	inbox    *link.Inbox[*nusav1.AllocOrder]
	state    sessionState
	// reached says that the server has sent a message, and that the message was another
	// one than "no master is known".
	reached  bool
	watchdog *time.Timer

	// The fields below are used only in the state active.
	cursor  *link.Cursor[*nusav1.AllocReport]
	renewal *time.Timer
	silence time.Duration
	// latestGrant is the id of the latest grant of this session.
	latestGrant uint64
	// unsent has statistics, and stored has a position. Both are sent with the next message.
	// measured says that the agent has taken a first sample in this session.
	unsent   sample
	stored   *nusav1.Position
	measured bool
	// sentInventory is the inventory that the agent sent last.
	sentInventory *nusav1.NodeInventory
}

// sample is a measurement of the host, with the time of the measurement.
type sample struct {
	stats *nusav1.NodeStats
	at    time.Duration
}

// runSession holds one session with a server until it ends, and returns why it ended.
func (p *Pool) runSession(parent context.Context, l *slot, addr string) (err error) {
	base, end := context.WithCancelCause(parent)
	defer end(nil)
	creds := p.cfg.Credentials
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	p.contact.try(addr)
	sockets := p.cfg.Net
	sockets.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := p.cfg.Net.Dial(ctx, addr)
		if err != nil && !errors.Is(err, context.Canceled) {
			p.contact.dialFailed(addr, err)
		}
		return conn, err
	}
	conn, err := serve.Dial(sockets, addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		p.contact.end(addr, false, err)
		return err
	}
	defer conn.Close()
	group, ctx := errgroup.WithContext(base)
	s := &session{
		cfg: p.cfg, pool: p, slot: l, addr: addr, log: p.cfg.Log.With("server", addr), client: nusav1.NewDispatchClient(conn), discovery: nusav1.NewDiscoveryClient(conn),
		end: end, group: group, ctx: ctx,
		received: make(chan *nusav1.MasterMessage), samples: make(chan sample),
		inbox: link.NewInbox[*nusav1.AllocOrder](engine.MaxAllocs),
	}
	// A server that accepts the connection and sends nothing must not hold the slot.
	s.watchdog = time.AfterFunc(greetLimit, func() { end(fmt.Errorf("%w: no greeting within %s", errSilent, greetLimit)) })
	defer func() { s.watchdog.Stop() }()
	s.stream, err = s.client.Session(ctx)
	if err == nil {
		group.Go(s.receive)
		err = s.loop()
	}
	// Only the first cause counts, because later errors are its consequences.
	end(err)
	p.deactivate(s)
	_ = group.Wait()
	err = context.Cause(base)
	p.contact.end(addr, s.reached, err)
	if s.state == elected && errors.Is(err, io.EOF) {
		return errMove
	}
	return err
}

// receive passes messages to the loop, one at a time.
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

// loop handles all events of the session. It sends all messages, so that the stream has one
// writer.
func (s *session) loop() error {
	if err := s.hello(); err != nil {
		return err
	}
	s.renewal = time.NewTimer(time.Hour)
	s.renewal.Stop()
	defer s.renewal.Stop()
	for {
		reports, inventory := s.cfg.Reports.Changed(), s.cfg.Inventory.Changed()
		if s.state == active {
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
		case st := <-s.samples:
			if err := s.addSample(st); err != nil {
				return err
			}
		case <-s.pool.leaving:
			return s.goodbye()
		case <-reports:
		case <-inventory:
		}
	}
}

// addSample holds a sample back until the next message. It sends the sample at once in two
// cases: if it is the first one, because a user may be waiting, and if no message has
// carried the previous sample.
func (s *session) addSample(st sample) error {
	alone := s.unsent.stats != nil || !s.measured
	s.unsent, s.measured = st, true
	if alone {
		return s.send(&nusav1.AgentMessage{})
	}
	return nil
}

// send sends a message, with the unsent sample and the unsent acknowledgement.
func (s *session) send(m *nusav1.AgentMessage) error {
	if st := s.unsent.stats; st != nil {
		st.Age = durationpb.New(s.cfg.Clock() - s.unsent.at)
		m.Stats, s.unsent = st, sample{}
	}
	m.OrdersAck, s.stored = s.stored, nil
	if err := s.stream.Send(m); err != nil {
		return fmt.Errorf("session ended: %w", err)
	}
	return nil
}

func (s *session) hello() error {
	newest, stop, err := s.cfg.Engine.Newest(s.ctx)
	if err != nil {
		return err
	}
	s.sentInventory = s.cfg.Inventory.Get()
	return s.send(&nusav1.AgentMessage{Kind: &nusav1.AgentMessage_Hello{Hello: &nusav1.AgentHello{
		NodeId: s.cfg.NodeID, Name: s.cfg.Name, Region: s.cfg.Region, ClusterId: s.cfg.Cluster.ClusterID(),
		Inventory: s.sentInventory, Orders: positionToProto(s.pool.storedPosition()),
		Incarnation: newest.GetIncarnation(), Index: newest.GetIndex(),
		Address: s.cfg.Inventory.Address(), Protocol: protocolVersion, FeatureLevel: featureLevel,
		StopTime: durationpb.New(stop),
	}}})
}

// goodbye sends the master the message that the agent leaves, and ends the session.
func (s *session) goodbye() error {
	if s.state == active {
		if err := s.send(&nusav1.AgentMessage{Kind: &nusav1.AgentMessage_Goodbye{Goodbye: &nusav1.Goodbye{Message: "the agent was stopped"}}}); err != nil {
			return err
		}
	}
	if err := s.stream.CloseSend(); err != nil {
		return err
	}
	// The server ends the stream once it has received the message.
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

// requestLease asks for the leases, which count from now, and sets the time of the next
// request.
func (s *session) requestLease() error {
	id, next, ok := s.cfg.Engine.RequestLease(s.ctx, s.silence/3)
	if !ok {
		return context.Cause(s.ctx)
	}
	s.renewal.Reset(next)
	return s.send(&nusav1.AgentMessage{Kind: &nusav1.AgentMessage_Lease{Lease: &nusav1.LeaseRequest{Id: id, Granted: s.latestGrant}}})
}

// sendReports sends the reports that the master does not have.
func (s *session) sendReports() error {
	for {
		b, more := s.cfg.Reports.next(s.cursor)
		if !more {
			return nil
		}
		m := &nusav1.AllocReports{Full: b.Full, Last: b.Last, Removed: b.Removed, Position: positionToProto(b.Position)}
		for _, item := range b.Items {
			m.Reports = append(m.Reports, item.Value)
		}
		if err := s.send(&nusav1.AgentMessage{Kind: &nusav1.AgentMessage_Reports{Reports: m}}); err != nil {
			return err
		}
	}
}

// sendInventory sends the inventory if it has changed.
func (s *session) sendInventory() error {
	now := s.cfg.Inventory.Get()
	if now == s.sentInventory {
		return nil
	}
	s.sentInventory = now
	return s.send(&nusav1.AgentMessage{Kind: &nusav1.AgentMessage_Inventory{Inventory: now}})
}

// measure measures the host in its own goroutine, so that a slow measurement does not delay
// leases.
func (s *session) measure(every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if st, err := s.cfg.Inventory.Stats(s.ctx); err != nil {
			s.log.Warn("no statistics of the host", "error", err)
		} else {
			select {
			case s.samples <- sample{stats: st, at: s.cfg.Clock()}:
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

func positionToProto(p link.Position) *nusav1.Position {
	return &nusav1.Position{Epoch: p.Epoch, Sequence: p.Sequence}
}

func positionFromProto(p *nusav1.Position) link.Position {
	return link.Position{Epoch: p.GetEpoch(), Sequence: p.GetSequence()}
}
