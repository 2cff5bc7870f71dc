package agent

import (
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/nusa-scheduler/nusa/bench/report"
	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// leaseLasts and statsInterval are the lease of a node and the interval of its
	// statistics. They are a region's defaults.
	leaseLasts, statsInterval = 15 * time.Second, 5 * time.Second
	// maxOrders bounds the orders of one message.
	maxOrders = 256
	// maxHeld bounds the number of allocations that the agent may report.
	maxHeld = 20_000
)

// fakeMaster is a master for one agent. It sends orders and receives reports, but decides
// nothing and stores nothing.
type fakeMaster struct {
	nusav1.UnimplementedDispatchServer
	server *grpc.Server
	addr   string
	// report is called with every report, before it is acknowledged.
	report func(*nusav1.AllocReport)

	mu       sync.Mutex
	box      *link.Outbox[*nusav1.AllocOrder]
	index    uint64
	position link.Position // the position of the latest reports that were received
	known    map[string]bool
	changed  chan struct{} // capacity 1
	greeted  chan struct{} // closed when the first session begins
	once     sync.Once
}

func newFakeMaster(report func(*nusav1.AllocReport)) (*fakeMaster, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	o := &fakeMaster{server: grpc.NewServer(), addr: l.Addr().String(), report: report,
		box: link.NewOutbox[*nusav1.AllocOrder]("bench", 1024), known: map[string]bool{},
		changed: make(chan struct{}, 1), greeted: make(chan struct{})}
	nusav1.RegisterDispatchServer(o.server, o)
	go func() { _ = o.server.Serve(l) }() // ends when close stops the server
	return o, nil
}

func (o *fakeMaster) close() { o.server.Stop() }

// run orders a command. forget removes the order, which stops the command.
func (o *fakeMaster) run(id string, batch bool, command string, args ...string) error {
	list := make([]any, len(args))
	for i, a := range args {
		list[i] = a
	}
	config, err := structpb.NewStruct(map[string]any{"command": command, "args": list})
	if err != nil {
		return err
	}
	group, err := proto.Marshal(&nusav1.Group{Tasks: map[string]*nusav1.Task{"main": {Driver: "process", Config: config, KillTimeout: durationpb.New(time.Second)}}})
	if err != nil {
		return err
	}
	kind := "service"
	if batch {
		kind = "batch"
	}
	o.change(func(index uint64) {
		o.box.PutAt(index, id, &nusav1.AllocOrder{
			Allocation: &nusav1.Allocation{Id: id, Namespace: "default", Job: "bench", Group: "main", Desired: nusav1.AllocDesired_ALLOC_DESIRED_RUN,
				Resources: &nusav1.Resources{CpuMilli: 1, MemoryBytes: 1 << 20}},
			Group: group, JobType: kind, Incarnation: 1, Index: index,
		})
	})
	return nil
}

func (o *fakeMaster) forget(id string) { o.change(func(index uint64) { o.box.DeleteAt(index, id) }) }

func (o *fakeMaster) change(f func(index uint64)) {
	o.mu.Lock()
	o.index++
	f(o.index)
	o.mu.Unlock()
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

// Session serves the agent's session.
func (o *fakeMaster) Session(stream nusav1.Dispatch_SessionServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	if hello == nil {
		return fmt.Errorf("the first message is no hello")
	}
	o.mu.Lock()
	cursor, reports := o.box.Cursor(report.PositionFromProto(hello.GetOrders())), report.PositionToProto(o.position)
	o.mu.Unlock()
	if err := stream.Send(&nusav1.MasterMessage{Kind: &nusav1.MasterMessage_Welcome{Welcome: &nusav1.MasterWelcome{
		Session: "bench", Incarnation: 1, Term: 1, Lease: durationpb.New(leaseLasts), StatsInterval: durationpb.New(statsInterval), Reports: reports, Protocol: report.ProtocolVersion,
		Servers: &nusav1.ServerList{Servers: []*nusav1.RegionalServer{{Address: o.addr, Leader: true}}},
	}}}); err != nil {
		return err
	}
	o.once.Do(func() { close(o.greeted) })
	answers, failed := make(chan *nusav1.MasterMessage), make(chan error, 1)
	go func() { failed <- o.receive(stream, answers) }()
	for {
		var m *nusav1.MasterMessage
		select {
		case err := <-failed:
			return err
		case m = <-answers:
		case <-o.changed:
		}
		if m != nil {
			if err := stream.Send(m); err != nil {
				return err
			}
			continue
		}
		if err := o.sendOrders(stream, cursor); err != nil {
			return err
		}
	}
}

func (o *fakeMaster) sendOrders(stream nusav1.Dispatch_SessionServer, cursor *link.Cursor[*nusav1.AllocOrder]) error {
	for {
		o.mu.Lock()
		b, more := cursor.Next(maxOrders)
		o.mu.Unlock()
		if !more {
			return nil
		}
		m := &nusav1.AllocOrders{Full: b.Full, Last: b.Last, Removed: b.Removed, Position: report.PositionToProto(b.Position)}
		for _, item := range b.Items {
			m.Orders = append(m.Orders, item.Value)
		}
		if err := stream.Send(&nusav1.MasterMessage{Kind: &nusav1.MasterMessage_Orders{Orders: m}}); err != nil {
			return err
		}
	}
}

// receive handles the agent's messages until the stream ends.
func (o *fakeMaster) receive(stream nusav1.Dispatch_SessionServer, answers chan<- *nusav1.MasterMessage) error {
	inbox := link.NewInbox[*nusav1.AllocReport](maxHeld)
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		var answer *nusav1.MasterMessage
		switch k := m.GetKind().(type) {
		case *nusav1.AgentMessage_Lease:
			answer = &nusav1.MasterMessage{Kind: &nusav1.MasterMessage_Lease{Lease: &nusav1.LeaseGrant{Id: k.Lease.GetId(), Duration: durationpb.New(leaseLasts)}}}
		case *nusav1.AgentMessage_Reports:
			if answer, err = o.reports(inbox, k.Reports); err != nil {
				return err
			}
		case *nusav1.AgentMessage_Goodbye:
			return nil
		}
		if answer == nil {
			continue
		}
		select {
		case answers <- answer:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func (o *fakeMaster) reports(inbox *link.Inbox[*nusav1.AllocReport], m *nusav1.AllocReports) (*nusav1.MasterMessage, error) {
	b := link.Batch[*nusav1.AllocReport]{Full: m.GetFull(), Last: m.GetLast(), Removed: m.GetRemoved(), Position: report.PositionFromProto(m.GetPosition())}
	for _, r := range m.GetReports() {
		o.report(r)
		b.Items = append(b.Items, link.Item[*nusav1.AllocReport]{Key: r.GetId(), Value: r})
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	change, whole, err := inbox.Add(b, func(yield func(string) bool) {
		for id := range o.known {
			if !yield(id) {
				return
			}
		}
	})
	if err != nil || !whole {
		return nil, err
	}
	for _, item := range change.Upserts {
		o.known[item.Key] = true
	}
	for _, id := range change.Removed {
		delete(o.known, id)
	}
	o.position = change.Position
	return &nusav1.MasterMessage{Kind: &nusav1.MasterMessage_ReportsAck{ReportsAck: report.PositionToProto(change.Position)}}, nil
}
