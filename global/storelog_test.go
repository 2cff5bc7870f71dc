package global

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// silentLog is a store that does not tell the length of its log while fails is set.
type silentLog struct {
	store.Store
	fails atomic.Bool
}

func (s *silentLog) Surplus(ctx context.Context) (store.Surplus, error) {
	if s.fails.Load() {
		return store.Surplus{}, store.ErrNoQuorum
	}
	return s.Store.Surplus(ctx)
}

// TestTermWithoutTheLengthOfTheLog: a server becomes active although the store does not tell the
// length of its log. Until the store tells it, the server welcomes no region, places and orders
// nothing, grants no lease and declares no region lost. After one lease an alarm says so. If the log
// is then another one than the records know, nothing is ordered before a recovery.
func TestTermWithoutTheLengthOfTheLog(t *testing.T) {
	for name, restored := range map[string]bool{"the same store": false, "a restored snapshot": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { termWithoutTheLength(t, restored) })
		})
	}
}

func termWithoutTheLength(t *testing.T, restored bool) {
	f := newFederation()
	start := time.Now()
	quick := func(c *Config) {
		c.Clock, c.Lease, c.ElectionTTL = func() time.Duration { return time.Since(start) }, 6*time.Second, 3*time.Second
	}
	first := f.start(t, "g1", quick)
	jakarta := first.joined("jakarta")
	first.joined("seoul").leave()
	first.submit(testJob("api", 2, inJakarta(20*time.Second)))
	jakarta.waitSlot("default/api/web/0", accepted)
	jakarta.leave()
	first.stop()
	if restored {
		f.mem = f.mem.Snapshot()
	}
	var log *silentLog
	s := f.start(t, "g2", quick, func(c *Config) {
		log = &silentLog{Store: c.Store}
		log.fails.Store(true)
		c.Store = log
	})
	waitInfo(t, s, "active", func(i *nusav1.InfoResponse) bool { return i.GetLeader() && len(i.GetAlarms()) == 0 })
	s.submit(testJob("new", 1))
	for range 3 { // each stream waits for one lease, and is then refused
		began := time.Now()
		seoul := s.join(helloOf("seoul", 1))
		seoul.wait("the end", func() bool { return seoul.err != nil })
		if held := time.Since(began).Round(time.Second); seoul.welcome != nil || seoul.orders > 0 || held != 6*time.Second {
			t.Errorf("the store may be an old copy, but seoul got %v and %d orders, after %s", seoul.welcome, seoul.orders, held)
		}
	}
	time.Sleep(40 * time.Second)
	if lost, slots := s.getRegion("jakarta").GetLost(), slotsOf(t, s, "new"); lost != nil || len(slots) > 0 {
		t.Errorf("the store may be an old copy, but jakarta is lost: %v, and the new job has the slots %v", lost, slots)
	}
	waitInfo(t, s, "active with an alarm", func(i *nusav1.InfoResponse) bool {
		return i.GetLeader() && len(i.GetAlarms()) == 1 && strings.Contains(i.GetAlarms()[0], "nothing is placed, ordered or granted: make a member of the store answer")
	})
	early := s.join(helloOf("seoul", 1))
	time.Sleep(time.Second)
	log.fails.Store(false)
	if restored {
		waitInfo(t, s, "active with an alarm", func(i *nusav1.InfoResponse) bool {
			return i.GetLeader() && len(i.GetAlarms()) == 1 && strings.Contains(i.GetAlarms()[0], "not the one that its records know")
		})
		return
	}
	early.wait("welcome", func() bool { return early.welcome != nil })
	early.waitSlot("default/new/web/0", accepted)
	for id := range uint64(30) {
		early.askLease(id + 1)
		time.Sleep(time.Second)
	}
	early.mu.Lock()
	grants := len(early.grants)
	early.mu.Unlock()
	if lost := s.getRegion("jakarta").GetLost(); grants == 0 || lost == nil {
		t.Errorf("the store is the same one, but %d leases were granted, and jakarta is lost: %v", grants, lost)
	}
	waitInfo(t, s, "active without an alarm", func(i *nusav1.InfoResponse) bool { return i.GetLeader() && len(i.GetAlarms()) == 0 })
}

// slotsOf returns the slots of the group of a job.
func slotsOf(t *testing.T, s *testServer, name string) []*nusav1.Slot {
	t.Helper()
	j, err := s.jobs().Get(t.Context(), &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: name}})
	if err != nil {
		t.Fatal(err)
	}
	return j.GetStatus().GetGroups()["web"].GetSlots()
}
