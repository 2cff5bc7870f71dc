package supervise

import (
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// BenchmarkWriteRecord measures a record of a start, which need not be durable, and
// of an end, which must be.
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
