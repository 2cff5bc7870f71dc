package raftlog

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// The errors of the sequencer.
var (
	// ErrQueueFull says that too many commands wait. The caller may retry later.
	ErrQueueFull = errors.New("command queue is full")
	// ErrNotLeader says that this server does not lead. The command changed nothing.
	ErrNotLeader = errors.New("not the master")
	// ErrUnknownOutcome says that leadership ended while the command was in flight. The
	// command may or may not be committed. The caller must ask the new master, or retry
	// with the same idempotency key.
	ErrUnknownOutcome = errors.New("leadership lost: outcome unknown")
	// ErrBatch says that the command is a batch. Propose each of its commands.
	ErrBatch = errors.New("a batch cannot be proposed")
)

const (
	// maxQueued and maxQueuedBytes bound the commands that wait to be proposed. There is
	// room for one command of each of ten thousand agents.
	maxQueued      = 16_384
	maxQueuedBytes = 64 << 20
	// queueRetry is the pause before a command is offered again to a full queue.
	queueRetry = 10 * time.Millisecond
	// gatherBehind is the greatest number of entries in flight at which the sequencer
	// begins a new entry. While one entry is written to disk, commands gather for the next
	// one. These commands then share the cost of one write.
	gatherBehind = 1
	// maxInFlight bounds the entries that are proposed but not committed.
	maxInFlight = 16
	// maxBatch bounds the proposed commands in one entry.
	maxBatch = 1024
)

// Proposal is a command in the queue of a sequencer, or one that was proposed.
type Proposal struct {
	cmd  state.Command
	size int64
	// outcome is valid when done is closed.
	outcome outcome
	done    chan struct{}
	// ended is closed when every proposed command has an outcome and no further entry
	// follows.
	ended <-chan struct{}
}

type outcome struct {
	result state.Result
	err    error
}

// Wait returns the result of the command. Several callers may wait. Errors: the error of the
// result, ErrNotLeader, ErrUnknownOutcome. When ctx ends first, Wait returns
// ErrUnknownOutcome too.
func (p *Proposal) Wait(ctx context.Context) (state.Result, error) {
	o := outcome{err: ErrNotLeader}
	select {
	case <-p.done:
		o = p.outcome
	case <-p.ended:
		select {
		case <-p.done:
			o = p.outcome
		default: // the command never left the queue
		}
	case <-ctx.Done():
		return state.Result{}, fmt.Errorf("%w: %w", ErrUnknownOutcome, context.Cause(ctx))
	}
	if o.err == nil {
		o.err = o.result.Err
	}
	return o.result, o.err
}

// end sets the outcome.
func (p *Proposal) end(o outcome) {
	p.outcome = o
	close(p.done)
}

// Sequencer proposes all commands of one leadership, in one goroutine. Commands that wait
// together share a log entry, and the scheduler's decision about them is in the same entry.
// The sequencer proposes an entry before the entry before it is committed.
type Sequencer struct {
	log Log
	fsm *FSM
	// decide returns the commands that a state requires.
	decide func(*state.View) Decision
	// committed is called with the results of each entry, in the order of the log, before
	// Wait returns them.
	committed func([]state.Result)
	queue     chan *Proposal
	bytes     atomic.Int64  // memory of the commands in the queue
	wake      chan struct{} // with room for one
	ended     chan struct{}

	// mispredicted is true after an entry was committed whose prediction was not adopted.
	// inFlight counts the entries without an outcome. entryDone, with room for one,
	// receives a value when an entry gets its outcome.
	mispredicted atomic.Bool
	inFlight     atomic.Int32
	entryDone    chan struct{}
	// oldest is when the oldest entry without an outcome was proposed: nanoseconds since
	// began, plus one. 0: every entry has its outcome.
	began  time.Time
	oldest atomic.Int64

	// Only the proposing goroutine uses the fields below.
	writer  entryWriter
	spec    *speculativeState
	next    *Proposal // taken from the queue but not in an entry yet
	pending pendingPlan
	// due is the time of the next decision. Zero: only after a change.
	due time.Time
	// notBefore is the earliest time of the next decision.
	notBefore time.Time
}

