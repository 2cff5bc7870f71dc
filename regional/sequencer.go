package regional

import (
	"context"
	"errors"
	"fmt"
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
	queueLimit = 4096
	// inFlight bounds the entries proposed and not yet committed.
	inFlight = 16
	// maxBatch bounds the commands of one entry.
	maxBatch = 256
)

// proposal is one command on its way.
type proposal struct {
	data []byte
	done chan outcome // buffered: the sequencer never waits for its caller
	// ended is closed when nothing is proposed any more and all that was
	// proposed is answered.
	ended <-chan struct{}
}

type outcome struct {
	result state.Result
	err    error
}

// wait answers what became of the command. After ctx it is unknown.
func (p *proposal) wait(ctx context.Context) (state.Result, error) {
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

// sequencer is the one goroutine of a leadership that proposes commands: small
// ones that wait together share a log entry, and entries follow one another
// without waiting for their commit.
type sequencer struct {
	apply func(data []byte, timeout time.Duration) raft.ApplyFuture
	// committed is told the results of each entry, in order, before those who
	// wait for them.
	committed func([]state.Result)
	queue     chan *proposal
	ended     chan struct{}
}

func newSequencer(apply func([]byte, time.Duration) raft.ApplyFuture, committed func([]state.Result)) *sequencer {
	return &sequencer{apply: apply, committed: committed, queue: make(chan *proposal, queueLimit), ended: make(chan struct{})}
}

// do commits a command and answers with its result. Error: that of the result,
// or one of the sequencer's.
func (q *sequencer) do(ctx context.Context, cmd state.Command) (state.Result, error) {
	p, err := q.start(cmd)
	if err != nil {
		return state.Result{}, err
	}
	return p.wait(ctx)
}

// start queues a command. Errors: ErrQueueFull, ErrNotLeader.
func (q *sequencer) start(cmd state.Command) (*proposal, error) {
	cmd.NowUnixNano = time.Now().UnixNano()
	data, err := encodeCommand(&cmd)
	if err != nil {
		return nil, err
	}
	p := &proposal{data: data, done: make(chan outcome, 1), ended: q.ended}
	select {
	case <-q.ended:
		return nil, ErrNotLeader
	default:
	}
	select {
	case q.queue <- p:
		return p, nil
	default:
		return nil, fmt.Errorf("%w: %d commands wait", ErrQueueFull, queueLimit)
	}
}

// entry is one log entry on its way.
type entry struct {
	future    raft.ApplyFuture
	proposals []*proposal
}

// run proposes until ctx ends or leadership is lost, which is its error. All
// that was proposed is answered then.
func (q *sequencer) run(ctx context.Context) error {
	flying := make(chan entry, inFlight)
	ctx, lost := context.WithCancel(ctx)
	defer lost()
	var grp errgroup.Group
	grp.Go(func() error {
		defer close(flying)
		q.propose(ctx, flying)
		return nil
	})
	grp.Go(func() error {
		var first error
		for e := range flying { // to the end, so that everybody is answered
			if err := q.settle(e); err != nil && first == nil {
				first = err
				lost()
			}
		}
		return first
	})
	err := grp.Wait()
	close(q.ended)
	return err
}

// propose gathers what waits into entries, until ctx ends.
func (q *sequencer) propose(ctx context.Context, flying chan<- entry) {
	var next *proposal
	for {
		if next == nil {
			select {
			case <-ctx.Done():
				return
			case next = <-q.queue:
			}
		}
		batch, size := []*proposal{next}, len(next.data)
		next = nil
	gather:
		for len(batch) < maxBatch {
			select {
			case p := <-q.queue:
				if size+len(p.data) > maxEntry {
					next = p
					break gather
				}
				batch, size = append(batch, p), size+len(p.data)
			default:
				break gather
			}
		}
		data := make([][]byte, len(batch))
		for i, p := range batch {
			data[i] = p.data
		}
		// The other goroutine reads until this one ends.
		flying <- entry{future: q.apply(joinEntry(data), 0), proposals: batch}
	}
}

// settle waits for an entry and answers those who wait for it. Its error is
// that leadership, or the server, is at its end.
func (q *sequencer) settle(e entry) error {
	err := e.future.Error()
	var results []state.Result
	if err == nil {
		switch r := e.future.Response().(type) {
		case []state.Result:
			results = r
		case error:
			err = r
		}
	}
	switch {
	case err == nil:
		q.committed(results)
		for i, p := range e.proposals {
			p.done <- outcome{result: results[i]}
		}
		return nil
	case errors.Is(err, raft.ErrNotLeader):
		err = fmt.Errorf("%w: %w", ErrNotLeader, err)
	default:
		err = fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
	}
	for _, p := range e.proposals {
		p.done <- outcome{err: err}
	}
	return err
}
