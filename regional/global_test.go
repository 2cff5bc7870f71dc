package regional_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/tunnel"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// regionLease is the length of the region's lease.
const regionLease = 6 * time.Second

// fakeGlobal is a global tier that handles slots as the protocol demands. It can end the
// stream at any message.
type fakeGlobal struct {
	nusav1.UnimplementedFederationServer
	w   *world
	srv *grpc.Server
	hub *tunnel.Hub

	mu        sync.Mutex
	revision  int64
	orders    *link.Outbox[*nusav1.SlotOrder]
	changed   chan struct{}
	sessions  int
	hellos    []*nusav1.RegionHello
	answers   []*nusav1.SlotAnswer
	reports   []*nusav1.RegionReport
	summaries map[string]*nusav1.JobSummary
	known     link.Position // position of the received summaries
	leases    int
	goodbyes  int
	shapes    []*nusav1.ShapeSubscription
	tunnels   []string
	peers     []*nusav1.PeerRegion
	edges     []*nusav1.Edge
	queued    []*nusav1.GlobalMessage // sent next
	// federation, term and fence are part of the welcome and of each grant. The basis of a
	// grant is ahead of the last slot order by this many orders.
	federation string
	// refuse is the response to a hello. nil: the region is welcome.
	refuse   *nusav1.Refused
	term     *nusav1.LeadershipTerm
	fence    uint64
	ahead    uint64
	requests []*nusav1.LeaseRequest
	// cut returns whether the stream ends before a message is handled ("up") or sent
	// ("down").
	cut func(direction string) bool
	// hasForms is the hash of the forms that the welcome says; nil: none is said. forms are those that arrived.
	hasForms *uint64
	forms    []*nusav1.DriverForms
}

func (w *world) startGlobal() *fakeGlobal {
	w.t.Helper()
	w.global = []string{globalAddr}
	g := &fakeGlobal{
		w: w, hub: tunnel.NewHub(tunnel.Options{}), orders: link.NewOutbox[*nusav1.SlotOrder]("etcd", 64),
		changed: make(chan struct{}), summaries: map[string]*nusav1.JobSummary{}, cut: func(string) bool { return false },
		federation: "fed", term: &nusav1.LeadershipTerm{Number: 1, Nonce: "n1"}, fence: 1,
	}
	g.serve()
	return g
}

func (g *fakeGlobal) serve() {
	lis, err := g.w.net.Net(globalIP).Listen(context.Background(), globalAddr)
	if err != nil {
		g.w.t.Fatal(err)
	}
	g.srv = grpc.NewServer()
	nusav1.RegisterFederationServer(g.srv, g)
	go func(l net.Listener) { _ = g.srv.Serve(l) }(lis)
}

func (g *fakeGlobal) stop() {
	_ = g.hub.Close()
	g.srv.Stop()
}

func (g *fakeGlobal) locked(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
}

// update changes the values to send and wakes the sessions.
func (g *fakeGlobal) update(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
	close(g.changed)
	g.changed = make(chan struct{})
}

// offer gives the region a slot of a job.
func (g *fakeGlobal) offer(s *nusav1.JobSpec, from, to int32) {
	s = proto.CloneOf(s)
	job.Default(s)
	raw, err := wire.Deterministic.Marshal(s)
	if err != nil {
		g.w.t.Fatal(err)
	}
	g.update(func() {
		g.revision++
		slot := &nusav1.Slot{Namespace: "default", Job: s.GetName(), Group: "web", From: from, To: to, Region: regionName,
			State: nusav1.SlotState_SLOT_STATE_OFFERED, Desired: nusav1.SlotDesired_SLOT_DESIRED_RUN, Generation: g.revision, JobVersion: 1}
		g.orders.Put(slotKey(slot.Job, from), &nusav1.SlotOrder{Slot: slot, Spec: raw, Revision: g.revision})
	})
}

func slotKey(job string, from int32) string { return fmt.Sprintf("default/%s/web/%d", job, from) }

// setDesired changes the desired state of a slot.
func (g *fakeGlobal) setDesired(job string, from int32, desired nusav1.SlotDesired) {
	g.update(func() {
		old, held := g.orders.Get(slotKey(job, from))
		if !held {
			g.w.t.Errorf("the region has no slot %s/%d", job, from)
			return
		}
		g.revision++
		o := proto.CloneOf(old)
		o.Slot.Desired, o.Revision = desired, g.revision
		g.orders.Put(slotKey(job, from), o)
	})
}

