package global

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/uplink"
)

// TestLeadershipIsCertainForAWhile: after each renewal a server may grant leases for the TTL of the
// election, less the difference of clocks that are 1 % off. The time counts from the request, even
// if the store does not respond in the meantime.
func TestLeadershipIsCertainForAWhile(t *testing.T) {
	var now time.Duration
	var fails error
	clock := func() time.Duration { return now }
	st := state.New(state.Beginning{Epoch: "e"}, clock)
	term := &leadershipTerm{
		cfg: &Config{Clock: clock, ElectionTTL: 3 * time.Second}, state: st, known: &knownRevision{}, regions: &knownRegions{names: map[string]bool{}}, uplink: uplink.New(uplink.Config{State: st}),
		renew: func(context.Context) error { now += time.Second; return fails }, // the answer takes a second
	}
	if st.Serving() {
		t.Error("certain before the first proof")
	}
	if err := term.confirm(t.Context()); err != nil || !st.Serving() {
		t.Errorf("not certain after a proof, %v", err)
	}
	fails = errors.New("no answer")
	if err := term.confirm(t.Context()); err == nil || !st.Serving() {
		t.Errorf("not certain within the time, %v", err)
	}
	now = 3*time.Second*99/101 - time.Millisecond
	if !st.Serving() {
		t.Error("not certain just before the time is over")
	}
	now = 3 * time.Second * 99 / 101 // the TTL counts from the request of the last renewal
	if st.Serving() {
		t.Error("certain when a successor may be active")
	}
	fails = nil
	if err := term.confirm(t.Context()); err != nil || !st.Serving() {
		t.Errorf("not certain after another proof, %v", err)
	}
	term.ctx, term.end = context.WithCancelCause(t.Context())
	if term.retire(); st.Serving() {
		t.Error("certain after the end of the term")
	}
}

// TestElectionFollowsTheLease: without a setting the candidacy does not last longer than the regions'
// lease. Otherwise each death of the active server would stop the work that the lease binds.
func TestElectionFollowsTheLease(t *testing.T) {
	for lease, want := range map[time.Duration]time.Duration{0: 5 * time.Second, time.Minute: 5 * time.Second, 3 * time.Second: 3 * time.Second} {
		c, err := Config{Name: "g1", DataDir: t.TempDir(), Lease: lease}.withDefaults()
		if err != nil || c.ElectionTTL != want {
			t.Errorf("lease %s: candidacy %s, %v, want %s", lease, c.ElectionTTL, err, want)
		}
	}
}
