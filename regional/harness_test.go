package regional_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional"
	"github.com/nusa-scheduler/nusa/sim/simnet"
)

// These tests run the real servers of one region in virtual time. Agents and the global
// tier are fakes.

const (
	regionName = "alpha"
	nodeLease  = 3 * time.Second
	clientIP   = "10.255.0.1"
	globalIP   = "10.0.0.1"
	globalAddr = globalIP + ":7600"
)

// world is a region under test.
type world struct {
	t      *testing.T
	net    *simnet.Network
	began  time.Time
	expect int
	global []string
	// probeRate bounds the probes. 0: the default.
	probeRate int
	// disk is the folder of the servers' data. Empty: the servers keep everything in
	// memory.
	disk    string
	log     *slog.Logger
	servers map[string]*process
	conns   map[string]*grpc.ClientConn
	agents  []*fakeAgent
	// plugins are further drivers, by the name of the agent. A test sets them before it starts the agent.
	plugins map[string][]*nusav1.DriverInfo
}

type process struct {
	cancel context.CancelFunc
	ended  chan error
}

// bubble runs a test in virtual time. expect is the bootstrap_expect of its servers.
func bubble(t *testing.T, expect int, test func(*testing.T, *world)) {
	synctest.Test(t, func(t *testing.T) {
		out := io.Discard
		if os.Getenv("NUSA_TEST_LOG") != "" {
			out = os.Stderr
		}
		w := &world{
			t: t, net: simnet.New(simnet.Options{}), began: time.Now(), expect: expect,
			log:     slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug})),
			servers: map[string]*process{}, conns: map[string]*grpc.ClientConn{},
		}
		defer w.close()
		test(t, w)
	})
}

func (w *world) clock() time.Duration { return time.Since(w.began) }

func serverIP(i int) string { return fmt.Sprintf("10.1.0.%d", i) }

func serverAddr(i int) string { return serverIP(i) + ":7610" }

// server starts server i. The configuration of the server has the gossip addresses of the
// servers in join.
func (w *world) server(i int, join ...int) {
	w.t.Helper()
	ip := serverIP(i)
	var addrs []string
	for _, j := range join {
		addrs = append(addrs, serverIP(j)+":7612")
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{cancel: cancel, ended: make(chan error, 1)}
	ready := make(chan struct{})
	name, dir := fmt.Sprintf("s%d", i), ""
	if w.disk != "" {
		dir = filepath.Join(w.disk, name)
	}
	go func() {
		p.ended <- regional.Run(ctx, regional.Config{
			Region: &nusav1.RegionDefinition{Name: regionName}, Name: name, InMemory: dir == "", DataDir: dir,
			GRPCAddr: ip + ":7610", RaftAddr: ip + ":7611", GossipAddr: ip + ":7612", ProbeAddr: ip + ":7613", HTTPAddr: "-",
			Join: addrs, BootstrapExpect: w.expect, Global: w.global, NodeLease: nodeLease, ProbeRate: w.probeRate,
			Net: w.net.Net(ip), Clock: w.clock, Logger: w.log.With("server", i),
			Ready: func(regional.Addresses) { close(ready) },
		})
	}()
	select {
	case <-ready:
	case err := <-p.ended:
		w.t.Fatalf("server %d did not start: %v", i, err)
	}
	w.servers[ip] = p
}

// kill ends a server and its machine at once.
func (w *world) kill(i int) {
	w.t.Helper()
	p := w.servers[serverIP(i)]
	delete(w.servers, serverIP(i))
	w.net.Kill(serverIP(i))
	p.cancel()
	<-p.ended
}

// stop ends a server by cancelling its context, like an operator's signal.
func (w *world) stop(i int) {
	w.t.Helper()
	p := w.servers[serverIP(i)]
	delete(w.servers, serverIP(i))
	p.cancel()
	if err := <-p.ended; err != nil {
		w.t.Errorf("server %d ended with %v", i, err)
	}
}

func (w *world) close() {
	for _, a := range w.agents {
		a.stop()
	}
	for _, c := range w.conns {
		_ = c.Close()
	}
	for ip, p := range w.servers {
		p.cancel()
		if err := <-p.ended; err != nil {
			w.t.Errorf("server %s ended with %v", ip, err)
		}
	}
	time.Sleep(time.Minute) // goroutines of libraries end after their time-outs
}

// conn returns a client's connection to server i.
func (w *world) conn(i int) *grpc.ClientConn {
	w.t.Helper()
	addr := serverAddr(i)
	if w.conns[addr] == nil {
		c, err := serve.Dial(w.net.Net(clientIP), addr)
		if err != nil {
			w.t.Fatal(err)
		}
		w.conns[addr] = c
	}
	return w.conns[addr]
}

// eventually waits in virtual time until ok returns true, at most a minute.
func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	for began := time.Now(); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			w.t.Fatalf("not after a minute: %s", what)
		}
	}
}

