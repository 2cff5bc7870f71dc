package raftlog

import (
	"context"
	"fmt"
)

// verifyQueue bounds the callers that wait for the next round trip. Further callers block.
const verifyQueue = 1024

// Verifier proves that this server still leads. One round trip to a quorum serves all
// callers that waited when the round trip began. Such a caller knows that no other master
// was elected before its call. So a lease that is counted from the call ends before another
// master grants the lease to another agent.
type Verifier struct {
	// verify asks a quorum. Its error says that this server does not lead.
	verify   func() error
	requests chan chan error
	ended    chan struct{} // closed when Run returns
}

// NewVerifier returns a verifier that asks a quorum with round.
func NewVerifier(round func() error) *Verifier {
	return &Verifier{verify: round, requests: make(chan chan error, verifyQueue), ended: make(chan struct{})}
}

// Wait returns nil when a quorum confirmed, after the call began, that this server leads.
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

// Run serves callers until ctx ends. It returns an error as soon as this server does not
// lead.
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
