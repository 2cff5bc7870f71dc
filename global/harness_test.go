package global

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/sets"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

func TestMain(m *testing.M) {
	// Members of one etcd in one process leave idle HTTP connections among
	// themselves; nothing else here does.
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
		goleak.IgnoreAnyFunction("net/http.(*conn).serve"), goleak.IgnoreAnyFunction("net/http.(*connReader).backgroundRead"))
}

// testWait bounds every wait of a test: far more than any step takes.
const testWait = time.Minute

// pipes is a network in memory.
type pipes struct {
	mu        sync.Mutex
	listeners map[string]*bufconn.Listener
}

func (p *pipes) net() network.Net {
	return network.Net{
		Listen: func(_ context.Context, addr string) (net.Listener, error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			l := bufconn.Listen(256 * 1024)
			p.listeners[addr] = l
			return l, nil
		},
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			p.mu.Lock()
			l := p.listeners[addr]
			p.mu.Unlock()
			if l == nil {
				return nil, fmt.Errorf("no listener at %s", addr)
			}
			return l.DialContext(ctx)
		},
	}
}

// federation holds the parts that the servers of a test share.
type federation struct {
	pipes *pipes
	mem   *store.Memory
}

func newFederation() *federation {
	return &federation{pipes: &pipes{listeners: map[string]*bufconn.Listener{}}, mem: store.NewMemory()}
}

// testServer is a running global server and a client of it.
type testServer struct {
	t     *testing.T
	addr  string
	store *store.MemoryClient
	conn  *grpc.ClientConn
	stop  func()
}

func (f *federation) start(t *testing.T, name string, change ...func(*Config)) *testServer {
	t.Helper()
	s := &testServer{t: t, addr: name + ":7600", store: f.mem.Client()}
	ready := make(chan Addresses, 1)
	cfg := Config{
		Name: name, GRPCAddr: s.addr, HTTPAddr: "-", Advertise: s.addr, Store: s.store, Net: f.pipes.net(),
		Logger: slog.New(slog.DiscardHandler), ReportInterval: 100 * time.Millisecond, ElectionTTL: 5 * time.Second,
		CheckpointInterval: 100 * time.Millisecond,
		Ready:              func(a Addresses) { ready <- a },
	}
	if os.Getenv("NUSA_TEST_LOG") != "" {
		cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("server", name)
	}
	for _, c := range change {
		c(&cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, cfg) }()
	stopped := false
	s.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("server %s ended with %v", name, err)
		}
		s.store.Close()
	}
	t.Cleanup(s.stop)
	select {
	case <-ready:
	case err := <-done:
		stopped = true
		t.Fatalf("server %s did not start: %v", name, err)
	case <-time.After(testWait):
		t.Fatalf("server %s is not ready", name)
	}
	s.conn = f.dial(t, s.addr)
	return s
}

func (f *federation) dial(t *testing.T, addr string) *grpc.ClientConn {
	t.Helper()
	n := f.pipes.net()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return n.Dial(ctx, addr) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func (s *testServer) jobs() nusav1.JobsClient { return nusav1.NewJobsClient(s.conn) }

// testJob returns a valid service with one group.
func testJob(name string, count int32, change ...func(*nusav1.JobSpec)) *nusav1.JobSpec {
	spec := &nusav1.JobSpec{
		Name: name,
		Groups: map[string]*nusav1.Group{"web": {
			Count: proto.Int32(count),
			Tasks: map[string]*nusav1.Task{"server": {
				Driver: "process", Resources: &nusav1.Resources{CpuMilli: 100, MemoryBytes: 64 << 20},
				Config: &structpb.Struct{Fields: map[string]*structpb.Value{"command": structpb.NewStringValue("/bin/true")}},
			}},
		}},
	}
	for _, c := range change {
		c(spec)
	}
	return spec
}

func (s *testServer) submit(spec *nusav1.JobSpec) *nusav1.SubmitResponse {
	s.t.Helper()
	resp, err := s.jobs().Submit(s.t.Context(), &nusav1.SubmitRequest{Spec: spec})
	if err != nil {
		s.t.Fatalf("submit %s: %v", spec.GetName(), err)
	}
	return resp
}

// waitJob waits until ok returns true for the job.
func (s *testServer) waitJob(name string, what string, ok func(*nusav1.Job) bool) *nusav1.Job {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), testWait)
	defer cancel()
	watch, err := s.jobs().Watch(ctx, &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: name}})
	if err != nil {
		s.t.Fatal(err)
	}
	var last *nusav1.Job
	for {
		j, err := watch.Recv()
		if err != nil {
			s.t.Fatalf("job %s is not %s: %v; last: %v", name, what, err, last.GetStatus())
		}
		last = j
		if ok(j) {
			return j
		}
	}
}

