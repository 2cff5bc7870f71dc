package global

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/state"
)

// TestLeadershipIsCertainForAWhile: leases may be granted for the TTL of the
// election after each renewal, counted from the request, even if the store does not
// respond in the meantime.
func TestLeadershipIsCertainForAWhile(t *testing.T) {
	var now time.Duration
	var fails error
	clock := func() time.Duration { return now }
	term := &leadershipTerm{
		cfg: &Config{Clock: clock, ElectionTTL: 3 * time.Second}, state: state.New("e", clock, 10*time.Second),
		renew: func(context.Context) error { now += time.Second; return fails }, // the answer takes a second
	}
	if term.mayGrant() {
		t.Error("certain before the first proof")
	}
	if err := term.confirm(t.Context()); err != nil || !term.mayGrant() {
		t.Errorf("not certain after a proof, %v", err)
	}
	fails = errors.New("no answer")
	if err := term.confirm(t.Context()); err == nil || !term.mayGrant() {
		t.Errorf("not certain within the time, %v", err)
	}
	now = 3 * time.Second // the TTL counts from the request of the last renewal
	if term.mayGrant() {
		t.Error("certain when a successor may be active")
	}
	fails = nil
	if err := term.confirm(t.Context()); err != nil || !term.mayGrant() {
		t.Errorf("not certain after another proof, %v", err)
	}
}
