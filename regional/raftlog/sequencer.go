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

// Errors of the sequencer.
var (
	// ErrQueueFull: more commands wait than the queue takes; retry later.
	ErrQueueFull = errors.New("command queue is full")
	// ErrNotLeader: this server leads no more; nothing was changed.
	ErrNotLeader = errors.New("not the master")
	// ErrUnknownOutcome: leadership ended while the command was on its way. It
	// may or may not be committed: ask the new master, or retry with the same
	// idempotency key.
	ErrUnknownOutcome = errors.New("leadership lost: outcome unknown")
)

const (
	// queueLimit bounds the commands that wait to be proposed: each of ten
	// thousand agents may have one on its way, and waits in turn beyond that.
	queueLimit = 16_384
	// queueRetry is the pause before a full queue is tried again.
	queueRetry = 10 * time.Millisecond
	// queueBytes bounds them too.
	queueBytes = 64 << 20
	// gatherBehind is how many entries are on their way at most when a new one
	// is begun: one is written while the next is gathered, and the cost of an
	// entry is shared by more commands the more there are.
	gatherBehind = 1
	// maxInFlight bounds the entries proposed and not yet committed.
	maxInFlight = 16
	// maxBatch bounds the commands of one entry.
	maxBatch = 1024
)

// Proposal is one command on its way.
type Proposal struct {
	cmd  state.Command
	size int64
	done chan outcome // buffered: the sequencer never waits for its caller
	// ended is closed when nothing is proposed any more and all that was
	// proposed is answered.
	ended <-chan struct{}
}

type outcome struct {
	result state.Result
	err    error
}

// Wait answers what became of the command. After ctx it is unknown.
func (p *Proposal) Wait(ctx context.Context) (state.Result, error) {
	o := outcome{err: ErrNotLeader}
	select {
	case o = <-p.done:
	case <-p.ended:
		select {
		case o = <-p.done:
		default: // it never left the queue
		}
	case <-ctx.Done():
		return state.Result{}, fmt.Errorf("%w: %w", ErrUnknownOutcome, context.Cause(ctx))
	}
	if o.err == nil {
		o.err = o.result.Err
	}
	return o.result, o.err
}

// Sequencer is the one goroutine of a leadership that proposes commands. Small
// ones that wait together share a log entry, with what the scheduler decides
// about them, and entries follow one another without waiting for their commit.
type Sequencer struct {
	log Log
	fsm *FSM
	// decide says what is to be done about a state.
	decide func(*state.View) Decision
	// committed is told the results of each entry, in order, before those who
	// wait for them.
	committed func([]state.Result)
	queue     chan *Proposal
	bytes     atomic.Int64  // of the commands in the queue
	wake      chan struct{} // room for one
	ended     chan struct{}

	// astray: an entry did not come where it was foreseen. flying counts those
	// not settled; landed, with room for one, tells that one was.
	mispredicted atomic.Bool
	inFlight     atomic.Int32
	entryDone    chan struct{}

	// The following are the proposing goroutine's.
	writer  entryWriter
	spec    *speculativeState
	next    *Proposal // that did not fit into the entry before
	pending pendingPlan
	// due: something is to be decided, but not before then; zero = nothing is.
	due time.Time
	// rest: nothing is decided before then.
	notBefore time.Time
}

// Log is the log as a sequencer needs it.
type Log interface {
	Apply(data []byte, timeout time.Duration) raft.ApplyFuture
	LastIndex() uint64
}

// Decision is what a scheduler makes of a state.
type Decision struct {
	// Commands to propose next, each within an entry.
	Commands []state.Command
	// again: ask again then, though nothing changes; 0 = only after a change.
	RecheckAfter time.Duration
	// rest: do not ask again before so long has passed.
	Rest time.Duration
	// retry: ask again after so long if the commands change nothing.
	RetryAfter time.Duration
	// OnCommitted is called when all that the state holds, and the commands, are
	// committed.
	OnCommitted func()
}

func NewSequencer(log Log, f *FSM, decide func(*state.View) Decision, committed func([]state.Result)) *Sequencer {
	return &Sequencer{
		log: log, fsm: f, decide: decide, committed: committed,
		queue: make(chan *Proposal, queueLimit), wake: make(chan struct{}, 1),
		ended: make(chan struct{}), entryDone: make(chan struct{}, 1),
	}
}

// Wake makes the sequencer decide although nothing was proposed.
func (q *Sequencer) Wake() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Commit commits a command and answers with its result. Error: that of the result,
// or one of the sequencer's.
func (q *Sequencer) Commit(ctx context.Context, cmd state.Command) (state.Result, error) {
	p, err := q.Propose(cmd)
	if err != nil {
		return state.Result{}, err
	}
	return p.Wait(ctx)
}