// Log is the part of Raft that a sequencer needs.
type Log interface {
	Apply(data []byte, timeout time.Duration) raft.ApplyFuture
	LastIndex() uint64
}

// Decision holds the commands that the scheduler wants, and when to ask it again.
type Decision struct {
	// Commands are proposed next. Each of them fits one entry.
	Commands []state.Command
	// RecheckAfter is the time until the next decision if nothing changes. 0: only a change
	// causes a decision.
	RecheckAfter time.Duration
	// Rest is the least time until the next decision.
	Rest time.Duration
	// RetryAfter is the time until the next decision if the commands change nothing.
	RetryAfter time.Duration
	// OnCommitted is called once the state and the commands are committed. It is not called
	// if they are not committed.
	OnCommitted func()
}

// NewSequencer returns a sequencer for one leadership. Its goroutine calls decide.
// committed is called with the results of each entry, in the order of the log.
func NewSequencer(log Log, f *FSM, decide func(*state.View) Decision, committed func([]state.Result)) *Sequencer {
	return &Sequencer{
		log: log, fsm: f, decide: decide, committed: committed,
		queue: make(chan *Proposal, maxQueued), wake: make(chan struct{}, 1),
		ended: make(chan struct{}), entryDone: make(chan struct{}, 1), began: time.Now(),
	}
}

// Waited returns how long the oldest entry without an outcome has been in flight. It is 0
// when every entry has its outcome.
func (q *Sequencer) Waited() time.Duration {
	if at := q.oldest.Load(); at != 0 {
		return time.Since(q.began) - time.Duration(at-1)
	}
	return 0
}

// Wake makes the sequencer decide although no command was proposed.
func (q *Sequencer) Wake() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Commit proposes a command and returns its result. Errors: the errors of Propose and Wait.
func (q *Sequencer) Commit(ctx context.Context, cmd state.Command) (state.Result, error) {
	p, err := q.Propose(cmd)
	if err != nil {
		return state.Result{}, err
	}
	return p.Wait(ctx)
}

// CommitQueued is like Commit, but waits while the queue is full.
func (q *Sequencer) CommitQueued(ctx context.Context, cmd state.Command) (state.Result, error) {
	p, err := q.ProposeQueued(ctx, cmd)
	if err != nil {
		return state.Result{}, err
	}
	return p.Wait(ctx)
}

// ProposeQueued is like Propose, but waits while the queue is full. When ctx ends first, it
// returns ErrQueueFull.
func (q *Sequencer) ProposeQueued(ctx context.Context, cmd state.Command) (p *Proposal, err error) {
	err = WhileFull(ctx, func() error {
		p, err = q.Propose(cmd)
		return err
	})
	return p, err
}

// WhileFull calls propose, and again after a pause while propose returns ErrQueueFull. It
// returns the error of the last call. No further call begins after the end of ctx.
func WhileFull(ctx context.Context, propose func() error) error {
	for {
		err := propose()
		if !errors.Is(err, ErrQueueFull) {
			return err
		}
		retry := time.NewTimer(queueRetry)
		select {
		case <-ctx.Done():
			retry.Stop()
			return err
		case <-retry.C:
		}
	}
}

// Propose adds a command to the queue. Errors: ErrQueueFull, ErrNotLeader, ErrBatch.
func (q *Sequencer) Propose(cmd state.Command) (*Proposal, error) {
	if cmd.Batch != nil {
		return nil, ErrBatch // the commands of an entry are a batch already
	}
	cmd.NowUnixNano = time.Now().UnixNano()
	p := &Proposal{cmd: cmd, size: commandBytes(&cmd), done: make(chan struct{}), ended: q.ended}
	select {
	case <-q.ended:
		return nil, ErrNotLeader
	default:
	}
	if n := q.bytes.Add(p.size); n > maxQueuedBytes {
		q.bytes.Add(-p.size)
		return nil, fmt.Errorf("%w: commands of %d MiB wait", ErrQueueFull, maxQueuedBytes>>20)
	}
	select {
	case q.queue <- p:
		return p, nil
	default:
		q.bytes.Add(-p.size)
		return nil, fmt.Errorf("%w: %d commands wait", ErrQueueFull, maxQueued)
	}
}

