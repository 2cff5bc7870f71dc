package hooks

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/hooks/delivery"
	"github.com/nusa-scheduler/nusa/internal/cloudevent"
	"github.com/nusa-scheduler/nusa/internal/eventlog"
	"github.com/nusa-scheduler/nusa/internal/wait"
	"github.com/nusa-scheduler/nusa/internal/webhook"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// readAtOnce is the number of events that a receiver reads at once.
	readAtOnce = 128
	// readAgain is how long a receiver waits after the log could not be read.
	readAgain = 5 * time.Second
	// readPause and readBurst bound how often a receiver reads the log.
	readPause, readBurst = 50 * time.Millisecond, 10
)

// Source has the durable events of the federation.
type Source interface {
	// After returns events with numbers above n, in order, at most max. missed is the number of events
	// above n that retention removed.
	After(ctx context.Context, n uint64, max int) (events []*nusav1.Event, missed uint64, err error)
	// Added returns a channel that is closed when an event is added after the call.
	Added() <-chan struct{}
	// Last returns the number of the latest event.
	Last() uint64
}

// unsaved says how much of a receiver's progress is not stored.
type unsaved int

const (
	nothing unsaved = iota
	onlyCursor
	deliveries
)

// receiver delivers events to one endpoint. Nothing that it waits for is shared with another receiver.
type receiver struct {
	id, name string
	revision int64 // of the record that set got; Sender.mu guards it
	source   Source
	policy   *webhook.Policy
	metrics  *Metrics
	log      *slog.Logger
	// disable stores that the endpoint wants no more events. report adds an event.
	disable func(ctx context.Context, name, id, url, why string)
	report  func(kind, name, format string, args ...any)
	now     func() time.Time
	random  func() float64
	// cancel ends run. ended is closed when run has returned.
	cancel context.CancelFunc
	ended  chan struct{}
	wake   chan struct{} // capacity 1

	mu     sync.Mutex
	hook   *hook
	broken string // why the stored record cannot be used
	gone   bool   // the endpoint wants no more events, and the record may not say so yet
	client *webhook.Client
	queue  *delivery.Queue
	recent recent
	// fresh are the events of entries without an attempt.
	fresh map[uint64]*nusav1.Event
	// moves grows when the cursor is moved by a request.
	moves   int
	unsaved unsaved
	failed  uint64
	// success is when an attempt last succeeded. fault is the error of the latest failed one since then.
	success time.Time
	fault   string
	// dropped is when events were dropped last.
	dropped time.Time
	logID   string
}

// set replaces the webhook. The queue continues.
func (r *receiver) set(h *hook, broken string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.client != nil {
		r.client.Close()
	}
	r.hook, r.broken, r.client, r.gone = h, broken, nil, false
	if h != nil {
		r.client = webhook.NewClient(r.policy, h.parallel+1) // one for a test
		r.queue.SetParallel(h.parallel)
	}
	r.notify()
}

// notify wakes run.
func (r *receiver) notify() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// active reports whether events are delivered. The lock is held.
func (r *receiver) active() bool { return r.hook != nil && !r.gone && !r.hook.web.GetDisabled() }

