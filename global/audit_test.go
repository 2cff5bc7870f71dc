package global

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
)

// TestAuditWithinATick: changes at the same moment, in transactions of their own,
// all get an audit record, and none is refused because of another's record.
func TestAuditWithinATick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFederation()
		start := time.Now()
		s := f.start(t, "g1", func(c *Config) {
			c.Clock = func() time.Duration { return time.Since(start) }
			c.ReportInterval, c.CheckpointInterval, c.ElectionTTL = 0, 0, 0
		})
		waitActive(t, s)
		now, records := time.Now(), 0
		for i := range 3 {
			s.submit(testJob(fmt.Sprint("api-", i), 1))
		}
		if passed := time.Since(now); passed != 0 {
			t.Fatalf("%s passed: not one moment", passed)
		}
		_, err := s.store.List(t.Context(), state.AuditPrefix, func(store.KV) error { records++; return nil })
		if err != nil || records != 3 {
			t.Errorf("%d records, %v", records, err)
		}
		s.stop()
	})
}
