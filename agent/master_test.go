package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/agent/ordertest"
	"github.com/nusa-scheduler/nusa/agent/store"
	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/notify"
	"github.com/nusa-scheduler/nusa/internal/tunnel"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// patience limits how long a test waits for something that must happen.
const patience = time.Minute

// server is a regional server that implements only the protocol. It can lose messages if
// the test asks for it.
type server struct {
	nusav1.UnimplementedDispatchServer
	t    *testing.T
	addr string
	grpc *grpc.Server
	hub  *tunnel.Hub
	done chan struct{}

	mu      sync.Mutex
	changed notify.Signal
	master  bool
	// hint is the master's address that a standby sends.
	hint     string
	servers  []string
	mark     store.MasterTerm
	lease    time.Duration
	silent   bool // the server grants no lease
	withhold bool // grants are empty
	// regionLeft is the remaining time of the region's lease in each grant.
	regionLeft time.Duration
	cluster    string
	refuse     *nusav1.Refused

	box      *link.Outbox[*nusav1.AllocOrder]
	acked    link.Position // position of the orders that the agent acknowledged
	reports  map[string]*nusav1.AllocReport
	position link.Position // position of the reports that the server committed
	fulls    []int         // sizes of the full sets of reports
	noAck    bool          // reports are received and not acknowledged
	hellos   []*nusav1.AgentHello
	invs     []*nusav1.NodeInventory
	stats    []*nusav1.NodeStats
	goodbyes int
	sessions map[*serverSession]bool
}

type serverSession struct {
	kick    context.CancelFunc
	welcome bool
	request chan string
}

func newServer(t *testing.T) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, addr: l.Addr().String(), grpc: grpc.NewServer(), hub: tunnel.NewHub(tunnel.Options{}),
		done: make(chan struct{}), lease: 10 * time.Second, cluster: "cluster-1",
		mark: store.MasterTerm{Incarnation: 1, Term: 1}, box: link.NewOutbox[*nusav1.AllocOrder]("raft", 100),
		reports: map[string]*nusav1.AllocReport{}, sessions: map[*serverSession]bool{}}
	nusav1.RegisterDispatchServer(s.grpc, s)
	go func() {
		defer close(s.done)
		_ = s.grpc.Serve(l)
	}()
	t.Cleanup(s.stop)
	return s
}

func (s *server) stop() {
	_ = s.hub.Close()
	s.grpc.Stop()
	<-s.done
}

// set changes the server under its lock and wakes its sessions.
func (s *server) set(f func()) {
	s.mu.Lock()
	f()
	s.mu.Unlock()
	s.changed.Notify()
}

func (s *server) list() *nusav1.ServerList {
	out := &nusav1.ServerList{}
	for _, a := range s.servers {
		out.Servers = append(out.Servers, &nusav1.RegionalServer{Address: a, Leader: s.master && a == s.addr})
	}
	return out
}

func (s *server) Tunnel(stream nusav1.Dispatch_TunnelServer) error { return s.hub.Serve(stream) }

func (s *server) Session(stream nusav1.Dispatch_SessionServer) error {
	first, err := stream.Recv()
	if err != nil || first.GetHello() == nil {
		return fmt.Errorf("no hello: %w", err)
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	ss := &serverSession{kick: cancel, request: make(chan string, 8)}
	s.set(func() {
		s.hellos = append(s.hellos, first.GetHello())
		s.sessions[ss] = true
	})
	defer s.set(func() { delete(s.sessions, ss) })
	s.mu.Lock()
	refuse, master := s.refuse, s.master
	s.mu.Unlock()
	if refuse != nil {
		return stream.Send(&nusav1.MasterMessage{Kind: &nusav1.MasterMessage_Refused{Refused: refuse}})
	}
	up := make(chan *nusav1.AgentMessage)
	go func() {
		defer cancel()
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case up <- m:
			case <-ctx.Done():
				return
			}
		}
	}()
	if !master {
		return s.standby(ctx, stream)
	}
	return s.serveMaster(ctx, stream, ss, first.GetHello(), up)
}

