package intakes

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/hooks/delivery"
	"github.com/nusa-scheduler/nusa/internal/broker"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// connectTime, submitTime and ackTime bound the steps of an attempt.
	connectTime, submitTime, ackTime = 30 * time.Second, 30 * time.Second, 15 * time.Second
	// batchMost is how many messages are submitted at once.
	batchMost = 32
	// holdEvery is how often the broker learns that a message waits.
	holdEvery = 10 * time.Second
	// failingAlarm is how long attempts fail before an operator has to look.
	failingAlarm = 5 * time.Minute
)

// errChanged ends the work with a connection, because the intake has changed.
var errChanged = errors.New("the intake has changed")

// worker takes the messages of one intake. Nothing that it waits for is shared with another worker.
type worker struct {
	*Term
	name   string
	report func(kind, subject, format string, args ...any)
	wake   chan struct{} // capacity 1

	mu        sync.Mutex
	intake    *intake // nil: the stored record cannot be used
	broken    string  // why
	connected bool
	failures  int // in a row
	due       time.Time
	counts    struct{ taken, dead, failed uint64 }
	success   time.Time
	// fault is the error of the latest failed attempt since the last success, and failing is when the first
	// one failed. dead is the reason of the latest dead letter.
	fault   string
	failing time.Time
	dead    string
	// stuck: the fault is about messages, so a new connection does not end it.
	stuck bool
}

// Set replaces the intake.
func (w *worker) Set(rec *nusav1.IntakeRecord) {
	next, err := newIntake(rec, w.Policy)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.intake, w.broken = next, ""
	if err != nil {
		w.broken = "this server cannot use the stored intake: " + err.Error()
	}
	w.due = time.Time{}
	w.notify()
}

// notify wakes Run.
func (w *worker) notify() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// active returns the intake if messages are taken, or nil. The lock is held.
func (w *worker) active() *intake {
	if w.intake == nil || w.intake.GetDisabled() {
		return nil
	}
	return w.intake
}

// present is active for callers without the lock. due is when an attempt may begin.
func (w *worker) present() (in *intake, due time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.active(), w.due
}

// Run takes messages until ctx ends. When it returns, the connection is closed.
func (w *worker) Run(ctx context.Context) {
	for ctx.Err() == nil {
		in, due := w.present()
		if in == nil || due.After(w.Now()) {
			w.sleep(ctx, due.Sub(w.Now()), in != nil)
			continue
		}
		err := w.serve(ctx, in)
		w.setConnected(false)
		if err != nil && ctx.Err() == nil && !errors.Is(err, errChanged) {
			w.failed(err)
		}
	}
}

// sleep waits until the intake changes, or for a time.
func (w *worker) sleep(ctx context.Context, d time.Duration, timed bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	if !timed {
		timer.Stop()
	}
	select {
	case <-ctx.Done():
	case <-w.wake:
	case <-timer.C:
	}
}

func (w *worker) setConnected(yes bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.connected = yes
}

// connect notes that there is a connection, which ends a fault that is not about messages.
func (w *worker) connect() {
	w.setConnected(true)
	w.mu.Lock()
	stuck := w.stuck
	w.mu.Unlock()
	if !stuck {
		w.succeeded()
	}
}

// stick notes that the fault that follows is about messages.
func (w *worker) stick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stuck = true
}

// serve takes messages over one connection, until it fails or the intake changes.
func (w *worker) serve(ctx context.Context, in *intake) error {
	dialed, cancel := context.WithTimeoutCause(ctx, connectTime, fmt.Errorf("no connection within %s", connectTime))
	conn, err := w.Dial(dialed, in.target, in.from)
	cancel()
	if err != nil {
		return err
	}
	w.connect()
	ctx, cancel = context.WithCancel(ctx)
	arrived, ended := make(chan *broker.Delivery, in.from.InFlight), make(chan error, 1)
	var taking sync.WaitGroup
	taking.Go(func() { ended <- take(ctx, conn, arrived) })
	defer func() {
		cancel()
		taking.Wait()
		conn.Close()
	}()
	var held []*item
	for {
		if len(held) > 0 {
			if err := w.pause(ctx, in, conn, held); err != nil {
				return err
			}
		} else {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case err := <-ended:
				return err
			case <-w.wake:
				if now, _ := w.present(); now != in {
					return errChanged
				}
				continue
			case d := <-arrived:
				held = append(held, w.item(in, d))
			}
		}
		batch, rest := gather(held, arrived, func(d *broker.Delivery) *item { return w.item(in, d) })
		again, err := w.handle(ctx, in, conn, batch)
		if err != nil {
			return err
		}
		held = append(again, rest...)
	}
}

