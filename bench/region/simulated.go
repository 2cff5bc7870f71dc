package region

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/bench/report"
	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// maxReported bounds the reports of one message.
	maxReported = 256
	// maxHeld bounds the allocations of one simulated node.
	maxHeld = 4 * maxPerNode
)

// simulated is an agent without tasks. It receives and acknowledges orders, and reports at
// once that the ordered instances run.
type simulated struct {
	f *fleet
	n int

	// mu guards the fields below, because the receiver and the sender of heartbeats both
	// send.
	mu       sync.Mutex
	stream   grpc.BidiStreamingClient[nusav1.AgentMessage, nusav1.MasterMessage] // nil without a session
	cluster  string
	lease    uint64
	statsDue time.Duration // time since the last statistics, which are sent every statsEvery
	position link.Position
	held     map[string]uint64 // index of the latest order by allocation
	reports  *link.Outbox[instanceReport]
	cursor   *link.Cursor[instanceReport]
}

// instanceReport is the reported state of one allocation.
type instanceReport struct {
	state              nusav1.AllocState
	incarnation, index uint64
}

func newSimulated(f *fleet, n int) *simulated {
	const removals = 16
	return &simulated{f: f, n: n, held: map[string]uint64{}, reports: link.NewOutbox[instanceReport](f.storeID(n), removals)}
}

// run opens one session after another until ctx ends. It returns only errors that a retry
// cannot fix.
func (a *simulated) run(ctx context.Context) error {
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.f.leaving:
			return nil
		case <-retry.C:
		}
		if err := a.session(ctx); err != nil {
			return err
		}
		retry.Reset(a.f.backoff())
	}
}

// session runs one session until the session ends. It connects to the master that the
// fleet knows.
func (a *simulated) session(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !a.f.enter(ctx) {
		return nil
	}
	greeting := true
	defer func() {
		if greeting {
			a.f.leave()
		}
	}()
	conn, addr, err := a.f.conn(a.n)
	if err != nil {
		return err
	}
	silent := true
	defer func() {
		if silent && ctx.Err() == nil {
			a.f.lost(addr)
		}
	}()
	stream, err := nusav1.NewDispatchClient(conn).Session(ctx)
	if err != nil {
		return nil
	}
	if stream.Send(&nusav1.AgentMessage{Kind: &nusav1.AgentMessage_Hello{Hello: a.hello()}}) != nil {
		return nil
	}
	first, err := stream.Recv()
	if err != nil {
		return nil
	}
	switch k := first.GetKind().(type) {
	case *nusav1.MasterMessage_Refused:
		if k.Refused.GetPermanent() {
			return fmt.Errorf("simulated agent %d: refused by the region: %s", a.n, k.Refused.GetMessage())
		}
		return nil
	case *nusav1.MasterMessage_Standby:
		silent = false
		a.f.learn(k.Standby.GetServers())
		a.f.setMaster(k.Standby.GetMasterAddress())
		return nil
	case *nusav1.MasterMessage_Welcome:
		greeting = false
		a.f.learn(k.Welcome.GetServers())
		a.f.leave()
		if a.welcome(stream, k.Welcome) != nil {
			return nil
		}
	default:
		return fmt.Errorf("simulated agent %d: the first message is a %T", a.n, k)
	}
	a.f.connected.Add(1)
	defer a.f.connected.Add(-1)
	defer a.detach()
	inbox := link.NewInbox[*nusav1.AllocOrder](maxHeld)
	for {
		m, err := stream.Recv()
		if err != nil {
			return nil
		}
		switch k := m.GetKind().(type) {
		case *nusav1.MasterMessage_Orders:
			if err := a.orders(inbox, k.Orders); err != nil {
				return nil
			}
		case *nusav1.MasterMessage_Standby:
			silent = false
			a.f.setMaster(k.Standby.GetMasterAddress())
			return nil
		}
	}
}

func (a *simulated) hello() *nusav1.AgentHello {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &nusav1.AgentHello{
		NodeId: a.f.nodeID(a.n), Name: a.f.name(a.n), Region: a.f.region, ClusterId: a.cluster,
		Inventory: a.f.inventory(a.n), Orders: report.PositionToProto(a.position),
		Address: address(a.n), Protocol: report.ProtocolVersion,
	}
}

// welcome starts the session. It first sends a lease request with statistics, and then the
// reports that the master does not have. A real agent sends its reports first.
func (a *simulated) welcome(stream grpc.BidiStreamingClient[nusav1.AgentMessage, nusav1.MasterMessage], w *nusav1.MasterWelcome) error {
	a.f.intervals(w.GetLease().AsDuration(), w.GetStatsInterval().AsDuration())
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cluster, a.stream = w.GetClusterId(), stream
	a.cursor = a.reports.Cursor(report.PositionFromProto(w.GetReports()))
	a.statsDue = time.Duration(a.f.statsEvery.Load())
	if err := a.sendLease(); err != nil {
		return err
	}
	return a.sendReports()
}