// fakeRegion is a scripted region: it stores the slots of its orders, and answers
// each change as its script says.
type fakeRegion struct {
	t      *testing.T
	hello  *nusav1.RegionHello
	stream grpc.BidiStreamingClient[nusav1.RegionMessage, nusav1.GlobalMessage]
	cancel context.CancelFunc
	ended  chan struct{}
	// flood: the region says that it has slots without end.
	flood atomic.Bool

	// sending is held while a message is sent, and from the arrival of a message
	// until all replies to it are sent. So a message that a test sends after an
	// arrival comes after the replies.
	sending sync.Mutex

	mu       sync.Mutex
	changed  chan struct{}
	welcome  *nusav1.GlobalWelcome
	refused  *nusav1.Refused
	err      error
	slots    map[string]*nusav1.SlotOrder
	position *nusav1.Position
	fullSets int
	orders   int
	grants   []*nusav1.LeaseGrant
	peers    *nusav1.PeerRegions
	shapes   *nusav1.ShapeSubscriptions
	column   *nusav1.LatencyColumn
	origins  *nusav1.OriginTable
	compact  *nusav1.CompactMatrix
	matrices int
	// The sets of a region that takes only the changes of sets. sizes counts bytes by kind of
	// message.
	peerList []*nusav1.PeerRegion
	asks     []*nusav1.ShapeSubscription
	columnAt *nusav1.Position
	edges    []topology.Edge // the edges of the latest change of the column that is not empty
	sizes    map[string][]int
	acked    *nusav1.Position
	tunnels  []string
	bare     bool // the region has no ready node
	noAck    bool // the region acknowledges no orders
	sequence uint64
	// script answers an order; nil = accept offers, confirm stops.
	script func(*nusav1.Slot) []*nusav1.SlotAnswer
	// fits is how often each subscribed ask fits; < 0: no report is sent.
	fits int32
	// drivers are those that the region reports. None: it does not say. moreDrivers: there are more.
	drivers     []string
	moreDrivers bool
	// trail is the audit trail of the region. nil: it has none.
	trail *regionTrail
	// overview serves the nodes of the region.
	overview regionOverview
}

func helloOf(name string, term uint64) *nusav1.RegionHello {
	return &nusav1.RegionHello{
		Definition: &nusav1.RegionDefinition{Name: name}, ClusterId: "cluster-" + name, Incarnation: 1, Term: term,
		Master: name + "-1", MasterAddress: name + ":7610", Protocol: 1,
		Servers: []*nusav1.RegionalServer{{Id: name + "-1", ProbeAddress: name + ":7613", Leader: true, Healthy: true}},
	}
}

// join opens a session of a region at a server.
func (s *testServer) join(hello *nusav1.RegionHello, change ...func(*fakeRegion)) *fakeRegion {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &fakeRegion{
		t: s.t, hello: hello, cancel: cancel, ended: make(chan struct{}), changed: make(chan struct{}),
		slots: map[string]*nusav1.SlotOrder{}, sizes: map[string][]int{}, fits: 100,
	}
	for _, c := range change {
		c(r)
	}
	var err error
	r.stream, err = nusav1.NewFederationClient(s.conn).Session(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	r.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Hello{Hello: hello}})
	go r.receive()
	s.t.Cleanup(r.leave)
	return r
}

// joined opens a session as join does, and waits for the welcome.
func (s *testServer) joined(name string, change ...func(*fakeRegion)) *fakeRegion {
	s.t.Helper()
	r := s.join(helloOf(name, 1), change...)
	r.wait("welcome", func() bool { return r.welcome != nil })
	return r
}

func (r *fakeRegion) leave() {
	r.cancel()
	<-r.ended
}

func (r *fakeRegion) send(m *nusav1.RegionMessage) {
	r.sending.Lock()
	defer r.sending.Unlock()
	// An error ends the stream, which receive notices.
	_ = r.stream.Send(m)
}

