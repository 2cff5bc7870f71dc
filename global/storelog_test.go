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
// length of its log. It grants no lease and declares no region lost until the store tells it. If
// the log is then another one than the records know, nothing is ordered before a recovery.
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
	seoul := s.joined("seoul")
	grants := func() int {
		seoul.mu.Lock()
		defer seoul.mu.Unlock()
		return len(seoul.grants)
	}
	id := uint64(0)
	ask := func(times int) {
		for range times {
			id++
			seoul.askLease(id)
			time.Sleep(time.Second)
		}
	}
	ask(60)
	if n, lost := grants(), s.getRegion("jakarta").GetLost(); n > 0 || lost != nil {
		t.Errorf("the store may be an old copy, but %d leases were granted, and jakarta is lost: %v", n, lost)
	}
	log.fails.Store(false)
	if restored {
		waitInfo(t, s, "active with an alarm", func(i *nusav1.InfoResponse) bool {
			return i.GetLeader() && len(i.GetAlarms()) == 1 && strings.Contains(i.GetAlarms()[0], "not the one that its records know")
		})
		return
	}
	ask(5)
	if n, lost := grants(), s.getRegion("jakarta").GetLost(); n == 0 || lost == nil {
		t.Errorf("the store is the same one, but %d leases were granted, and jakarta is lost: %v", n, lost)
	}
}
