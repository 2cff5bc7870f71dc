package global

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
)

// TestAuditWithinATick: changes of one moment are all noted, in transactions of
// their own too, and none is refused for another's note.
func TestAuditWithinATick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFederation()
		start := time.Now()
		s := f.start(t, "g1", func(c *Config) {
			c.Clock = func() time.Duration { return time.Since(start) }
			c.ReportInterval, c.CheckpointInterval, c.ElectionTTL = 0, 0, 0
		})
		waitActive(t, s)
		now, notes := time.Now(), 0
		for i := range 3 {
			s.submit(testJob(fmt.Sprint("api-", i), 1))
		}
		if passed := time.Since(now); passed != 0 {
			t.Fatalf("%s passed: not one moment", passed)
		}
		_, err := s.store.List(t.Context(), state.AuditPrefix, func(store.KV) error { notes++; return nil })
		if err != nil || notes != 3 {
			t.Errorf("%d notes, %v", notes, err)
		}
		s.stop()
	})
}
