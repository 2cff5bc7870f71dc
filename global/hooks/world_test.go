package hooks

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/cloudevent"
	"github.com/nusa-scheduler/nusa/internal/notify"
	"github.com/nusa-scheduler/nusa/internal/webhook"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for something that happens at once.
const patience = time.Minute

// eventLog is a log of durable events in memory.
type eventLog struct {
	mu      sync.Mutex
	events  []*nusav1.Event // event n is at n-1
	removed uint64          // events up to this number are removed
	added   notify.Signal
}

func (l *eventLog) add(kind, subject, namespace string) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := uint64(len(l.events) + 1)
	l.events = append(l.events, &nusav1.Event{Type: kind, Subject: subject, Namespace: namespace, Number: n, Log: "fed", Time: timestamppb.Now(), Message: "m"})
	l.added.Notify()
	return n
}

// retain removes all events up to a number.
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

// endpoint is a receiver that counts what it accepted.
type endpoint struct {
	*httptest.Server
	mu       sync.Mutex
	answer   func(number uint64, attempt int) int // status; 0: never
	attempts map[uint64]int
	accepted map[uint64]int
	ids      map[uint64]map[string]bool
	headers  http.Header
	body     string
	stop     chan struct{}
	changed  notify.Signal
}

func newEndpoint(t *testing.T, answer func(number uint64, attempt int) int) *endpoint {
	e := &endpoint{answer: answer, attempts: map[uint64]int{}, accepted: map[uint64]int{}, ids: map[uint64]map[string]bool{}, stop: make(chan struct{})}
	e.Server = httptest.NewServer(http.HandlerFunc(e.serve))
	t.Cleanup(func() { close(e.stop); e.Close() })
	return e
}

func always(code int) func(uint64, int) int { return func(uint64, int) int { return code } }

func (e *endpoint) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var got cloudevent.Envelope
	if err := json.Unmarshal(body, &got); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	n := got.Data.Number
	e.mu.Lock()
	e.attempts[n]++
	if e.ids[n] == nil {
		e.ids[n] = map[string]bool{}
	}
	e.ids[n][r.Header.Get("webhook-id")] = true
	e.headers, e.body = r.Header.Clone(), string(body)
	code := e.answer(n, e.attempts[n])
	if code/100 == 2 {
		e.accepted[n]++
	}
	e.mu.Unlock()
	e.changed.Notify()
	if code == 0 {
		<-e.stop
		return
	}
	w.WriteHeader(code)
	_, _ = io.WriteString(w, "body of the endpoint")
}

func (e *endpoint) setAnswer(answer func(uint64, int) int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answer = answer
}

// await waits until a condition on the endpoint holds.
func (e *endpoint) await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	await(t, what, &e.changed, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return holds()
	})
}

// await waits until a condition holds. It checks again after each change, and from time to time.
func await(t *testing.T, what string, changed *notify.Signal, holds func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for {
		c := changed.C()
		if holds() {
			return
		}
		select {
		case <-c:
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// world is a store, a log of events, and the delivery of one leadership term.
type world struct {
	t      *testing.T
	store  store.Store
	guard  store.Compare
	log    *eventLog
	policy *webhook.Policy

	mu     sync.Mutex
	offset time.Duration
	writes int

	state  *state.State
	sender *Sender
	api    *Server
	end    func()
}

func newWorld(t *testing.T) *world {
	mem := store.NewMemory().Client()
	e, err := mem.Campaign(context.Background(), state.ElectionPrefix, "me", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		t: t, store: mem, guard: e.Guard(), log: &eventLog{},
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
	commit.Observe = func(n int, _ time.Duration) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.writes++
	}
	w.sender = New(Config{
		State: w.state, Commit: commit, Source: w.log, Policy: w.policy, Metrics: NewMetrics(), Log: slog.New(slog.DiscardHandler),
		Now: w.now, Random: func() float64 { return 0.5 },
	})
	sender := w.sender
	w.api = &Server{Current: func() *Sender { return sender }}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = commit.Run(ctx) })
	running.Go(func() { _ = sender.Run(ctx) })
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
	w.sender.mu.Lock()
	defer w.sender.mu.Unlock()
	for _, r := range w.sender.receivers {
		r.notify()
	}
}

// set stores a webhook, and waits until its delivery has begun.
func (w *world) set(req *nusav1.SetWebhookRequest) *nusav1.SetWebhookResponse {
	w.t.Helper()
	out, err := w.api.Set(w.t.Context(), req)
	if err != nil {
		w.t.Fatal(err)
	}
	name := req.GetWebhook().GetName()
	await(w.t, "delivery to "+name, &w.state.Webhooks.Changed, func() bool {
		w.sender.mu.Lock()
		defer w.sender.mu.Unlock()
		r := w.sender.receivers[name]
		return r != nil && r.revision == out.GetWebhook().GetRevision()
	})
	return out
}

func (w *world) get(name string) *nusav1.Webhook {
	w.t.Helper()
	out, err := w.api.Get(w.t.Context(), &nusav1.GetWebhookRequest{Name: name})
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// awaitStatus waits until the status of a webhook holds.
func (w *world) awaitStatus(name, what string, holds func(*nusav1.WebhookStatus) bool) {
	w.t.Helper()
	await(w.t, name+": "+what, &w.log.added, func() bool { return holds(w.get(name).GetStatus()) })
}

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

// awaitSaved waits until the stored progress of a webhook holds.
func (w *world) awaitSaved(name, what string, holds func(*nusav1.WebhookProgress) bool) {
	w.t.Helper()
	await(w.t, name+" stored: "+what, &w.log.added, func() bool {
		w.state.Lock()
		defer w.state.Unlock()
		return holds(w.state.Webhooks.Progress[name])
	})
}

func to(name, url string) *nusav1.SetWebhookRequest {
	return &nusav1.SetWebhookRequest{Webhook: &nusav1.Webhook{Name: name, Url: url}}
}

// verify checks a request as a receiver does.
func verify(t *testing.T, secret string, h http.Header, body string) {
	t.Helper()
	s, err := webhook.ParseSecret(secret)
	if err != nil {
		t.Fatal(err)
	}
	seconds, err := strconv.ParseInt(h.Get("webhook-timestamp"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	want := webhook.Sign([]webhook.Secret{s}, h.Get("webhook-id"), time.Unix(seconds, 0), []byte(body))
	if !slices.Contains(strings.Fields(h.Get("webhook-signature")), want) {
		t.Errorf("signature %s, want %s among them", h.Get("webhook-signature"), want)
	}
}