func (r *fakeRegion) receive() {
	defer close(r.ended)
	for {
		m, err := r.stream.Recv()
		r.sending.Lock()
		r.mu.Lock()
		if err != nil {
			r.err = err
			r.signal()
			r.mu.Unlock()
			r.sending.Unlock()
			return
		}
		out := r.handle(m)
		r.signal()
		r.mu.Unlock()
		for _, o := range out {
			_ = r.stream.Send(o)
		}
		r.sending.Unlock()
	}
}

func (r *fakeRegion) signal() {
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *fakeRegion) handle(m *nusav1.GlobalMessage) []*nusav1.RegionMessage {
	kind := strings.TrimPrefix(fmt.Sprintf("%T", m.GetKind()), "*nusav1.GlobalMessage_")
	r.sizes[kind] = append(r.sizes[kind], proto.Size(m))
	switch k := m.GetKind().(type) {
	case *nusav1.GlobalMessage_Welcome:
		r.welcome = k.Welcome
		return []*nusav1.RegionMessage{r.report()}
	case *nusav1.GlobalMessage_Refused:
		r.refused = k.Refused
	case *nusav1.GlobalMessage_Lease:
		r.grants = append(r.grants, k.Lease)
	case *nusav1.GlobalMessage_Peers:
		r.peers = k.Peers
	case *nusav1.GlobalMessage_Origins:
		r.origins = k.Origins
	case *nusav1.GlobalMessage_Column:
		r.column = k.Column
	case *nusav1.GlobalMessage_Matrix:
		r.compact = k.Matrix
		r.matrices++
	case *nusav1.GlobalMessage_SummariesAck:
		r.acked = k.SummariesAck
	case *nusav1.GlobalMessage_Tunnel:
		r.tunnels = append(r.tunnels, k.Tunnel.GetId())
	case *nusav1.GlobalMessage_Shapes:
		r.shapes = k.Shapes
		return []*nusav1.RegionMessage{r.report()}
	case *nusav1.GlobalMessage_PeerChanges:
		var err error
		if r.peerList, err = sets.MergePeers(r.hello.GetDefinition().GetName(), r.peerList, k.PeerChanges, 1000); err != nil {
			r.t.Error(err)
		}
	case *nusav1.GlobalMessage_ColumnChanges:
		edges, err := sets.UnpackColumn(r.hello.GetDefinition().GetName(), k.ColumnChanges.GetEdges(), 1000)
		if err != nil {
			r.t.Error(err)
		}
		r.columnAt = k.ColumnChanges.GetPosition()
		if len(edges) > 0 {
			r.edges = edges
		}
	case *nusav1.GlobalMessage_MatrixChanges:
		next, err := sets.MergeMatrix(r.compact, k.MatrixChanges, 1000)
		if err != nil {
			r.t.Error(err)
		}
		r.compact = next
	case *nusav1.GlobalMessage_AskChanges:
		return r.changeAsks(k.AskChanges)
	case *nusav1.GlobalMessage_Orders:
		return r.applyOrders(k.Orders)
	}
	return nil
}

func (r *fakeRegion) applyOrders(o *nusav1.SlotOrders) []*nusav1.RegionMessage {
	if o.GetFull() {
		r.slots = map[string]*nusav1.SlotOrder{}
		r.fullSets++
	}
	r.orders += len(o.GetOrders())
	for _, key := range o.GetRemoved() {
		delete(r.slots, key)
	}
	var answers []*nusav1.SlotAnswer
	for _, order := range o.GetOrders() {
		s := order.GetSlot()
		key := fmt.Sprintf("%s/%s/%s/%d", s.GetNamespace(), s.GetJob(), s.GetGroup(), s.GetFrom())
		if have := r.slots[key]; len(order.GetSpec()) == 0 && have.GetSlot().GetJobVersion() == s.GetJobVersion() {
			order.Spec = have.GetSpec() // a region's log keeps the spec of a version
		}
		r.slots[key] = order
		script := r.script
		if script == nil {
			script = agree
		}
		answers = append(answers, script(s)...)
	}
	r.position = o.GetPosition()
	var out []*nusav1.RegionMessage
	if !r.noAck {
		out = append(out, &nusav1.RegionMessage{Kind: &nusav1.RegionMessage_OrdersAck{OrdersAck: o.GetPosition()}})
	}
	if len(answers) > 0 {
		out = append(out, &nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Answers{Answers: &nusav1.SlotAnswers{Answers: answers}}})
	}
	return out
}