// CommitQueued is Commit, but waits while the queue is full.
func (q *Sequencer) CommitQueued(ctx context.Context, cmd state.Command) (state.Result, error) {
	p, err := q.ProposeQueued(ctx, cmd)
	if err != nil {
		return state.Result{}, err
	}
	return p.Wait(ctx)
}

// ProposeQueued is Propose, but waits while the queue is full. When ctx ends
// its error is ErrQueueFull.
func (q *Sequencer) ProposeQueued(ctx context.Context, cmd state.Command) (*Proposal, error) {
	for {
		p, err := q.Propose(cmd)
		if !errors.Is(err, ErrQueueFull) {
			return p, err
		}
		retry := time.NewTimer(queueRetry)
		select {
		case <-ctx.Done():
			retry.Stop()
			return nil, err
		case <-retry.C:
		}
	}
}

// Propose queues a command. Errors: ErrQueueFull, ErrNotLeader.
func (q *Sequencer) Propose(cmd state.Command) (*Proposal, error) {
	cmd.NowUnixNano = time.Now().UnixNano()
	p := &Proposal{cmd: cmd, size: commandBytes(&cmd), done: make(chan outcome, 1), ended: q.ended}
	select {
	case <-q.ended:
		return nil, ErrNotLeader
	default:
	}
	if n := q.bytes.Add(p.size); n > queueBytes {
		q.bytes.Add(-p.size)
		return nil, fmt.Errorf("%w: commands of %d MiB wait", ErrQueueFull, queueBytes>>20)
	}
	select {
	case q.queue <- p:
		return p, nil
	default:
		q.bytes.Add(-p.size)
		return nil, fmt.Errorf("%w: %d commands wait", ErrQueueFull, queueLimit)
	}
}

// commandBytes is about how many bytes of memory a command keeps while it waits.
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
	case cmd.Purge != nil:
		n += item * (len(cmd.Purge.Jobs) + len(cmd.Purge.Keys))
	}
	return int64(n)
}

// Run proposes until ctx ends or leadership is lost, which is its error. All
// that was proposed is answered then.
func (q *Sequencer) Run(ctx context.Context) error {
	flying := make(chan entry, maxInFlight)
	ctx, lost := context.WithCancel(ctx)
	defer lost()
	var grp errgroup.Group
	grp.Go(func() error {
		defer close(flying)
		return q.propose(ctx, flying)
	})
	grp.Go(func() error {
		var first error
		for e := range flying { // to the end, so that everybody is answered
			if first != nil {
				e.onCommitted = nil // it was decided about a state that never came
			}
			if err := q.finish(e); err != nil && first == nil {
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

// propose gathers what waits into entries, until ctx ends.
func (q *Sequencer) propose(ctx context.Context, flying chan<- entry) error {
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
		// Behind an entry that waits for the disks others gather.
		if !q.waitInFlight(ctx, gatherBehind) || !q.ensureSpeculative(ctx) {
			return nil
		}
		q.gather(&e)
		q.fill(&e, flying)
	}
}

// dequeued notes that next has left the queue.
func (q *Sequencer) dequeued() { q.bytes.Add(-q.next.size) }

// decideAt notes when something is to be decided.
func (q *Sequencer) decideAt(t time.Time) {
	if t.Before(q.notBefore) {
		t = q.notBefore
	}
	if q.due.IsZero() || t.Before(q.due) {
		q.due = t
	}
}

// ensureSpeculative makes sure that there is a state ahead; false when ctx ended.
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

// waitInFlight waits until at most n entries are on their way; false when ctx
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

// gather takes what waits into an entry.
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

// fill proposes an entry, and what follows from it.
func (q *Sequencer) fill(e *entry, flying chan<- entry) {
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
	q.applyPending(e, flying)
	q.submit(e, flying)
}

// submit proposes an entry, or passes one on in which there is nothing.
func (q *Sequencer) submit(e *entry, flying chan<- entry) {
	if data := q.writer.finish(); data != nil {
		q.spec.closeEntry(data)
		e.future = q.log.Apply(data, 0)
	} else if e.onCommitted == nil {
		return
	}
	q.inFlight.Add(1)
	flying <- *e // who settles reads to the end
}

// finish waits for an entry and answers those who wait for it. Its error is
// that leadership, or the server, is at its end.
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
			p.done <- outcome{result: e.applied.Results[i]}
		}
		return nil
	}
	for _, p := range e.proposals {
		p.done <- outcome{err: err}
	}
	return err
}

// entry is a log entry, in the making or on its way.
type entry struct {
	// proposals are those whose commands are in it; what was decided follows them.
	proposals   []*Proposal
	onCommitted func()
	future      raft.ApplyFuture // nil when there is nothing in it
	applied     Applied
}

// wait blocks until it is committed.
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