// run delivers until ctx ends. When it returns, no attempt is in progress.
func (r *receiver) run(ctx context.Context) {
	defer close(r.ended)
	var attempts sync.WaitGroup
	defer func() {
		attempts.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.client != nil {
			r.client.Close()
		}
	}()
	pace := wait.NewPace(readPause, readBurst)
	for pace.Wait(ctx) {
		added := r.source.Added()
		failed := r.read(ctx)
		r.start(ctx, &attempts)
		at, due := r.due(failed)
		timer := time.NewTimer(at.Sub(r.now()))
		if !due {
			timer.Stop()
		}
		if !r.reads() {
			added = nil
		}
		select {
		case <-ctx.Done():
		case <-added:
		case <-r.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// reads reports whether new events can be read.
func (r *receiver) reads() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.active() && r.queue.Room() > 0
}

// due returns when run has something to do without being woken. failed: the log could not be read.
func (r *receiver) due(failed bool) (time.Time, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.active() {
		return time.Time{}, false
	}
	at, ok := r.queue.Due()
	if again := r.now().Add(readAgain); failed && (!ok || again.Before(at)) {
		return again, true
	}
	return at, ok
}

// read reads events while there is room for them.
func (r *receiver) read(ctx context.Context) (failed bool) {
	for ctx.Err() == nil {
		r.mu.Lock()
		h, n, moves, ready := r.hook, r.queue.Cursor(), r.moves, r.active() && r.queue.Room() > 0
		r.mu.Unlock()
		if !ready {
			return false
		}
		events, missed, err := r.source.After(ctx, n, readAtOnce)
		if err != nil {
			if ctx.Err() == nil {
				r.log.Warn("cannot read the events for a webhook", "webhook", r.name, "after", n, "error", err)
			}
			return true
		}
		if len(events) == 0 {
			return false
		}
		selected := make([]bool, len(events))
		for i, e := range events {
			ok, err := h.filter.Match(e)
			if err != nil {
				r.log.Debug("the filter of a webhook failed on an event", "webhook", r.name, "number", e.GetNumber(), "error", err)
			}
			selected[i] = ok
		}
		if !r.take(events, selected, missed, moves) {
			return false
		}
	}
	return false
}

// take adds what was read to the queue. It returns false if there is no room left, or the cursor was
// moved meanwhile.
func (r *receiver) take(events []*nusav1.Event, selected []bool, missed uint64, moves int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.moves != moves {
		r.notify()
		return false
	}
	if missed > 0 {
		r.lost(missed)
	}
	r.logID = events[0].GetLog()
	for i, e := range events {
		if !r.queue.Read(e.GetNumber(), selected[i], r.now()) {
			return false
		}
		r.unsaved = max(r.unsaved, onlyCursor)
		if selected[i] {
			r.fresh[e.GetNumber()] = e
			r.unsaved = deliveries
		}
	}
	return true
}

// lost notes that retention removed events before they were sent. The lock is held.
func (r *receiver) lost(n uint64) {
	r.queue.Missed(n)
	r.dropped, r.unsaved = r.now(), deliveries
	r.metrics.dropped.Add(float64(n))
	r.log.Error("events were removed before they were sent to a webhook", "webhook", r.name, "events", n)
	r.report("webhook.dropped", r.name, "retention removed %d events before they were sent", n)
}

// start begins the attempts that are due. Each of its goroutines continues with the next due attempt.
func (r *receiver) start(ctx context.Context, attempts *sync.WaitGroup) {
	for {
		next, ok := r.next(ctx)
		if !ok {
			return
		}
		attempts.Go(func() {
			for ok := true; ok; next, ok = r.next(ctx) {
				r.attempt(ctx, next)
				r.notify()
			}
		})
	}
}

// sending is an attempt that begins.
type sending struct {
	hook   *hook
	client *webhook.Client
	number uint64
	event  *nusav1.Event // nil: it must be read from the log
}

// next returns an attempt that is due, and counts it as in flight.
func (r *receiver) next(ctx context.Context) (sending, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.active() || ctx.Err() != nil {
		return sending{}, false
	}
	e, ok := r.queue.Next(r.now())
	if !ok {
		return sending{}, false
	}
	event := r.fresh[e.Number]
	delete(r.fresh, e.Number)
	return sending{r.hook, r.client, e.Number, event}, true
}

// attempt sends one event.
func (r *receiver) attempt(ctx context.Context, next sending) {
	h, event := next.hook, next.event
	if event == nil {
		events, _, err := r.source.After(ctx, next.number-1, 1)
		switch {
		case err != nil:
			r.interrupted(next.number, r.now().Add(readAgain))
			return
		case len(events) == 0 || events[0].GetNumber() != next.number:
			r.drop(next.number)
			return
		}
		event = events[0]
	}
	at := r.now()
	resp := next.client.Send(ctx, webhook.Message{
		URL: h.web.GetUrl(), ID: cloudevent.ID(event), ContentType: cloudevent.ContentType,
		Body: cloudevent.Of(event).JSON(), Secrets: h.secrets, At: at,
	}, h.timeout)
	if ctx.Err() != nil && resp.Status == 0 {
		r.interrupted(next.number, at)
		return
	}
	if why := r.done(h, event, at, resp); why != "" {
		r.disable(ctx, r.name, r.id, h.web.GetUrl(), why)
	}
}

func (r *receiver) interrupted(number uint64, due time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue.Interrupted(number, due)
}

func (r *receiver) drop(number uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue.Drop(number)
	r.recent.dropped(cloudevent.ID(&nusav1.Event{Log: r.logID, Number: number}), number)
	r.dropped, r.unsaved = r.now(), deliveries
	r.metrics.dropped.Inc()
	r.report("webhook.dropped", r.name, "retention removed event %d before it was sent", number)
}

// done notes the response to an attempt for a hook. It returns why the webhook must be disabled, or "". An
// endpoint that wants no more events says nothing about one that has replaced it meanwhile.
func (r *receiver) done(h *hook, e *nusav1.Event, at time.Time, resp webhook.Response) (disable string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	r.logID = e.GetLog()
	d := r.queue.Done(e.GetNumber(), delivery.Outcome{Status: resp.Status, RetryAfter: resp.RetryAfter}, now, r.random())
	r.unsaved = deliveries
	r.metrics.observe(d.Verdict, resp)
	state, next := statePending, time.Time{}
	if d.Verdict == delivery.Delivered {
		r.recent.note(e, at, resp, stateDelivered, next)
		r.success, r.fault = at, ""
		return ""
	}
	r.failed++
	r.fault = resp.Err
	switch d.Verdict {
	case delivery.Retry:
		next = now.Add(d.Wait)
	case delivery.GiveUp:
		state = stateGivenUp
		r.log.Error("a delivery to a webhook was given up", "webhook", r.name, "id", cloudevent.ID(e), "attempts", delivery.MaxAttempts, "status", resp.Status, "error", resp.Err)
		r.report("webhook.given_up", r.name, "event %d after %d attempts: %s", e.GetNumber(), delivery.MaxAttempts, resp.Err)
	case delivery.Disable:
		if r.hook != nil && r.hook.web.GetUrl() != h.web.GetUrl() {
			break
		}
		r.gone, disable = true, "the endpoint returned 410 Gone"
	}
	r.recent.note(e, at, resp, state, next)
	return disable
}

// save returns the progress if some of it is not stored and old enough, and notes that the progress
// is being stored. lazy: the progress includes changes that need not be stored soon.
func (r *receiver) save(lazy bool) *nusav1.WebhookProgress {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unsaved == nothing || r.unsaved == onlyCursor && !lazy {
		return nil
	}
	r.unsaved = nothing
	return progressOf(r.queue.Save())
}

// saveFailed notes that the progress was not stored.
func (r *receiver) saveFailed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unsaved = deliveries
}

// status returns how the delivery goes.
func (r *receiver) status() *nusav1.WebhookStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := r.queue.Counts()
	out := &nusav1.WebhookStatus{
		State: r.state(), Cursor: r.queue.Cursor(), Unread: r.unread(), Pending: int32(r.queue.Pending()), InFlight: int32(r.queue.InFlight()),
		Delivered: counts.Delivered, GivenUp: counts.GivenUp, Dropped: counts.Dropped, Failed: r.failed, LastError: r.fault,
	}
	if r.broken != "" {
		out.LastError = r.broken
	}
	if !r.success.IsZero() {
		out.LastSuccess = timestamppb.New(r.success)
	}
	if at, ok := r.queue.Due(); ok && r.active() {
		out.NextAttempt = timestamppb.New(at)
	}
	return out
}