// slots returns the region's slots, for example "web[0-3] accepted".
func (g *fakeGlobal) slots() []string {
	var out []string
	g.locked(func() {
		cursor := g.orders.Cursor(link.Position{})
		for {
			b, more := cursor.Next(100)
			if !more || !b.Full {
				break
			}
			for _, i := range b.Items {
				s := i.Value.GetSlot()
				out = append(out, fmt.Sprintf("%s[%d-%d] %s", s.GetJob(), s.GetFrom(), s.GetTo()-1, strings.ToLower(strings.TrimPrefix(s.GetState().String(), "SLOT_STATE_"))))
			}
			if b.Last {
				break
			}
		}
	})
	slices.Sort(out)
	return out
}

// answer applies an answer as the global tier does. An answer is about a part of a slot of
// one generation. Refused, returned and ended parts are removed from the slot.
func (g *fakeGlobal) answer(a *nusav1.SlotAnswer) {
	g.answers = append(g.answers, a)
	for _, key := range g.keys() {
		o, _ := g.orders.Get(key)
		s := o.GetSlot()
		if s.GetJob() != a.GetJob() || s.GetGeneration() != a.GetGeneration() || a.GetFrom() < s.GetFrom() || a.GetTo() > s.GetTo() {
			continue
		}
		if a.GetState() == nusav1.SlotState_SLOT_STATE_ACCEPTED || a.GetState() == nusav1.SlotState_SLOT_STATE_DONE {
			if s.GetState() != a.GetState() {
				g.revision++
				o = proto.CloneOf(o)
				o.Slot.State, o.Revision = a.GetState(), g.revision
				g.orders.Put(key, o)
			}
			continue
		}
		g.orders.Delete(key)
		for _, part := range [][2]int32{{s.GetFrom(), a.GetFrom()}, {a.GetTo(), s.GetTo()}} {
			if part[0] < part[1] {
				g.revision++
				rest := proto.CloneOf(o)
				rest.Slot.From, rest.Slot.To, rest.Revision = part[0], part[1], g.revision
				g.orders.Put(slotKey(s.GetJob(), part[0]), rest)
			}
		}
	}
}

func (g *fakeGlobal) keys() []string {
	var out []string
	cursor := g.orders.Cursor(link.Position{})
	for {
		b, more := cursor.Next(100)
		if !more {
			return out
		}
		for _, i := range b.Items {
			out = append(out, i.Key)
		}
		if b.Last {
			return out
		}
	}
}

var errCut = status.Error(codes.Unavailable, "cut by the test")

// Session serves the stream of the region.
func (g *fakeGlobal) Session(stream grpc.BidiStreamingServer[nusav1.RegionMessage, nusav1.GlobalMessage]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	h := first.GetHello()
	var cursor *link.Cursor[*nusav1.SlotOrder]
	var known link.Position
	var refuse *nusav1.Refused
	welcome := &nusav1.GlobalWelcome{Session: "s", Lease: durationpb.New(regionLease), ReportInterval: durationpb.New(5 * time.Second), Protocol: 1}
	g.locked(func() {
		welcome.FederationId, welcome.LeadershipTerm, welcome.Fence, welcome.StoreRevision, welcome.FeatureLevel = g.federation, g.term, g.fence, g.revision, 1
		welcome.Forms = g.hasForms
		g.sessions++
		refuse = g.refuse
		g.hellos = append(g.hellos, h)
		cursor = g.orders.Cursor(link.Position{Epoch: h.GetOrders().GetEpoch(), Sequence: h.GetOrders().GetSequence()})
		known = g.known
	})
	send := func(m *nusav1.GlobalMessage) error {
		if g.cut("down") {
			return errCut
		}
		return stream.Send(m)
	}
	if refuse != nil {
		return send(&nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Refused{Refused: refuse}})
	}
	welcome.Summaries = &nusav1.Position{Epoch: known.Epoch, Sequence: known.Sequence}
	if err := send(&nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Welcome{Welcome: welcome}}); err != nil {
		return err
	}
	ended := make(chan error, 1)
	out := make(chan *nusav1.GlobalMessage, 64)
	go func() { ended <- g.receive(stream, out) }()
	for {
		var batches []link.Batch[*nusav1.SlotOrder]
		var changed chan struct{}
		var more []*nusav1.GlobalMessage
		g.locked(func() {
			changed = g.changed
			for b, some := cursor.Next(2); some; b, some = cursor.Next(2) {
				batches = append(batches, b)
			}
			if g.shapes != nil {
				more = append(more, &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Shapes{Shapes: &nusav1.ShapeSubscriptions{Asks: g.shapes}}})
			}
			for _, id := range g.tunnels {
				more = append(more, &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Tunnel{Tunnel: &nusav1.TunnelRequest{Id: id}}})
			}
			if g.peers != nil {
				more = append(more, &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Peers{Peers: &nusav1.PeerRegions{Regions: g.peers}}})
			}
			more = append(more, g.queued...)
			g.tunnels, g.shapes, g.peers, g.queued = nil, nil, nil, nil
		})
		for _, b := range batches {
			o := &nusav1.SlotOrders{Full: b.Full, Last: b.Last, Removed: b.Removed, Position: &nusav1.Position{Epoch: b.Position.Epoch, Sequence: b.Position.Sequence}}
			for _, i := range b.Items {
				o.Orders = append(o.Orders, i.Value)
			}
			more = append(more, &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Orders{Orders: o}})
		}
		for _, m := range more {
			if err := send(m); err != nil {
				return err
			}
		}
		select {
		case err := <-ended:
			return err
		case <-stream.Context().Done():
			return nil
		case m := <-out:
			if err := send(m); err != nil {
				return err
			}
		case <-changed:
		}
	}
}

