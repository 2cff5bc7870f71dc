package regional

import (
	"context"
	"errors"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// Each agent's session has a goroutine that waits, most of the time, 4 KB deep in
// gRPC. Its stack of 8 KB has room for that and little else. A deeper call would
// double it, for good: Go halves a stack only when less than a quarter is in use.
// With ten thousand agents that is 80 MB. So such calls are made on stacks that
// come and go.

// aside runs f on another stack, which is given back when it ends: what may wait,
// and happens once in a session.
func aside(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return <-done
}

// desks run what needs a deep stack and does not wait. There are so few that the
// stacks do not count, even when every agent has something to say at once.
type desks chan struct{}

// maxDesks at a time: more than there are processors for, mostly.
const maxDesks = 32

func newDesks() desks { return make(desks, maxDesks) }

// run returns when f has. f must wait for nobody.
func (d desks) run(f func()) {
	d <- struct{}{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { <-d }()
		f()
	}()
	<-done
}

// commit is do for those whose own stack is shallow.
func (l *leader) commit(ctx context.Context, cmd state.Command) error {
	for {
		var p *proposal
		var err error
		l.desks.run(func() { p, err = l.seq.start(cmd) })
		if err == nil {
			_, err = p.wait(ctx)
			return err
		}
		if !errors.Is(err, ErrQueueFull) {
			return err
		}
		if pause(ctx, 10*time.Millisecond); ctx.Err() != nil {
			return err
		}
	}
}
