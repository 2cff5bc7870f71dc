package raftlog

import (
	"context"
	"fmt"
)

// verifyQueue bounds those who wait for the next round; more wait in turn.
const verifyQueue = 1024

// Verifier makes sure that this server still leads: one round trip to a quorum
// answers everybody who asked before it began. Who asked is then sure that no
// other master was elected before the question, so that a lease counted from
// there ends before anybody else gives it away.
type Verifier struct {
	// verify asks a quorum; its error says that this server leads no more.
	verify   func() error
	requests chan chan error
	ended    chan struct{} // closed when nobody answers any more
}

func NewVerifier(round func() error) *Verifier {
	return &Verifier{verify: round, requests: make(chan chan error, verifyQueue), ended: make(chan struct{})}
}

// Wait returns nil once leadership was verified after the call began.
func (v *Verifier) Wait(ctx context.Context) error {
	answer := make(chan error, 1)
	select {
	case v.requests <- answer:
	case <-v.ended:
		return ErrNotLeader
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-answer:
		return err
	case <-v.ended:
		return ErrNotLeader
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Run answers until ctx ends or leadership cannot be verified.
func (v *Verifier) Run(ctx context.Context) error {
	defer close(v.ended)
	for {
		var waiting []chan error
		select {
		case <-ctx.Done():
			return nil
		case a := <-v.requests:
			waiting = append(waiting, a)
		}
	gather:
		for {
			select {
			case a := <-v.requests:
				waiting = append(waiting, a)
			default:
				break gather
			}
		}
		err := v.verify()
		if err != nil {
			err = fmt.Errorf("%w: verify leadership: %w", ErrNotLeader, err)
		}
		for _, a := range waiting {
			a <- err
		}
		if err != nil {
			return err
		}
	}
}