func callCtx() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 2*time.Second)
}

func (w *world) info(i int) *nusav1.InfoResponse {
	ctx, cancel := callCtx()
	defer cancel()
	r, err := nusav1.NewSystemClient(w.conn(i)).Info(ctx, &nusav1.InfoRequest{})
	if err != nil {
		return &nusav1.InfoResponse{}
	}
	return r
}

// master waits until exactly one of the servers leads and all servers return its address.
// It returns the number of that server.
func (w *world) master(among ...int) int {
	w.t.Helper()
	leads := 0
	w.eventually(fmt.Sprintf("one of %v leads", among), func() bool {
		leads = 0
		count, named := 0, map[string]bool{}
		for _, i := range among {
			r := w.info(i)
			named[r.GetLeaderAddress()] = true
			if r.GetLeader() {
				leads, count = i, count+1
			}
		}
		return count == 1 && len(named) == 1 && named[serverAddr(leads)]
	})
	return leads
}

func (w *world) allocs(i int, all bool) []*nusav1.Allocation {
	ctx, cancel := callCtx()
	defer cancel()
	r, err := nusav1.NewAllocationsClient(w.conn(i)).List(ctx, &nusav1.ListAllocationsRequest{All: all})
	if err != nil {
		return nil
	}
	return r.GetAllocations()
}

// running counts the running allocations by node name.
func (w *world) running(i int) map[string]int {
	out := map[string]int{}
	for _, a := range w.allocs(i, false) {
		if a.GetState() == nusav1.AllocState_ALLOC_STATE_RUNNING {
			out[a.GetNodeName()]++
		}
	}
	return out
}

func (w *world) node(i int, name string) *nusav1.Node {
	ctx, cancel := callCtx()
	defer cancel()
	n, err := nusav1.NewNodesClient(w.conn(i)).Get(ctx, &nusav1.GetNodeRequest{Id: name})
	if err != nil {
		return &nusav1.Node{}
	}
	return n
}

func spec(name string, count int32) *nusav1.JobSpec {
	return &nusav1.JobSpec{
		Name: name, Namespace: "default", Type: nusav1.JobType_JOB_TYPE_SERVICE,
		Groups: map[string]*nusav1.Group{"web": {
			Count: &count,
			Tasks: map[string]*nusav1.Task{"main": {
				Driver: "process", Config: command(), Resources: &nusav1.Resources{CpuMilli: 500, MemoryBytes: 256 << 20},
			}},
		}},
	}
}

func (w *world) submit(i int, s *nusav1.JobSpec) *nusav1.SubmitResponse {
	w.t.Helper()
	ctx, cancel := callCtx()
	defer cancel()
	r, err := nusav1.NewJobsClient(w.conn(i)).Submit(ctx, &nusav1.SubmitRequest{Spec: s})
	if err != nil {
		w.t.Fatalf("submit %s: %v", s.GetName(), err)
	}
	return r
}

// fakeAgent is an agent that runs nothing. react returns the agent's report about a new
// order.
type fakeAgent struct {
	w            *world
	id, name     string
	ip           string
	react        func(*nusav1.AllocOrder) *nusav1.AllocReport
	stats        func() *nusav1.NodeStats // sent with each heartbeat; nil: none
	leaves       bool                     // the agent sends a goodbye when it wakes up next
	capabilities []string                 // of the agent's driver
	level        uint32                   // the agent's feature level
	cancel       context.CancelFunc
	done         chan struct{}

	mu        sync.Mutex
	orders    map[string]*nusav1.AllocOrder
	position  *nusav1.Position
	cluster   string
	reports   *link.Outbox[*nusav1.AllocReport]
	grants    int
	latest    *nusav1.LeaseGrant
	welcomes  int
	refused   string
	wake      chan struct{}
	acked     *nusav1.Position
	fullSets  int
	tunnelIDs []string
	silent    bool   // the stream stays open, but nothing is sent or read
	onGrant   func() // called at each grant; nil: nothing
}

// runs reports every wanted allocation as running, and every other one as stopped.
func runs(o *nusav1.AllocOrder) *nusav1.AllocReport {
	r := &nusav1.AllocReport{Id: o.GetAllocation().GetId(), Incarnation: o.GetIncarnation(), Index: o.GetIndex(), State: nusav1.AllocState_ALLOC_STATE_RUNNING}
	if o.GetAllocation().GetDesired() == nusav1.AllocDesired_ALLOC_DESIRED_STOP {
		r.State = nusav1.AllocState_ALLOC_STATE_STOPPED
	}
	return r
}