func (s *server) standby(ctx context.Context, stream nusav1.Dispatch_SessionServer) error {
	last := "?"
	for {
		changed := s.changed.C()
		s.mu.Lock()
		hint, list, master := s.hint, s.list(), s.master
		s.mu.Unlock()
		if master {
			return nil // the agent connects again
		}
		if hint != last {
			last = hint
			if err := stream.Send(&nusav1.MasterMessage{Kind: &nusav1.MasterMessage_Standby{Standby: &nusav1.Standby{MasterAddress: hint, Servers: list}}}); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

func (s *server) serveMaster(ctx context.Context, stream nusav1.Dispatch_SessionServer, ss *serverSession, hello *nusav1.AgentHello, up chan *nusav1.AgentMessage) error {
	s.mu.Lock()
	ss.welcome = true
	w := &nusav1.MasterWelcome{Session: "s", ClusterId: s.cluster, Incarnation: s.mark.Incarnation, Term: s.mark.Term,
		Lease: durationpb.New(s.lease), StatsInterval: durationpb.New(time.Second), Reports: positionToProto(s.position), Servers: s.list(), Protocol: 1}
	cursor := s.box.Cursor(positionFromProto(hello.GetOrders()))
	s.mu.Unlock()
	if err := stream.Send(&nusav1.MasterMessage{Kind: &nusav1.MasterMessage_Welcome{Welcome: w}}); err != nil {
		return err
	}
	inbox := link.NewInbox[*nusav1.AllocReport](1000)
	for {
		changed := s.changed.C()
		for {
			s.mu.Lock()
			b, more := cursor.Next(2) // small, so that sets have several batches
			s.mu.Unlock()
			if !more {
				break
			}
			m := &nusav1.AllocOrders{Full: b.Full, Last: b.Last, Removed: b.Removed, Position: positionToProto(b.Position)}
			for _, i := range b.Items {
				m.Orders = append(m.Orders, i.Value)
			}
			if err := stream.Send(&nusav1.MasterMessage{Kind: &nusav1.MasterMessage_Orders{Orders: m}}); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			s.mu.Lock()
			master := s.master
			s.mu.Unlock()
			if !master {
				return errors.New("no longer the master")
			}
		case id := <-ss.request:
			if err := stream.Send(&nusav1.MasterMessage{Kind: &nusav1.MasterMessage_Tunnel{Tunnel: &nusav1.TunnelRequest{Id: id}}}); err != nil {
				return err
			}
		case m := <-up:
			answer, err := s.take(m, inbox)
			if err != nil {
				return err
			}
			if answer != nil {
				if err := stream.Send(answer); err != nil {
					return err
				}
			}
		}
	}
}

// take handles an agent's message to its master.
func (s *server) take(m *nusav1.AgentMessage, inbox *link.Inbox[*nusav1.AllocReport]) (*nusav1.MasterMessage, error) {
	defer s.changed.Notify()
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := m.GetOrdersAck(); p != nil {
		s.acked = positionFromProto(p)
	}
	if st := m.GetStats(); st != nil {
		s.stats = append(s.stats, st)
	}
	switch k := m.GetKind().(type) {
	case *nusav1.AgentMessage_Lease:
		if s.withhold {
			return &nusav1.MasterMessage{Kind: &nusav1.MasterMessage_Lease{Lease: &nusav1.LeaseGrant{Id: k.Lease.GetId()}}}, nil
		}
		if !s.silent {
			return &nusav1.MasterMessage{Kind: &nusav1.MasterMessage_Lease{Lease: &nusav1.LeaseGrant{
				Id: k.Lease.GetId(), Duration: durationpb.New(s.lease), RegionLeft: durationpb.New(s.regionLeft)}}}, nil
		}
	case *nusav1.AgentMessage_Inventory:
		s.invs = append(s.invs, k.Inventory)
	case *nusav1.AgentMessage_Goodbye:
		s.goodbyes++
		return nil, errors.New("the agent said goodbye")
	case *nusav1.AgentMessage_Reports:
		b := link.Batch[*nusav1.AllocReport]{Full: k.Reports.GetFull(), Last: k.Reports.GetLast(), Removed: k.Reports.GetRemoved(), Position: positionFromProto(k.Reports.GetPosition())}
		for _, r := range k.Reports.GetReports() {
			b.Items = append(b.Items, link.Item[*nusav1.AllocReport]{Key: r.GetId(), Value: r})
		}
		if s.noAck {
			return nil, nil
		}
		c, complete, err := inbox.Add(b, func(yield func(string) bool) {
			for id := range s.reports {
				if !yield(id) {
					return
				}
			}
		})
		if err != nil || !complete {
			return nil, err
		}
		if c.Full {
			s.fulls = append(s.fulls, len(c.Upserts))
		}
		for _, i := range c.Upserts {
			s.reports[i.Key] = i.Value
		}
		for _, id := range c.Removed {
			delete(s.reports, id)
		}
		s.position = c.Position
		return &nusav1.MasterMessage{Kind: &nusav1.MasterMessage_ReportsAck{ReportsAck: positionToProto(c.Position)}}, nil
	}
	return nil, nil
}

// kick ends every session.
func (s *server) kick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ss := range s.sessions {
		ss.kick()
	}
}

// until waits for a condition on the server, which is called under its lock.
func (s *server) until(what string, ok func() bool) {
	s.t.Helper()
	limit := time.After(patience)
	for {
		changed := s.changed.C()
		s.mu.Lock()
		done := ok()
		s.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-limit:
			s.mu.Lock()
			defer s.mu.Unlock()
			s.t.Fatalf("waited %s for: %s; reports %v", patience, what, s.reports)
		}
	}
}

// untilState waits until the agent reports an allocation in a state.
func (s *server) untilState(id string, state nusav1.AllocState) *nusav1.AllocReport {
	s.t.Helper()
	var rep *nusav1.AllocReport
	s.until(fmt.Sprintf("%s to be %s", id, state), func() bool {
		rep = s.reports[id]
		return rep.GetState() == state
	})
	return rep
}

// untilSession waits until the server has a session as the master.
func (s *server) untilSession() {
	s.t.Helper()
	s.until("a session", func() bool {
		for ss := range s.sessions {
			if ss.welcome {
				return true
			}
		}
		return false
	})
}

// conn returns a connection to the agent's services through a tunnel.
func (s *server) conn() *grpc.ClientConn {
	s.t.Helper()
	c, err := s.hub.Conn("agent", func(_ context.Context, id string) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		for ss := range s.sessions {
			if ss.welcome {
				ss.request <- id
				return nil
			}
		}
		return errors.New("no session")
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

// testOrder and batch make orders.
var testOrder, batch = ordertest.New, ordertest.Batch

func (s *server) order(o *nusav1.AllocOrder) {
	s.set(func() { s.box.PutAt(o.GetIndex(), o.GetAllocation().GetId(), o) })
}

func durationMillis(n int) *durationpb.Duration {
	return durationpb.New(time.Duration(n) * time.Millisecond)
}

func positionToProto(p link.Position) *nusav1.Position {
	return &nusav1.Position{Epoch: p.Epoch, Sequence: p.Sequence}
}

func positionFromProto(p *nusav1.Position) link.Position {
	return link.Position{Epoch: p.GetEpoch(), Sequence: p.GetSequence()}
}