// unread returns the number of events that were not read. The lock is held.
func (r *receiver) unread() uint64 {
	return eventlog.Behind(r.queue.Cursor(), r.source.Last())
}

// state returns how the delivery goes. The lock is held.
func (r *receiver) state() nusav1.WebhookState {
	switch {
	case r.gone || r.hook != nil && r.hook.web.GetDisabled():
		return nusav1.WebhookState_WEBHOOK_STATE_DISABLED
	case r.queue.Room() == 0 && r.unread() > 0:
		return nusav1.WebhookState_WEBHOOK_STATE_BEHIND
	case r.queue.Failures() > 0 || r.broken != "":
		return nusav1.WebhookState_WEBHOOK_STATE_FAILING
	}
	return nusav1.WebhookState_WEBHOOK_STATE_OK
}

// progressOf and savedOf convert the progress of a queue.
func progressOf(s delivery.Saved) *nusav1.WebhookProgress {
	out := &nusav1.WebhookProgress{Cursor: s.Cursor, Delivered: s.Counts.Delivered, GivenUp: s.Counts.GivenUp, Dropped: s.Counts.Dropped}
	for _, e := range s.Entries {
		out.Pending = append(out.Pending, &nusav1.WebhookPending{Number: e.Number, Attempts: int32(e.Failed), Due: timestamppb.New(e.Due)})
	}
	return out
}

func savedOf(p *nusav1.WebhookProgress) delivery.Saved {
	out := delivery.Saved{Cursor: p.GetCursor(), Counts: delivery.Counts{Delivered: p.GetDelivered(), GivenUp: p.GetGivenUp(), Dropped: p.GetDropped()}}
	for _, e := range p.GetPending() {
		out.Entries = append(out.Entries, delivery.Entry{Number: e.GetNumber(), Failed: int(e.GetAttempts()), Due: e.GetDue().AsTime()})
	}
	return out
}

// randomShare returns a random number in [0, 1).
func randomShare() float64 { return rand.Float64() }