// commandBytes estimates how much memory a command in the queue takes.
func commandBytes(cmd *state.Command) int64 {
	const least, item = 512, 128
	n := least
	switch {
	case cmd.SubmitLocalJob != nil:
		n += len(cmd.SubmitLocalJob.Job.Spec)
	case cmd.UpsertNode != nil:
		n += len(cmd.UpsertNode.Node.Inventory)
	case cmd.AgentReports != nil:
		for i := range cmd.AgentReports.Reports {
			r := &cmd.AgentReports.Reports[i]
			n += item + len(r.Message) + len(r.Tasks)
		}
		n += item * len(cmd.AgentReports.Released)
	case cmd.ApplyOrders != nil:
		for i := range cmd.ApplyOrders.Orders {
			n += 2 * item
			if j := cmd.ApplyOrders.Orders[i].Job; j != nil {
				n += len(j.Spec)
			}
		}
		n += item * len(cmd.ApplyOrders.Removed)
	case cmd.ChangeDocuments != nil:
		for _, d := range cmd.ChangeDocuments.Puts {
			n += item + len(d.Value)
		}
	case cmd.Purge != nil:
		n += item * (len(cmd.Purge.Jobs) + len(cmd.Purge.Keys))
	}
	return int64(n)
}

// Run proposes commands until ctx ends or an entry fails. The error of a failed entry says
// that leadership was lost or that the server must stop. When Run returns, every proposed
// command has an outcome.
func (q *Sequencer) Run(ctx context.Context) error {
	inFlight := make(chan entry, maxInFlight)
	ctx, lost := context.WithCancel(ctx)
	defer lost()
	var grp errgroup.Group
	grp.Go(func() error {
		defer close(inFlight)
		return q.propose(ctx, inFlight)
	})
	grp.Go(func() error {
		var first error
		for e := range inFlight { // drains the channel, so that every command gets an outcome
			if first != nil {
				e.onCommitted = nil // the decision is based on a state that is not committed
			}
			q.oldest.Store(int64(e.proposed) + 1)
			err := q.finish(e)
			q.oldest.Store(0)
			if err != nil && first == nil {
				first = err
				lost()
			}
			q.inFlight.Add(-1)
			select {
			case q.entryDone <- struct{}{}:
			default:
			}
		}
		return first
	})
	err := grp.Wait()
	close(q.ended)
	return err
}

// propose puts waiting commands into entries, until ctx ends.
func (q *Sequencer) propose(ctx context.Context, inFlight chan<- entry) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if !q.due.IsZero() {
			timer.Reset(time.Until(q.due))
		}
		e := entry{}
		switch {
		case ctx.Err() != nil:
			return nil
		case q.next == nil && len(q.pending.commands) == 0:
			select {
			case <-ctx.Done():
				return nil
			case q.next = <-q.queue:
				q.dequeued()
			case <-q.wake:
				q.decideAt(time.Now())
			case <-timer.C:
			}
		}
		timer.Stop()
		// While an entry is written to disk, commands gather for the next one.
		if !q.waitInFlight(ctx, gatherBehind) || !q.ensureSpeculative(ctx) {
			return nil
		}
		q.gather(&e)
		q.fill(&e, inFlight)
	}
}

// dequeued subtracts the size of next from the bytes in the queue.
func (q *Sequencer) dequeued() { q.bytes.Add(-q.next.size) }

// decideAt sets the time of the next decision, unless an earlier time is set.
func (q *Sequencer) decideAt(t time.Time) {
	if t.Before(q.notBefore) {
		t = q.notBefore
	}
	if q.due.IsZero() || t.Before(q.due) {
		q.due = t
	}
}

// ensureSpeculative begins a speculative state if there is none, or if a prediction was
// wrong. It returns false when ctx has ended.
func (q *Sequencer) ensureSpeculative(ctx context.Context) bool {
	if q.spec != nil && !q.mispredicted.Load() {
		return true
	}
	if !q.waitInFlight(ctx, 0) {
		return false
	}
	q.mispredicted.Store(false)
	q.spec = q.fsm.speculate(q.log.LastIndex())
	q.dropPending()
	return true
}