// take passes messages on until the connection fails.
func take(ctx context.Context, conn broker.Consumer, to chan<- *broker.Delivery) error {
	for {
		d, err := conn.Next(ctx)
		if err != nil {
			return err
		}
		select {
		case to <- d:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// item is a message with what it asks for.
type item struct {
	*broker.Delivery
	req *nusav1.SubmitRequest
	bad string // why it can never be taken
}

func (w *worker) item(in *intake, d *broker.Delivery) *item {
	req, bad := request(in.Intake, in.id, d)
	return &item{d, req, bad}
}

// gather returns the messages of a batch: those that were held, then those that have arrived. A batch has one
// message of each job, so that no attempt that is made again comes after a later message about the job. rest
// has the messages that follow.
func gather(held []*item, arrived <-chan *broker.Delivery, read func(*broker.Delivery) *item) (batch, rest []*item) {
	names := map[string]bool{}
	add := func(i *item) bool {
		name := i.req.GetSpec().GetName()
		if len(batch) == batchMost || len(rest) > 0 || i.bad == "" && names[name] {
			rest = append(rest, i)
			return false
		}
		batch, names[name] = append(batch, i), names[name] || i.bad == ""
		return true
	}
	for _, i := range held {
		add(i)
	}
	for len(rest) == 0 && len(batch) < batchMost {
		select {
		case d := <-arrived:
			add(read(d))
		default:
			return batch, rest
		}
	}
	return batch, rest
}

// handle submits the jobs of a batch. It returns the messages that must wait. An error is one of the
// connection.
func (w *worker) handle(ctx context.Context, in *intake, conn broker.Consumer, batch []*item) (again []*item, err error) {
	submitting, cancel := context.WithTimeout(ctx, submitTime)
	defer cancel()
	finish := make([]func(context.Context) error, len(batch))
	for i, it := range batch {
		if it.bad == "" {
			finish[i] = w.Submit(submitting, in.Intake, it.ID, it.req)
		}
	}
	for i, it := range batch {
		follows, reason := bury, it.bad
		if finish[i] != nil {
			result := finish[i](submitting)
			follows = decide(result)
			if follows != taken {
				reason = reasonOf(result)
			}
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if follows == hold {
			again = append(again, it)
			w.stick()
			w.failed(errors.New(reason))
			continue
		}
		if err := w.conclude(ctx, conn, it, follows, reason); err != nil {
			return nil, err
		}
	}
	if len(again) == 0 {
		w.succeeded()
	}
	return again, nil
}

// conclude tells the broker what became of a message.
func (w *worker) conclude(ctx context.Context, conn broker.Consumer, it *item, follows verdict, reason string) error {
	ctx, cancel := context.WithTimeout(ctx, ackTime)
	defer cancel()
	if follows == taken {
		if err := conn.Ack(ctx, it.Delivery); err != nil {
			return err
		}
		w.note(&w.counts.taken, "")
		w.Metrics.taken.Inc()
		return nil
	}
	if err := conn.Bury(ctx, it.Delivery, reason); err != nil {
		w.stick()
		return err
	}
	w.note(&w.counts.dead, reason)
	w.Metrics.dead.Inc()
	w.Log.Warn("a message of an intake is a dead letter", "intake", w.name, "message", it.ID, "reason", reason)
	w.report("intake.dead_letter", w.name, "message %.100s: %s", it.ID, reason)
	return nil
}

// pause waits until held messages may be submitted again.
func (w *worker) pause(ctx context.Context, in *intake, conn broker.Consumer, held []*item) error {
	for {
		now, due := w.present()
		left := due.Sub(w.Now())
		switch {
		case now != in:
			return errChanged
		case left <= 0:
			return ctx.Err()
		}
		for _, it := range held {
			conn.Hold(it.Delivery)
		}
		timer := time.NewTimer(min(left, holdEvery))
		select {
		case <-ctx.Done():
		case <-w.wake:
		case <-timer.C:
		case <-conn.Lost():
			timer.Stop()
			return broker.ErrLost
		}
		timer.Stop()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// note counts a message.
func (w *worker) note(count *uint64, dead string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*count++
	w.success = w.Now()
	if dead != "" {
		w.dead = dead
	}
}

// succeeded notes that nothing waits.
func (w *worker) succeeded() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures, w.due, w.fault, w.failing, w.stuck = 0, time.Time{}, "", time.Time{}, false
}

// failed notes that an attempt failed.
func (w *worker) failed(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.Now()
	w.counts.failed++
	w.Metrics.failures.Inc()
	w.fault = err.Error()
	if !w.due.After(now) { // several messages of a batch are one attempt
		w.failures++
		w.due = now.Add(delivery.Pause(w.failures, w.Random()))
	}
	if w.failing.IsZero() {
		w.failing = now
		w.Log.Warn("an intake takes no messages", "intake", w.name, "error", err)
	}
}

// hurry makes an attempt due now.
func (w *worker) hurry() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.due = time.Time{}
	w.notify()
}

// status returns how the intake goes.
func (w *worker) status() *nusav1.IntakeStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := &nusav1.IntakeStatus{
		State: nusav1.BusState_BUS_STATE_OK, Connected: w.connected, Taken: w.counts.taken, Dead: w.counts.dead, Failed: w.counts.failed,
		LastError: w.fault, LastDead: w.dead,
	}
	switch {
	case w.broken != "":
		out.State, out.LastError = nusav1.BusState_BUS_STATE_FAILING, w.broken
	case w.active() == nil:
		out.State = nusav1.BusState_BUS_STATE_DISABLED
	case w.failures > 0:
		out.State = nusav1.BusState_BUS_STATE_FAILING
	}
	if !w.success.IsZero() {
		out.LastSuccess = timestamppb.New(w.success)
	}
	if !w.due.IsZero() && w.active() != nil {
		out.NextAttempt = timestamppb.New(w.due)
	}
	return out
}

// alarms reports whether an operator has to look at the intake.
func (w *worker) alarms() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.broken != "" || w.active() != nil && !w.failing.IsZero() && w.Now().Sub(w.failing) >= failingAlarm
}