// agree is the script of a region that accepts everything.
func agree(s *nusav1.Slot) []*nusav1.SlotAnswer {
	switch {
	case s.GetDesired() == nusav1.SlotDesired_SLOT_DESIRED_STOP:
		return []*nusav1.SlotAnswer{answerTo(s, nusav1.SlotState_SLOT_STATE_STOPPED)}
	case s.GetState() == nusav1.SlotState_SLOT_STATE_OFFERED:
		return []*nusav1.SlotAnswer{answerTo(s, nusav1.SlotState_SLOT_STATE_ACCEPTED)}
	}
	return nil
}

func answerTo(s *nusav1.Slot, state nusav1.SlotState) *nusav1.SlotAnswer {
	return &nusav1.SlotAnswer{
		Namespace: s.GetNamespace(), Job: s.GetJob(), Group: s.GetGroup(), From: s.GetFrom(), To: s.GetTo(),
		Generation: s.GetGeneration(), State: state,
	}
}

func (r *fakeRegion) report() *nusav1.RegionMessage {
	r.sequence++
	rep := &nusav1.RegionReport{
		Sequence: r.sequence, NodesReady: 3, SlotsRevision: 1 << 40, Drivers: r.drivers, DriversTruncated: r.moreDrivers,
		Capacity: &nusav1.Resources{CpuMilli: 12000, MemoryBytes: 1 << 34}, Free: &nusav1.Resources{CpuMilli: 10000, MemoryBytes: 1 << 33},
		Shape: &nusav1.RegionShape{Bins: []*nusav1.ShapeBin{{Nodes: 1, Free: &nusav1.Resources{CpuMilli: 100 * int64(r.fits), MemoryBytes: 1 << 40, DiskBytes: 1 << 40}, Pool: "default"}}},
	}
	if r.bare {
		rep.NodesReady = 0
	}
	for _, a := range r.shapes.GetAsks() {
		rep.Shape.Fits = append(rep.Shape.Fits, &nusav1.FitCount{Ask: a.GetAsk(), Count: r.fits})
	}
	return &nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Report{Report: rep}}
}

func (r *fakeRegion) answer(answers ...*nusav1.SlotAnswer) {
	r.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Answers{Answers: &nusav1.SlotAnswers{Answers: answers}}})
}

// wait waits until ok holds. ok is called with the lock held.
func (r *fakeRegion) wait(what string, ok func() bool) {
	r.t.Helper()
	late := time.NewTimer(testWait)
	defer late.Stop()
	read := func() (good bool, changed chan struct{}, slots int, err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return ok(), r.changed, len(r.slots), r.err
	}
	for {
		good, changed, slots, err := read()
		if good {
			return
		}
		select {
		case <-changed:
		case <-late.C:
			r.t.Fatalf("region %s: no %s; %d slots, stream error %v", r.hello.GetDefinition().GetName(), what, slots, err)
		}
	}
}

// waitSlot waits until ok returns true for a slot, and returns the slot.
func (r *fakeRegion) waitSlot(key string, ok func(*nusav1.Slot) bool) *nusav1.Slot {
	r.t.Helper()
	var got *nusav1.Slot
	r.wait("slot "+key, func() bool {
		got = r.slots[key].GetSlot()
		return got != nil && ok(got)
	})
	return got
}

func inState(state nusav1.SlotState) func(*nusav1.Slot) bool {
	return func(s *nusav1.Slot) bool { return s.GetState() == state }
}

var accepted = inState(nusav1.SlotState_SLOT_STATE_ACCEPTED)

// summarize sends summaries as a full set or a delta.
func (r *fakeRegion) summarize(full bool, sequence uint64, sums ...*nusav1.JobSummary) {
	r.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Summaries{Summaries: &nusav1.JobSummaries{
		Full: full, Last: full, Summaries: sums, Position: &nusav1.Position{Epoch: "sum", Sequence: sequence},
	}}})
	r.wait("ack of summaries", func() bool { return r.acked.GetSequence() >= sequence })
}