// waitInFlight waits until at most n entries are in flight. It returns false when ctx has
// ended.
func (q *Sequencer) waitInFlight(ctx context.Context, n int32) bool {
	for q.inFlight.Load() > n {
		select {
		case <-ctx.Done():
			return false
		case <-q.entryDone:
		}
	}
	return true
}

// gather moves waiting commands into an entry.
func (q *Sequencer) gather(e *entry) {
	for len(e.proposals) < maxBatch {
		if q.next == nil {
			select {
			case q.next = <-q.queue:
				q.dequeued()
			default:
				return
			}
		}
		if !q.writer.add(&q.next.cmd) {
			return
		}
		e.proposals = append(e.proposals, q.next)
		q.next = nil
	}
}

// fill applies an entry's commands to the speculative state. If a decision is due and no
// plan is pending, the scheduler decides about the new state. Then fill adds as much of the
// pending plan as fits, and proposes the entry.
func (q *Sequencer) fill(e *entry, inFlight chan<- entry) {
	cmds := make([]state.Command, len(e.proposals))
	for i, p := range e.proposals {
		cmds[i] = p.cmd
	}
	for i, r := range q.spec.apply(cmds) {
		if !r.Changed {
			continue
		}
		q.decideAt(time.Now())
		if len(q.pending.commands) > 0 && q.invalidatesPending(&cmds[i]) {
			q.dropPending()
		}
	}
	if now := time.Now(); len(q.pending.commands) == 0 && !q.due.IsZero() && !q.due.After(now) {
		q.due = time.Time{}
		d := q.decide(q.spec.view())
		q.notBefore = time.Now().Add(d.Rest)
		if d.RecheckAfter > 0 {
			q.decideAt(now.Add(d.RecheckAfter))
		}
		q.pending = pendingPlan{commands: d.Commands, retry: d.RetryAfter}
		if len(d.Commands) == 0 {
			e.onCommitted = d.OnCommitted
		} else {
			q.pending.onCommitted = d.OnCommitted
		}
	}
	q.applyPending(e, inFlight)
	q.submit(e, inFlight)
}

// submit proposes an entry. An entry without commands is not proposed: it only carries its
// callback.
func (q *Sequencer) submit(e *entry, inFlight chan<- entry) {
	if data := q.writer.finish(); data != nil {
		q.spec.closeEntry(data)
		e.future = q.log.Apply(data, 0)
	} else if e.onCommitted == nil {
		return
	}
	q.inFlight.Add(1)
	e.proposed = time.Since(q.began)
	inFlight <- *e // cannot block for ever: the reader receives until the channel is closed
}

// finish waits until an entry is committed and passes its results on. Its error says that
// leadership was lost or that the server must stop.
func (q *Sequencer) finish(e entry) error {
	err := e.wait()
	if err == nil {
		if e.future != nil {
			q.committed(e.applied.Results)
			if !e.applied.Predicted {
				q.mispredicted.Store(true)
			}
		}
		if e.onCommitted != nil && !q.mispredicted.Load() {
			e.onCommitted()
		}
		for i, p := range e.proposals {
			p.end(outcome{result: e.applied.Results[i]})
		}
		return nil
	}
	for _, p := range e.proposals {
		p.end(outcome{err: err})
	}
	return err
}

// entry is a log entry that is being filled or is in flight.
type entry struct {
	// proposals are the first commands of the entry. The commands of a decision follow
	// them.
	proposals   []*Proposal
	onCommitted func()
	future      raft.ApplyFuture // nil for an entry without commands
	proposed    time.Duration    // time since Sequencer.began
	applied     Applied
}

// wait waits until the entry is committed.
func (e *entry) wait() error {
	if e.future == nil {
		return nil
	}
	err := e.future.Error()
	if err == nil {
		switch r := e.future.Response().(type) {
		case Applied:
			e.applied = r
			return nil
		case error:
			err = r
		}
	}
	if errors.Is(err, raft.ErrNotLeader) {
		return fmt.Errorf("%w: %w", ErrNotLeader, err)
	}
	return fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
}