func (g *fakeGlobal) receive(stream grpc.BidiStreamingServer[nusav1.RegionMessage, nusav1.GlobalMessage], out chan<- *nusav1.GlobalMessage) error {
	inbox := link.NewInbox[*nusav1.JobSummary](1000)
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if g.cut("up") {
			return errCut
		}
		switch k := m.GetKind().(type) {
		case *nusav1.RegionMessage_Lease:
			grant := &nusav1.LeaseGrant{Id: k.Lease.GetId(), Duration: durationpb.New(regionLease), Incarnation: 1}
			g.locked(func() {
				g.leases++
				g.requests = append(g.requests, k.Lease)
				at := g.orders.Position()
				grant.LeadershipTerm, grant.Fence = g.term, g.fence
				grant.Orders = &nusav1.Position{Epoch: at.Epoch, Sequence: at.Sequence + g.ahead}
			})
			out <- &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Lease{Lease: grant}}
		case *nusav1.RegionMessage_Answers:
			g.update(func() {
				for _, a := range k.Answers.GetAnswers() {
					g.answer(a)
				}
			})
		case *nusav1.RegionMessage_Report:
			g.locked(func() { g.reports = append(g.reports, k.Report) })
		case *nusav1.RegionMessage_Forms:
			g.locked(func() { g.forms = append(g.forms, k.Forms) })
		case *nusav1.RegionMessage_Latency:
			g.locked(func() { g.edges = append(g.edges, k.Latency.GetEdges()...) })
		case *nusav1.RegionMessage_Goodbye:
			g.locked(func() { g.goodbyes++ })
			return nil
		case *nusav1.RegionMessage_Summaries:
			if err := g.storeSummaries(inbox, k.Summaries); err != nil {
				return err
			}
		}
	}
}

func (g *fakeGlobal) storeSummaries(inbox *link.Inbox[*nusav1.JobSummary], s *nusav1.JobSummaries) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := link.Batch[*nusav1.JobSummary]{Full: s.GetFull(), Last: s.GetLast(), Removed: s.GetRemoved(),
		Position: link.Position{Epoch: s.GetPosition().GetEpoch(), Sequence: s.GetPosition().GetSequence()}}
	for _, x := range s.GetSummaries() {
		key := x.GetNamespace() + "/" + x.GetJob()
		if x.GetLocal() {
			key += "@" + regionName
		}
		b.Items = append(b.Items, link.Item[*nusav1.JobSummary]{Key: key, Value: x})
	}
	change, complete, err := inbox.Add(b, func(yield func(string) bool) {
		for k := range g.summaries {
			if !yield(k) {
				return
			}
		}
	})
	if err != nil || !complete {
		return err
	}
	for _, i := range change.Upserts {
		g.summaries[i.Key] = i.Value
	}
	for _, k := range change.Removed {
		delete(g.summaries, k)
	}
	g.known = change.Position
	return nil
}

// Tunnel serves a tunnel that the region opened.
func (g *fakeGlobal) Tunnel(stream tunnel.ServerStream) error { return g.hub.Serve(stream) }

// region returns a connection to the region's API through a tunnel.
func (g *fakeGlobal) region() *grpc.ClientConn {
	g.w.t.Helper()
	conn, err := g.hub.Conn("region", func(_ context.Context, id string) error {
		g.update(func() { g.tunnels = append(g.tunnels, id) })
		return nil
	})
	if err != nil {
		g.w.t.Fatal(err)
	}
	return conn
}

func (g *fakeGlobal) count(jobName string) *nusav1.InstanceCounts {
	var out *nusav1.InstanceCounts
	g.locked(func() { out = g.summaries["default/"+jobName].GetGroups()["web"] })
	return out
}

func (g *fakeGlobal) lastReport() *nusav1.RegionReport {
	var out *nusav1.RegionReport
	g.locked(func() {
		if n := len(g.reports); n > 0 {
			out = g.reports[n-1]
		}
	})
	return out
}