// declines refuses every wanted allocation.
func declines(o *nusav1.AllocOrder) *nusav1.AllocReport {
	r := runs(o)
	if r.State == nusav1.AllocState_ALLOC_STATE_RUNNING {
		r.State, r.Declined, r.Reason = nusav1.AllocState_ALLOC_STATE_FAILED, true, nusav1.Reason_REASON_AGENT_BUSY
	}
	return r
}

// agent starts an agent on a node with 4 cores and 4 GiB. The agent's driver has the
// capabilities and self_fencing.
func (w *world) agent(name string, react func(*nusav1.AllocOrder) *nusav1.AllocReport, capabilities ...string) *fakeAgent {
	a := &fakeAgent{
		w: w, id: "node-" + name, name: name, ip: fmt.Sprintf("10.1.1.%d", len(w.agents)+1), react: react,
		orders: map[string]*nusav1.AllocOrder{}, reports: link.NewOutbox[*nusav1.AllocReport]("store-"+name, 64),
		wake: make(chan struct{}, 1), capabilities: append(capabilities, "self_fencing"),
	}
	w.agents = append(w.agents, a)
	a.start()
	return a
}

func (a *fakeAgent) start() {
	ctx, cancel := context.WithCancel(context.Background())
	a.cancel, a.done = cancel, make(chan struct{})
	go func() {
		defer close(a.done)
		a.run(ctx)
	}()
}

// stop ends the agent without a goodbye.
func (a *fakeAgent) stop() {
	a.cancel()
	<-a.done
}

func (a *fakeAgent) locked(f func(*fakeAgent)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f(a)
}

