package global

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/lease"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// leadership reads the stored record of the leadership term.
func (f *federation) leadership(t *testing.T) *nusav1.LeadershipRecord {
	t.Helper()
	c := f.mem.Client()
	defer c.Close()
	kv, ok, _, err := c.Get(t.Context(), "/nusa/v1/leadership")
	rec := new(nusav1.LeadershipRecord)
	if err != nil || !ok || state.Decode(kv, rec) != nil {
		t.Fatalf("record of the leadership term: %t, %v", ok, err)
	}
	return rec
}

// TestTermsAreNumbered: each leadership term has a greater number and another nonce, which
// the welcome names.
func TestTermsAreNumbered(t *testing.T) {
	f := newFederation()
	first := f.start(t, "g1")
	w := first.joined("alpha").welcome
	stored := f.leadership(t).GetTerm()
	if w.GetLeadershipTerm().GetNumber() != 1 || w.GetLeadershipTerm().GetNonce() == "" || stored.GetNonce() != w.GetLeadershipTerm().GetNonce() {
		t.Errorf("welcome %v, stored %v", w, stored)
	}
	if w.GetFederationId() == "" || w.GetStoreRevision() == 0 || w.GetFeatureLevel() != featureLevel {
		t.Errorf("welcome %v", w)
	}
	first.stop()
	second := f.start(t, "g2")
	next := second.joined("alpha").welcome
	if next.GetLeadershipTerm().GetNumber() != 2 || next.GetLeadershipTerm().GetNonce() == stored.GetNonce() {
		t.Errorf("the term after %v is %v", stored, next.GetLeadershipTerm())
	}
	if next.GetFederationId() != w.GetFederationId() || next.GetStoreRevision() <= w.GetStoreRevision() {
		t.Errorf("welcome %v after %v", next, w)
	}
}

// TestLeaseMaxIsStored: a server with a shorter lease waits for the longer one that its
// predecessor may have granted, and lowers the stored length once that is over.
func TestLeaseMaxIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFederation()
		start := time.Now()
		with := func(length time.Duration) func(*Config) {
			return func(c *Config) { c.Clock, c.Lease = func() time.Duration { return time.Since(start) }, length }
		}
		stored := func(want time.Duration, when string) {
			t.Helper()
			synctest.Wait()
			if got := f.leadership(t).GetLeaseMax().AsDuration(); got != want {
				t.Errorf("%s: the longest lease is %s, want %s", when, got, want)
			}
		}
		long := f.start(t, "g1", with(time.Minute))
		stored(time.Minute, "before anything is granted")
		long.stop()
		short := f.start(t, "g2", with(10*time.Second))
		stored(time.Minute, "after the takeover")
		// The predecessor may have granted until its candidacy of 5 s was over.
		over := 5*time.Second + lease.Over(time.Minute, 0)
		time.Sleep(over - time.Second)
		stored(time.Minute, "before its leases are over")
		time.Sleep(2 * time.Second)
		stored(10*time.Second, "after its leases are over")
		short.stop()
	})
}

// TestCandidacyIsStored: a server whose election key was removed may grant leases until its
// candidacy is over. A successor with a shorter candidacy still tells the next server about the
// longer one.
func TestCandidacyIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFederation()
		start := time.Now()
		with := func(candidacy time.Duration) func(*Config) {
			return func(c *Config) {
				c.Clock, c.Lease, c.ElectionTTL = func() time.Duration { return time.Since(start) }, 10*time.Second, candidacy
			}
		}
		check := func(want time.Duration, when string) {
			t.Helper()
			synctest.Wait()
			if got := f.leadership(t).GetCandidacy().AsDuration(); got != want {
				t.Errorf("%s: a predecessor may grant for %s, want %s", when, got, want)
			}
		}
		long := f.start(t, "g1", with(time.Minute))
		check(time.Minute, "before anything is granted")
		long.stop()
		short := f.start(t, "g2", with(5*time.Second))
		check(time.Minute, "after the takeover")
		over := time.Minute + lease.Over(10*time.Second, 0)
		time.Sleep(over - time.Second)
		check(time.Minute, "before the leases of the predecessor are over")
		time.Sleep(2 * time.Second)
		check(5*time.Second, "after they are over")
		short.stop()
	})
}

// TestLevelOfAllServers: the welcome names the feature level that all servers that stand for
// election support, also servers of an earlier version.
func TestLevelOfAllServers(t *testing.T) {
	f := newFederation()
	older := f.mem.Client()
	defer older.Close()
	s := f.start(t, "g1")
	value, err := state.Encode(&nusav1.GlobalServer{Name: "g0", Address: "g0:7600"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := older.Txn(t.Context(), nil, []store.Op{store.Put(state.ElectionPrefix+"zz", value)}); err != nil {
		t.Fatal(err)
	}
	for term := uint64(1); ; term++ {
		r := s.join(helloOf("alpha", term))
		r.wait("welcome", func() bool { return r.welcome != nil })
		if r.welcome.GetFeatureLevel() == 0 {
			return // the active server has noticed
		}
		r.leave()
	}
}
