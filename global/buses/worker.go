package buses

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/hooks/delivery"
	"github.com/nusa-scheduler/nusa/internal/broker"
	"github.com/nusa-scheduler/nusa/internal/eventlog"
	"github.com/nusa-scheduler/nusa/internal/wait"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// connectTime and publishTime bound an attempt.
	connectTime, publishTime = 30 * time.Second, 15 * time.Second
	// readAgain is how long a worker waits after the log could not be read.
	readAgain = 5 * time.Second
	// readPause and readBurst bound how often a worker that has handled all events reads the log.
	readPause, readBurst = 20 * time.Millisecond, 10
	// failingAlarm is how long attempts fail before an operator has to look.
	failingAlarm = 5 * time.Minute
)

// unsaved says how much of a worker's progress is not stored.
type unsaved int

const (
	nothing unsaved = iota
	onlyCursor
	deliveries
)

// worker publishes events to one bus. Nothing that it waits for is shared with another worker.
type worker struct {
	*Term
	id, name string
	report   func(kind, subject, format string, args ...any)
	wake     chan struct{} // capacity 1

	// conn and to are the connection and the bus that it belongs to. Only Run uses them.
	conn broker.Publisher
	to   *bus
	// gap is the number of events that were dropped since the latest confirmed message. Only Run uses it.
	gap uint64

	mu        sync.Mutex
	bus       *bus   // nil: the stored record cannot be used
	broken    string // why
	stream    *delivery.Stream
	connected bool
	// moves grows when the cursor is moved by a request.
	moves   int
	unsaved unsaved
	failed  uint64
	// success is when a message was confirmed last. fault is the error of the latest failed attempt since
	// then, and failing is when the first one failed.
	success time.Time
	fault   string
	failing time.Time
	// dropped is when events were dropped last.
	dropped time.Time
}

// Set replaces the bus. The delivery continues where it is.
func (w *worker) Set(rec *nusav1.BusRecord) {
	next, err := newBus(rec, w.Policy)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bus, w.broken = next, ""
	if err != nil {
		w.broken = "this server cannot use the stored bus: " + err.Error()
	}
	w.stream.Hurry()
	w.notify()
}

// notify wakes Run.
func (w *worker) notify() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// active returns the bus if events are delivered, or nil. The lock is held.
func (w *worker) active() *bus {
	if w.bus == nil || w.bus.disabled {
		return nil
	}
	return w.bus
}

// Run delivers until ctx ends. When it returns, the connection is closed.
func (w *worker) Run(ctx context.Context) {
	defer w.hangUp()
	pace := wait.NewPace(readPause, readBurst)
	for pace.Wait(ctx) {
		added := w.Source.Added()
		again := w.steps(ctx)
		due, timed := time.Duration(0), false
		w.mu.Lock()
		b := w.active()
		if at := w.stream.Due(); !at.IsZero() {
			due, timed, added = at.Sub(w.Now()), true, nil
		}
		w.mu.Unlock()
		switch {
		case b == nil:
			added, timed = nil, false
		case again > 0:
			due, timed = again, true
		}
		if w.to != b {
			w.hangUp()
		}
		w.sleep(ctx, added, due, timed)
	}
}

// sleep waits for something to do.
func (w *worker) sleep(ctx context.Context, added <-chan struct{}, due time.Duration, timed bool) {
	timer := time.NewTimer(due)
	defer timer.Stop()
	if !timed {
		timer.Stop()
	}
	var lost <-chan struct{}
	if w.conn != nil {
		lost = w.conn.Lost()
	}
	select {
	case <-ctx.Done():
	case <-added:
	case <-w.wake:
	case <-timer.C:
	case <-lost:
		w.hangUp()
	}
}

// hangUp closes the connection.
func (w *worker) hangUp() {
	if w.conn != nil {
		w.conn.Close()
	}
	w.conn, w.to = nil, nil
	w.setConnected(false)
}

func (w *worker) setConnected(yes bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.connected = yes
}

// steps handles events until there are none, or an attempt fails. again: see step.
func (w *worker) steps(ctx context.Context) (again time.Duration) {
	for {
		more, again := w.step(ctx)
		if !more {
			return again
		}
	}
}

// step reads some events and publishes those that are selected. more: it may be called again at once.
// again: the log could not be read, and is read again after this time.
func (w *worker) step(ctx context.Context) (more bool, again time.Duration) {
	w.mu.Lock()
	b, cursor, moves, most := w.active(), w.stream.Cursor(), w.moves, broker.MaxBatch
	if w.stream.Failures() > 0 {
		most = 1 // what follows an event that the broker refuses is not sent again and again
	}
	idle := b == nil || ctx.Err() != nil || w.stream.Due().After(w.Now())
	w.mu.Unlock()
	if idle {
		return false, 0
	}
	events, missed, err := w.Source.After(ctx, cursor, broker.MaxBatch)
	if err != nil {
		if ctx.Err() == nil {
			w.Log.Warn("cannot read the events for a bus", "bus", w.name, "after", cursor, "error", err)
		}
		return false, readAgain
	}
	if len(events) == 0 {
		return false, 0
	}
	if missed > 0 && !w.lost(missed, events[0].GetNumber(), moves) {
		return true, 0
	}
	batch := w.choose(b, events, most)
	confirmed := 0
	if len(batch.messages) > 0 {
		confirmed, err = w.publish(ctx, b, batch.messages)
		if confirmed > 0 {
			w.gap = 0
		}
	}
	return w.done(ctx, batch, confirmed, err, moves), 0
}