// run tries one server after the other. When a server names the master, run tries the
// master at once.
func (a *fakeAgent) run(ctx context.Context) {
	for i, next := 0, ""; ctx.Err() == nil; i++ {
		addr := next
		if addr == "" {
			addr = serverAddr(i%4 + 1)
		}
		next, _ = a.session(ctx, addr)
		timer := time.NewTimer(50 * time.Millisecond)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// session runs one session. If the server sent the master's address, session returns it.
func (a *fakeAgent) session(ctx context.Context, addr string) (string, error) {
	conn, err := serve.Dial(a.w.net.Net(a.ip), addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := nusav1.NewDispatchClient(conn).Session(ctx)
	if err != nil {
		return "", err
	}
	if err := stream.Send(&nusav1.AgentMessage{Kind: &nusav1.AgentMessage_Hello{Hello: a.hello()}}); err != nil {
		return "", err
	}
	first, err := stream.Recv()
	if err != nil {
		return "", err
	}
	if s := first.GetStandby(); s != nil {
		return s.GetMasterAddress(), nil
	}
	if r := first.GetRefused(); r != nil {
		a.locked(func(a *fakeAgent) { a.refused = r.GetMessage() })
		return "", nil
	}
	a.locked(func(a *fakeAgent) {
		a.welcomes++
		a.cluster = first.GetWelcome().GetClusterId()
	})
	master := make(chan string, 1)
	go func() {
		defer cancel()
		master <- a.receive(stream)
	}()
	a.sendLoop(ctx, stream, first.GetWelcome())
	cancel()
	return <-master, nil
}

func (a *fakeAgent) hello() *nusav1.AgentHello {
	a.mu.Lock()
	defer a.mu.Unlock()
	newest := uint64(0)
	for _, o := range a.orders {
		newest = max(newest, o.GetIndex())
	}
	return &nusav1.AgentHello{
		NodeId: a.id, Name: a.name, Region: regionName, ClusterId: a.cluster, Address: a.ip, Protocol: 1, FeatureLevel: a.level,
		Orders: a.position, Index: newest,
		Inventory: &nusav1.NodeInventory{
			Capacity: &nusav1.Resources{CpuMilli: 4000, MemoryBytes: 4 << 30, DiskBytes: 10 << 30}, Pool: "default",
			Labels:  map[string]string{"name": a.name},
			Drivers: append([]*nusav1.DriverInfo{{Name: "process", Healthy: true, Capabilities: a.capabilities}}, a.w.plugins[a.name]...),
			PortMin: 20000, PortMax: 20099,
		},
	}
}

func (a *fakeAgent) receive(stream grpc.BidiStreamingClient[nusav1.AgentMessage, nusav1.MasterMessage]) string {
	inbox := link.NewInbox[*nusav1.AllocOrder](10_000)
	for {
		m, err := stream.Recv()
		if err != nil {
			return ""
		}
		switch k := m.GetKind().(type) {
		case *nusav1.MasterMessage_Standby:
			return k.Standby.GetMasterAddress()
		case *nusav1.MasterMessage_Lease:
			var onGrant func()
			a.locked(func(a *fakeAgent) { a.grants, a.latest, onGrant = a.grants+1, k.Lease, a.onGrant })
			if onGrant != nil {
				onGrant()
			}
		case *nusav1.MasterMessage_ReportsAck:
			a.locked(func(a *fakeAgent) { a.acked = k.ReportsAck })
		case *nusav1.MasterMessage_Tunnel:
			a.locked(func(a *fakeAgent) { a.tunnelIDs = append(a.tunnelIDs, k.Tunnel.GetId()) })
		case *nusav1.MasterMessage_Orders:
			if err := a.applyOrders(inbox, k.Orders); err != nil {
				a.w.t.Errorf("agent %s: %v", a.name, err)
				return ""
			}
		}
	}
}

func (a *fakeAgent) applyOrders(inbox *link.Inbox[*nusav1.AllocOrder], o *nusav1.AllocOrders) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	b := link.Batch[*nusav1.AllocOrder]{Full: o.GetFull(), Last: o.GetLast(), Removed: o.GetRemoved(),
		Position: link.Position{Epoch: o.GetPosition().GetEpoch(), Sequence: o.GetPosition().GetSequence()}}
	for _, x := range o.GetOrders() {
		b.Items = append(b.Items, link.Item[*nusav1.AllocOrder]{Key: x.GetAllocation().GetId(), Value: x})
	}
	change, complete, err := inbox.Add(b, func(yield func(string) bool) {
		for id := range a.orders {
			if !yield(id) {
				return
			}
		}
	})
	if err != nil || !complete {
		return err
	}
	if change.Full {
		a.fullSets++
	}
	for _, item := range change.Upserts {
		if len(item.Value.GetGroup()) == 0 {
			return fmt.Errorf("order %s carries no group", item.Key)
		}
		old := a.orders[item.Key]
		a.orders[item.Key] = item.Value
		if old == nil || old.GetIndex() != item.Value.GetIndex() {
			if r := a.react(item.Value); r != nil {
				a.reports.Put(item.Key, r)
			}
		}
	}
	for _, id := range change.Removed {
		delete(a.orders, id)
		a.reports.Delete(id)
	}
	a.position = &nusav1.Position{Epoch: change.Position.Epoch, Sequence: change.Position.Sequence}
	a.wakeSender()
	return nil
}

func (a *fakeAgent) wakeSender() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// sendLoop sends lease requests and reports until ctx ends.
func (a *fakeAgent) sendLoop(ctx context.Context, stream grpc.BidiStreamingClient[nusav1.AgentMessage, nusav1.MasterMessage], w *nusav1.MasterWelcome) {
	lease := time.NewTicker(w.GetLease().AsDuration() / 3)
	defer lease.Stop()
	a.mu.Lock()
	cursor := a.reports.Cursor(link.Position{Epoch: w.GetReports().GetEpoch(), Sequence: w.GetReports().GetSequence()})
	a.mu.Unlock()
	for id := uint64(1); ; id++ {
		for {
			a.mu.Lock()
			b, more := cursor.Next(100)
			a.mu.Unlock()
			if !more {
				break
			}
			out := &nusav1.AllocReports{Full: b.Full, Last: b.Last, Removed: b.Removed,
				Position: &nusav1.Position{Epoch: b.Position.Epoch, Sequence: b.Position.Sequence}}
			for _, i := range b.Items {
				out.Reports = append(out.Reports, i.Value)
			}
			if stream.Send(&nusav1.AgentMessage{Kind: &nusav1.AgentMessage_Reports{Reports: out}}) != nil {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
			leaves := false
			a.locked(func(a *fakeAgent) { leaves = a.leaves })
			if leaves {
				_ = stream.Send(&nusav1.AgentMessage{Kind: &nusav1.AgentMessage_Goodbye{Goodbye: &nusav1.Goodbye{Message: "bye"}}})
				<-ctx.Done()
				return
			}
		case <-lease.C:
			silent := false
			a.locked(func(a *fakeAgent) { silent = a.silent })
			if silent {
				continue
			}
			m := &nusav1.AgentMessage{Kind: &nusav1.AgentMessage_Lease{Lease: &nusav1.LeaseRequest{Id: id}}}
			a.locked(func(a *fakeAgent) {
				if a.stats != nil {
					m.Stats = a.stats()
				}
			})
			if stream.Send(m) != nil {
				return
			}
		}
	}
}

func command() *structpb.Struct {
	c, _ := structpb.NewStruct(map[string]any{"command": "sleep", "args": []any{"60"}})
	return c
}