func (a *simulated) detach() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stream = nil
}

// orders handles one message of orders. When all messages of a change have arrived, it
// applies, reports and acknowledges the change.
func (a *simulated) orders(inbox *link.Inbox[*nusav1.AllocOrder], m *nusav1.AllocOrders) error {
	b := link.Batch[*nusav1.AllocOrder]{
		Full: m.GetFull(), Last: m.GetLast(), Removed: m.GetRemoved(), Position: report.PositionFromProto(m.GetPosition()),
		Items: make([]link.Item[*nusav1.AllocOrder], 0, len(m.GetOrders())),
	}
	for _, o := range m.GetOrders() {
		b.Items = append(b.Items, link.Item[*nusav1.AllocOrder]{Key: o.GetAllocation().GetId(), Value: o})
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	change, whole, err := inbox.Add(b, maps.Keys(a.held))
	if err != nil || !whole {
		return err
	}
	for _, item := range change.Upserts {
		o := item.Value
		if index, known := a.held[item.Key]; known && index == o.GetIndex() {
			continue
		}
		a.held[item.Key] = o.GetIndex()
		r := instanceReport{state: nusav1.AllocState_ALLOC_STATE_RUNNING, incarnation: o.GetIncarnation(), index: o.GetIndex()}
		if o.GetAllocation().GetDesired() == nusav1.AllocDesired_ALLOC_DESIRED_STOP {
			r.state = nusav1.AllocState_ALLOC_STATE_STOPPED
		}
		a.reports.Put(item.Key, r)
	}
	for _, id := range change.Removed {
		delete(a.held, id)
		a.reports.Delete(id)
	}
	a.position = change.Position
	if a.stream == nil {
		return nil
	}
	return a.sendReports()
}

// sendReports sends the reports that the master does not have. The caller holds a.mu.
func (a *simulated) sendReports() error {
	for !a.f.noAck {
		b, more := a.cursor.Next(maxReported)
		if !more {
			return nil
		}
		m := &nusav1.AllocReports{
			Full: b.Full, Last: b.Last, Removed: b.Removed, Position: report.PositionToProto(b.Position),
			Reports: make([]*nusav1.AllocReport, 0, len(b.Items)),
		}
		for _, item := range b.Items {
			m.Reports = append(m.Reports, &nusav1.AllocReport{
				Id: item.Key, State: item.Value.state, Tasks: a.f.tasks[item.Value.state],
				Incarnation: item.Value.incarnation, Index: item.Value.index,
			})
		}
		if err := a.stream.Send(&nusav1.AgentMessage{Kind: &nusav1.AgentMessage_Reports{Reports: m}, OrdersAck: report.PositionToProto(a.position)}); err != nil {
			return err
		}
	}
	return nil
}

// beat sends a heartbeat if the agent has a session. It skips an agent that is sending
// another message, because every message counts as a heartbeat. A wait for that agent
// would delay the other agents of the sender.
func (a *simulated) beat() {
	if !a.mu.TryLock() {
		return
	}
	defer a.mu.Unlock()
	if a.stream != nil {
		_ = a.sendLease() // the receiver gets the same error
	}
}

// bye says goodbye if the agent has a session.
func (a *simulated) bye() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stream != nil {
		_ = a.sendGoodbye()
	}
}

// sendLease sends a lease request, which is the heartbeat. It adds statistics when these
// are due. The caller holds a.mu.
func (a *simulated) sendLease() error {
	a.lease++
	m := &nusav1.AgentMessage{Kind: &nusav1.AgentMessage_Lease{Lease: &nusav1.LeaseRequest{Id: a.lease}}}
	if every := time.Duration(a.f.statsEvery.Load()); a.statsDue >= every {
		m.Stats, a.statsDue = a.f.stats, a.statsDue-every
	}
	a.statsDue += time.Duration(a.f.lease.Load()) / 3
	return a.stream.Send(m)
}

// sendGoodbye says goodbye. The region then ends the stream. The caller holds a.mu.
func (a *simulated) sendGoodbye() error {
	err := a.stream.Send(&nusav1.AgentMessage{Kind: &nusav1.AgentMessage_Goodbye{Goodbye: &nusav1.Goodbye{Message: "the measurement has ended"}}})
	if err == nil {
		err = a.stream.CloseSend()
	}
	a.stream = nil
	return err
}