// batch is some events, and the messages of those that are selected.
type batch struct {
	numbers  []uint64
	selected []bool
	messages []broker.Message
}

// choose selects events. It stops after the most messages.
func (w *worker) choose(b *bus, events []*nusav1.Event, most int) (out batch) {
	for _, e := range events {
		ok, err := b.filter.Match(e)
		if err != nil {
			w.Log.Debug("the filter of a bus failed on an event", "bus", w.name, "number", e.GetNumber(), "error", err)
		}
		if ok && len(out.messages) == most {
			return out
		}
		out.numbers, out.selected = append(out.numbers, e.GetNumber()), append(out.selected, ok)
		if ok {
			missed := uint64(0)
			if len(out.messages) == 0 {
				missed = w.gap
			}
			out.messages = append(out.messages, messageOf(e, missed))
		}
	}
	return out
}

// publish sends messages over the present connection, or a new one.
func (w *worker) publish(ctx context.Context, b *bus, messages []broker.Message) (confirmed int, err error) {
	if w.to != b {
		w.hangUp()
	}
	if w.conn == nil {
		dialed, cancel := context.WithTimeoutCause(ctx, connectTime, fmt.Errorf("no connection within %s", connectTime))
		defer cancel()
		conn, err := w.Dial(dialed, b.target, b.sink)
		if err != nil {
			return 0, err
		}
		w.conn, w.to = conn, b
		w.setConnected(true)
	}
	began := w.Now()
	ctx, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()
	confirmed, err = w.conn.Publish(ctx, messages)
	w.Metrics.observe(confirmed, w.Now().Sub(began))
	if err != nil {
		w.hangUp()
	}
	return confirmed, err
}

// lost notes that retention removed events before they were published. It returns false if the cursor was
// moved meanwhile.
func (w *worker) lost(n, next uint64, moves int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.moves != moves {
		return false
	}
	w.stream.Missed(n, next)
	w.gap += n
	w.dropped, w.unsaved = w.Now(), deliveries
	w.Metrics.dropped.Add(float64(n))
	w.Log.Error("events were removed before they were published to a bus", "bus", w.name, "events", n)
	w.report("bus.dropped", w.name, "retention removed %d events before they were published", n)
	return true
}

// done notes what became of a batch. It returns whether the next one may follow at once.
func (w *worker) done(ctx context.Context, b batch, confirmed int, err error, moves int) (more bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.Now()
	if w.moves == moves {
		w.stream.Read(b.numbers, b.selected, confirmed)
	}
	w.unsaved = max(w.unsaved, onlyCursor)
	if confirmed > 0 {
		w.unsaved, w.success, w.fault, w.failing = deliveries, now, "", time.Time{}
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return false
	case err != nil:
		w.stream.Failed(confirmed > 0, now, w.Random())
		w.failed++
		w.Metrics.failures.Inc()
		w.fault = err.Error()
		if w.failing.IsZero() {
			w.failing = now
			w.Log.Warn("cannot publish events to a bus", "bus", w.name, "error", err)
		}
		return false
	case len(b.messages) > 0:
		w.stream.Succeeded()
	}
	return true
}

// hurry makes an attempt due now. skip: it leaves out all events until now.
func (w *worker) hurry(skip bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if skip {
		w.stream.Skip(w.Source.Last())
		w.moves++
		w.dropped, w.unsaved = time.Time{}, deliveries
	}
	w.stream.Hurry()
	w.notify()
}

// save returns the progress if some of it is not stored and old enough, and notes that the progress is
// being stored. lazy: the progress includes changes that need not be stored soon.
func (w *worker) save(lazy bool) *nusav1.BusProgress {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unsaved == nothing || w.unsaved == onlyCursor && !lazy {
		return nil
	}
	w.unsaved = nothing
	s := w.stream.Save()
	return &nusav1.BusProgress{Id: w.id, Cursor: s.Cursor, Published: s.Counts.Delivered, Dropped: s.Counts.Dropped}
}

// saveFailed notes that the progress was not stored.
func (w *worker) saveFailed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unsaved = deliveries
}

// status returns how the delivery goes.
func (w *worker) status() *nusav1.BusStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	counts := w.stream.Counts()
	out := &nusav1.BusStatus{
		State: nusav1.BusState_BUS_STATE_OK, Connected: w.connected, Cursor: w.stream.Cursor(), Lag: eventlog.Behind(w.stream.Cursor(), w.Source.Last()),
		Published: counts.Delivered, Dropped: counts.Dropped, Failed: w.failed, LastError: w.fault,
	}
	switch {
	case w.broken != "":
		out.State, out.LastError = nusav1.BusState_BUS_STATE_FAILING, w.broken
	case w.active() == nil:
		out.State = nusav1.BusState_BUS_STATE_DISABLED
	case w.stream.Failures() > 0:
		out.State = nusav1.BusState_BUS_STATE_FAILING
	}
	if !w.success.IsZero() {
		out.LastSuccess = timestamppb.New(w.success)
	}
	if at := w.stream.Due(); !at.IsZero() && w.active() != nil {
		out.NextAttempt = timestamppb.New(at)
	}
	return out
}
