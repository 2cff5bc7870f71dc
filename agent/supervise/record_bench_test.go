package supervise

import (
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// BenchmarkWriteRecord is what a record costs: that a run has begun, which a
// power loss may take, and that it has ended, which it may not.
func BenchmarkWriteRecord(b *testing.B) {
	for _, c := range []struct {
		name  string
		state driver.State
	}{{"begun", driver.Running}, {"ended", driver.Ended}} {
		b.Run(c.name, func(b *testing.B) {
			dir := b.TempDir()
			r := record{Status: driver.Status{State: c.state, PID: 1234, Started: time.Now(), Finished: time.Now()}}
			for b.Loop() {
				if err := writeRecord(dir, r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
