package buses

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/broker"
	"github.com/nusa-scheduler/nusa/internal/notify"
	"github.com/nusa-scheduler/nusa/internal/webhook"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for something that happens at once.
const patience = 2 * time.Minute

// eventLog is a log of durable events in memory.
type eventLog struct {
	mu      sync.Mutex
	events  []*nusav1.Event // event n is at n-1
	removed uint64          // events up to this number are removed
	added   notify.Signal
}

func (l *eventLog) add(kind, subject string) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := uint64(len(l.events) + 1)
	l.events = append(l.events, &nusav1.Event{Type: kind, Subject: subject, Number: n, Log: "fed", Time: timestamppb.Now(), Message: "m"})
	l.added.Notify()
	return n
}

func (l *eventLog) retain(after uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removed = after
}

func (l *eventLog) After(_ context.Context, n uint64, max int) (events []*nusav1.Event, missed uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n < l.removed {
		missed = l.removed - n
		n = l.removed
	}
	rest := l.events[min(n, uint64(len(l.events))):]
	return slices.Clone(rest[:min(max, len(rest))]), missed, nil
}

func (l *eventLog) Added() <-chan struct{} { return l.added.C() }

func (l *eventLog) Last() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return uint64(len(l.events))
}

// fakeBroker is a broker in memory.
type fakeBroker struct {
	mu sync.Mutex
	// down: no connection is opened. refuse: this many messages are taken until one is refused; -1: all
	// are taken. hang: no message is confirmed until the context ends.
	down   bool
	refuse int
	hang   bool
	// ended says why the calls that hung have ended.
	ended []error
	got   []broker.Message
	open  int
	dials int
	lost  chan struct{}
}

var errDown = errors.New("connection refused")

func newBroker() *fakeBroker { return &fakeBroker{refuse: -1, lost: make(chan struct{})} }

func (b *fakeBroker) dial(context.Context, *broker.Target, broker.Sink) (broker.Publisher, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dials++
	if b.down {
		return nil, errDown
	}
	b.open++
	return b, nil
}

// Publish implements broker.Publisher.
func (b *fakeBroker) Publish(ctx context.Context, all []broker.Message) (int, error) {
	if b.hangs() {
		<-ctx.Done()
		b.set(func() { b.ended = append(b.ended, ctx.Err()) })
		return 0, ctx.Err()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, m := range all {
		if b.down {
			return i, broker.ErrLost
		}
		if b.refuse == 0 {
			return i, broker.ErrUnrouted
		}
		b.refuse = max(-1, b.refuse-1)
		b.got = append(b.got, m)
	}
	return len(all), nil
}

func (b *fakeBroker) hangs() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hang
}

// Lost implements broker.Publisher.
func (b *fakeBroker) Lost() <-chan struct{} { return b.lost }

// Close implements broker.Publisher.
func (b *fakeBroker) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open--
}

func (b *fakeBroker) set(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

func (b *fakeBroker) messages() []broker.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.got)
}

// world is a store, a log of events, and the delivery of one leadership term.
type world struct {
	t      *testing.T
	store  store.Store
	guard  store.Compare
	log    *eventLog
	policy *webhook.Policy
	dial   func(context.Context, *broker.Target, broker.Sink) (broker.Publisher, error)

	mu     sync.Mutex
	offset time.Duration

	state *state.State
	term  *Term
	api   *Server
	end   func()
}

func newWorld(t *testing.T, dial func(context.Context, *broker.Target, broker.Sink) (broker.Publisher, error)) *world {
	mem := store.NewMemory().Client()
	e, err := mem.Campaign(context.Background(), state.ElectionPrefix, "me", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		t: t, store: mem, guard: e.Guard(), log: &eventLog{}, dial: dial,
		policy: &webhook.Policy{AllowHTTP: true, AllowPrivate: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
	}
	w.begin()
	t.Cleanup(func() {
		w.end()
		if err := e.Resign(context.Background()); err != nil {
			t.Error(err)
		}
		mem.Close()
	})
	return w
}

// begin begins a term with what the store has.
func (w *world) begin() {
	w.t.Helper()
	w.state = state.New(state.Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	if err := w.state.Load(context.Background(), w.store); err != nil {
		w.t.Fatal(err)
	}
	commit := state.NewCommitter(w.state, w.store, w.guard)
	term := NewTerm(Config{
		State: w.state, Commit: commit, Store: w.store, Source: w.log, Policy: w.policy, Metrics: NewMetrics(), Log: slog.New(slog.DiscardHandler),
		Dial: w.dial, Now: w.now, Random: func() float64 { return 0.5 },
	})
	w.term, w.api = term, &Server{Current: func() *Term { return term }}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = commit.Run(ctx) })
	running.Go(func() { _ = term.Run(ctx) })
	w.end = func() { cancel(); running.Wait() }
}

// restart ends the term without a last write, as a kill does, and begins another one.
func (w *world) restart() {
	w.end()
	w.begin()
}

func (w *world) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Add(w.offset)
}

// advance lets time pass.
func (w *world) advance(d time.Duration) {
	w.mu.Lock()
	w.offset += d
	w.mu.Unlock()
	_, all := w.term.crew.All()
	for _, b := range all {
		b.notify()
	}
}

// set stores a bus, and waits until its delivery has begun.
func (w *world) set(req *nusav1.SetBusRequest) *nusav1.Bus {
	w.t.Helper()
	out, err := w.api.Set(w.t.Context(), req)
	if err != nil {
		w.t.Fatal(err)
	}
	w.await("delivery to "+out.GetName(), func() bool { return w.get(out.GetName()).GetStatus() != nil })
	return out
}

func (w *world) get(name string) *nusav1.Bus {
	w.t.Helper()
	out, err := w.api.Get(w.t.Context(), &nusav1.GetBusRequest{Name: name})
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// await waits until a condition holds.
// mustHave fails the test unless there is an event with a text.
func (w *world) mustHave(kind, text string) {
	w.t.Helper()
	all, _, err := w.state.Events.After(w.t.Context(), 0, 1000)
	if err != nil {
		w.t.Fatal(err)
	}
	if !slices.ContainsFunc(all, func(e *nusav1.Event) bool { return e.GetType() == kind && e.GetMessage() == text }) {
		w.t.Errorf("no event %s: %s", kind, text)
	}
}

func (w *world) await(what string, holds func() bool) {
	w.t.Helper()
	deadline := time.After(patience)
	for !holds() {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-deadline:
			w.t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

func (w *world) awaitStatus(name, what string, holds func(*nusav1.BusStatus) bool) {
	w.t.Helper()
	w.await(name+": "+what, func() bool { return holds(w.get(name).GetStatus()) })
}

func to(name, url string) *nusav1.SetBusRequest {
	return &nusav1.SetBusRequest{
		Bus: &nusav1.Bus{Name: name, Broker: &nusav1.Broker{Urls: []string{url}, User: "nusa"}}, Secrets: &nusav1.BrokerSecrets{Password: "pa55"},
	}
}
