package raftlog

import (
	"context"
	"fmt"
)

// verifyQueue bounds the callers that wait for the next round; more block.
const verifyQueue = 1024

// Verifier proves that this server still leads. One round trip to a quorum serves
// all callers that waited when it began. Such a caller knows that no other master
// was elected before its call: a lease counted from the call ends before another
// master grants it to another agent.
type Verifier struct {
	// verify asks a quorum; its error says that this server does not lead.
	verify   func() error
	requests chan chan error
	ended    chan struct{} // closed when Run returns
}

// NewVerifier returns a verifier; round asks a quorum.
func NewVerifier(round func() error) *Verifier {
	return &Verifier{verify: round, requests: make(chan chan error, verifyQueue), ended: make(chan struct{})}
}

// Wait returns nil when leadership was verified after the call began.
func (v *Verifier) Wait(ctx context.Context) error {
	result := make(chan error, 1)
	select {
	case v.requests <- result:
	case <-v.ended:
		return ErrNotLeader
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-result:
		return err
	case <-v.ended:
		return ErrNotLeader
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Run verifies until ctx ends, or returns the error when this server does not lead.
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
