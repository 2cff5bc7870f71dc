package intakes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/broker"
	"github.com/nusa-scheduler/nusa/internal/webhook"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what happens soon. A NATS server that was killed may pass on a message
// again only after broker's ackWait, half a minute.
const patience = 2 * time.Minute

var errDown = errors.New("connection refused")

// fakeBroker is a queue in memory. What was not acknowledged comes again over the next connection.
type fakeBroker struct {
	mu      sync.Mutex
	waiting []*broker.Delivery
	buried  map[string]string // reasons by id
	acked   map[string]int
	held    int
	down    bool
	refused error // of dead letters
	conns   []*fakeConn
}

type fakeConn struct {
	*fakeBroker
	unacked map[*broker.Delivery]bool
	most    int
	lost    chan struct{}
	closed  bool
}

func newBroker() *fakeBroker {
	return &fakeBroker{buried: map[string]string{}, acked: map[string]int{}}
}

func (b *fakeBroker) add(id, body string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = append(b.waiting, &broker.Delivery{ID: id, Key: "jobs.new", Body: []byte(body)})
}

func (b *fakeBroker) dial(_ context.Context, _ *broker.Target, from broker.Intake) (broker.Consumer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return nil, errDown
	}
	c := &fakeConn{fakeBroker: b, unacked: map[*broker.Delivery]bool{}, most: from.InFlight, lost: make(chan struct{})}
	b.conns = append(b.conns, c)
	return c, nil
}

// refuse lets the broker take no dead letters.
func (b *fakeBroker) refuse(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused = err
}

// drop ends all connections.
func (b *fakeBroker) drop(down bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down = down
	for _, c := range b.conns {
		c.end()
	}
}

// end puts back what was not acknowledged. The lock is held.
func (c *fakeConn) end() {
	if c.closed {
		return
	}
	c.closed = true
	close(c.lost)
	var back []*broker.Delivery
	for d := range c.unacked {
		back = append(back, d)
	}
	slices.SortFunc(back, func(x, y *broker.Delivery) int { return len(x.ID)*1000 - len(y.ID)*1000 })
	c.waiting = append(back, c.waiting...)
}

func (c *fakeConn) Next(ctx context.Context) (*broker.Delivery, error) {
	for {
		if d, err := c.next(); d != nil || err != nil {
			return d, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

func (c *fakeConn) next() (*broker.Delivery, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, broker.ErrLost
	case len(c.waiting) == 0 || len(c.unacked) == c.most:
		return nil, nil
	}
	d := c.waiting[0]
	c.waiting = c.waiting[1:]
	c.unacked[d] = true
	return d, nil
}

func (c *fakeConn) Hold(*broker.Delivery) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held++
}

func (c *fakeConn) Ack(_ context.Context, d *broker.Delivery) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return broker.ErrLost
	}
	delete(c.unacked, d)
	c.acked[d.ID]++
	return nil
}

func (c *fakeConn) Bury(ctx context.Context, d *broker.Delivery, reason string) error {
	c.mu.Lock()
	refused := c.refused
	if refused == nil {
		c.buried[d.ID] = reason
	}
	c.mu.Unlock()
	if refused != nil {
		return refused
	}
	return c.Ack(ctx, d)
}

func (c *fakeConn) Lost() <-chan struct{} { return c.lost }

func (c *fakeConn) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end()
}

func (b *fakeBroker) count() (acked, buried, unacked int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.conns {
		if !c.closed {
			unacked += len(c.unacked)
		}
	}
	return len(b.acked), len(b.buried), unacked
}

// world is a store, and the intakes of one leadership term. jobs are what was submitted.
type world struct {
	t      *testing.T
	store  store.Store
	guard  store.Compare
	policy *webhook.Policy
	dial   func(context.Context, *broker.Target, broker.Intake) (broker.Consumer, error)

	mu     sync.Mutex
	offset time.Duration
	fault  error          // of submits
	keys   map[string]int // submits by idempotency key
	order  []string       // names of the jobs, the first time

	state *state.State
	term  *Term
	api   *Server
	end   func()
}

func policyOfTests() *webhook.Policy {
	return &webhook.Policy{AllowHTTP: true, AllowPrivate: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
}

func newWorld(t *testing.T, dial func(context.Context, *broker.Target, broker.Intake) (broker.Consumer, error)) *world {
	mem := store.NewMemory().Client()
	e, err := mem.Campaign(context.Background(), state.ElectionPrefix, "me", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		t: t, store: mem, guard: e.Guard(), dial: dial, keys: map[string]int{},
		policy: policyOfTests(),
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

func (w *world) begin() {
	w.t.Helper()
	w.state = state.New(state.Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	if err := w.state.Load(context.Background(), w.store); err != nil {
		w.t.Fatal(err)
	}
	commit := state.NewCommitter(w.state, w.store, w.guard)
	term := NewTerm(Config{
		State: w.state, Commit: commit, Store: w.store, Policy: w.policy, Metrics: NewMetrics(), Log: slog.New(slog.DiscardHandler),
		Submit: w.submit, Dial: w.dial, Now: w.now, Random: func() float64 { return 0.5 },
	})
	w.term, w.api = term, &Server{Current: func() *Term { return term }}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = commit.Run(ctx) })
	running.Go(func() { _ = term.Run(ctx) })
	w.end = func() { cancel(); running.Wait() }
}

func (w *world) restart() {
	w.end()
	w.begin()
}

// submit stores a job, once for each idempotency key.
func (w *world) submit(_ context.Context, in *nusav1.Intake, _ string, req *nusav1.SubmitRequest) func(context.Context) error {
	return func(context.Context) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.fault != nil {
			return w.fault
		}
		if w.keys[req.GetIdempotencyKey()]++; w.keys[req.GetIdempotencyKey()] == 1 {
			w.order = append(w.order, req.GetSpec().GetNamespace()+"/"+req.GetSpec().GetName())
		}
		return nil
	}
}

func (w *world) setFault(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault = err
}

func (w *world) jobs() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.order)
}

func (w *world) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Add(w.offset)
}

func (w *world) advance(d time.Duration) {
	w.mu.Lock()
	w.offset += d
	w.mu.Unlock()
	_, all := w.term.crew.All()
	for _, one := range all {
		one.notify()
	}
}

func (w *world) set(req *nusav1.SetIntakeRequest) *nusav1.Intake {
	w.t.Helper()
	out, err := w.api.Set(w.t.Context(), req)
	if err != nil {
		w.t.Fatal(err)
	}
	w.await("the intake "+out.GetName(), func() bool { return w.get(out.GetName()).GetStatus() != nil })
	return out
}

func (w *world) get(name string) *nusav1.Intake {
	w.t.Helper()
	out, err := w.api.Get(w.t.Context(), &nusav1.GetIntakeRequest{Name: name})
	if err != nil {
		w.t.Fatal(err)
	}
	return out
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

func from(name, url string) *nusav1.SetIntakeRequest {
	return &nusav1.SetIntakeRequest{
		Intake: &nusav1.Intake{Name: name, Broker: &nusav1.Broker{Urls: []string{url}, User: "nusa"}}, Secrets: &nusav1.BrokerSecrets{Password: "pa55"},
	}
}

// jobFile returns a small job file.
func jobFile(name string) string {
	return fmt.Sprintf("name: %s\ngroups: {web: {tasks: {t: {driver: process, config: {command: /bin/true}, resources: {cpu: 10m, memory: 1MiB}}}}}\n", name)
}
