package parts

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	federationID = "parts"
	// epoch is the same in all processes, so a restarted process continues the numbers of
	// the orders. Regions have received all orders with lower numbers.
	epoch = "parts"
	// lease and reportInterval are the defaults of a global server.
	lease          = 15 * time.Second
	reportInterval = 5 * time.Second
	// ordersItems bounds the orders of one message.
	ordersItems = 1024
)

var term = &nusav1.LeadershipTerm{Number: 1, Nonce: "parts"}

type stream = grpc.BidiStreamingServer[nusav1.RegionMessage, nusav1.GlobalMessage]

// session is the stream of a region.
type session struct {
	region      string
	incarnation uint64
	stream      stream

	mu sync.Mutex
	// sending: a goroutine sends now. It also sends what is added meanwhile.
	sending bool
	// messages go before orders.
	messages []*nusav1.GlobalMessage
	orders   []*nusav1.SlotOrder
	// summarised is the position of summaries that have arrived. Its acknowledgement goes with
	// another message, because nobody waits for it.
	summarised *nusav1.Position
	// sequence is the number of the latest order that was sent.
	sequence uint64
}

// add queues an order. It reports whether the caller must call flush.
func (s *session) add(o *nusav1.SlotOrder) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.orders = append(s.orders, o)
	return len(s.orders) == 1
}

// post sends a message.
func (s *session) post(m *nusav1.GlobalMessage) {
	s.mu.Lock()
	s.messages = append(s.messages, m)
	s.mu.Unlock()
	s.flush()
}

// flush sends what is queued, unless another goroutine does so.
func (s *session) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sending {
		return
	}
	s.sending = true
	for m := s.next(); m != nil; m = s.next() {
		s.mu.Unlock()
		_ = s.stream.Send(m) // an error means that the stream has ended, which its handler knows
		s.mu.Lock()
	}
	s.sending = false
}

// next returns the next message, or nil. The caller holds s.mu.
func (s *session) next() *nusav1.GlobalMessage {
	switch {
	case len(s.messages)+len(s.orders) == 0:
		s.messages, s.orders = nil, nil
		return nil
	case s.summarised != nil:
		at := s.summarised
		s.summarised = nil
		return &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_SummariesAck{SummariesAck: at}}
	case len(s.messages) > 0:
		m := s.messages[0]
		s.messages = s.messages[1:]
		return m
	}
	n := min(len(s.orders), ordersItems)
	out := s.orders[:n:n]
	s.orders = s.orders[n:]
	s.sequence += uint64(n)
	return &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Orders{Orders: &nusav1.SlotOrders{Orders: out, Position: s.position()}}}
}

func (s *session) position() *nusav1.Position {
	return &nusav1.Position{Epoch: epoch, Sequence: s.sequence}
}

// federationAPI serves the streams of regions.
type federationAPI struct {
	nusav1.UnimplementedFederationServer
	p *parts
}

// Session implements nusav1.FederationServer.
func (f *federationAPI) Session(to stream) error {
	first, err := to.Recv()
	if err != nil {
		return err
	}
	h := first.GetHello()
	s := &session{region: h.GetDefinition().GetName(), incarnation: h.GetIncarnation(), stream: to, sequence: h.GetOrders().GetSequence()}
	if err := f.p.register(to.Context(), h); err != nil {
		return err
	}
	s.post(&nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Welcome{Welcome: &nusav1.GlobalWelcome{
		Session: s.region, Lease: durationpb.New(lease), ReportInterval: durationpb.New(reportInterval), Fence: h.GetFence(),
		Protocol: h.GetProtocol(), FederationId: federationID, LeadershipTerm: term, FeatureLevel: h.GetFeatureLevel(), Row: &nusav1.Position{},
	}}})
	f.p.join(s)
	defer f.p.leave(s)
	for {
		m, err := to.Recv()
		if err != nil {
			return err
		}
		switch k := m.GetKind().(type) {
		case *nusav1.RegionMessage_Lease:
			s.grant(k.Lease.GetId())
		case *nusav1.RegionMessage_Answers:
			err = f.p.accept(to.Context(), s, k.Answers.GetAnswers())
		case *nusav1.RegionMessage_Summaries:
			f.p.note(s.region, k.Summaries.GetSummaries())
			s.acknowledge(k.Summaries.GetPosition())
		case *nusav1.RegionMessage_Goodbye:
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (s *session) acknowledge(at *nusav1.Position) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.summarised = at
}

func (s *session) grant(id uint64) {
	s.mu.Lock()
	at := s.position()
	s.mu.Unlock()
	s.post(&nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Lease{Lease: &nusav1.LeaseGrant{
		Id: id, Duration: durationpb.New(lease), LeadershipTerm: term, Incarnation: s.incarnation, Orders: at,
	}}})
}

// register stores the record of a region that is not known yet.
func (p *parts) register(ctx context.Context, h *nusav1.RegionHello) error {
	name := h.GetDefinition().GetName()
	p.mu.Lock()
	known := p.known[name]
	p.known[name] = true
	p.mu.Unlock()
	if known {
		return nil
	}
	value, err := regionRecord(h)
	if err != nil {
		return err
	}
	done := make(chan int64, 1)
	err = p.put(ctx, request{
		puts: []store.Op{store.Put(regionPrefix+name, value)}, stored: func(revision int64, _ *outgoing) { done <- revision },
	})
	if err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *parts) join(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sessions = append(p.sessions, s)
}

func (p *parts) leave(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.sessions, s)
	p.sessions = slices.Delete(p.sessions, i, i+1)
}

// choose returns the next n regions whose turn it is.
func (p *parts) choose(n int) []*session {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.sessions) == 0 {
		return nil
	}
	out := make([]*session, n)
	for i := range out {
		out[i] = p.sessions[p.next%len(p.sessions)]
		p.next++
	}
	return out
}

// accept stores the slots that a region has accepted, and sends them back as accepted.
func (p *parts) accept(ctx context.Context, s *session, answers []*nusav1.SlotAnswer) error {
	r := request{patient: true}
	var accepted []*nusav1.Slot
	for _, a := range answers {
		key := slotKey(a.GetNamespace()+"/"+a.GetJob(), a.GetGroup(), a.GetFrom())
		p.mu.Lock()
		offered := p.offered[key]
		delete(p.offered, key)
		p.mu.Unlock()
		if offered == nil {
			continue // the answer is a repetition
		}
		now := acceptedSlot(offered)
		value, err := encode(now)
		if err != nil {
			return err
		}
		r.puts, accepted = append(r.puts, store.Put(slotPrefix+key, value)), append(accepted, now)
	}
	if len(accepted) == 0 {
		return nil
	}
	r.changes = len(accepted)
	r.stored = func(revision int64, out *outgoing) {
		for _, slot := range accepted {
			out.add(s, &nusav1.SlotOrder{Slot: slot, Revision: revision})
		}
	}
	return p.put(ctx, r)
}
