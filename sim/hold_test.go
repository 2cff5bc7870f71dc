package sim_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/sim"
	"github.com/nusa-scheduler/nusa/sim/simnet"
)

// TestALargeJobDoesNotStarve: small jobs arrive faster than nodes become empty, so no region
// reports room for the large job until one region holds it.
func TestALargeJobDoesNotStarve(t *testing.T) {
	opts := sim.Options{Regions: []string{"alpha", "beta"}, Servers: 1, Agents: 2, Net: simnet.Options{Seed: 1}}
	inBubble(t, opts, func(t *testing.T, f *sim.Federation) {
		f.AwaitRegions()
		job := func(name, cpu string, runs time.Duration) string {
			return fmt.Sprintf(`
name: %s
type: batch
groups:
  all:
    tasks:
      main: {driver: process, config: {command: sum}, env: {SIM_RUN_TIME: %s}, resources: {cpu: %s, memory: 64MiB}}
`, name, runs, cpu)
		}
		// Of 4 nodes with 8 cores each, 30 cores are always in use.
		small := 0
		more := func() {
			f.Submit(job(fmt.Sprintf("small-%d", small), "2", time.Minute))
			small++
		}
		for small < 15 {
			more()
			time.Sleep(4 * time.Second)
		}
		f.Submit(job("large", "8", time.Minute))
		began := f.Clock()
		for {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			j, err := f.Job(ctx, "large")
			cancel()
			if err != nil {
				t.Fatal(err)
			}
			if s := j.GetStatus().GetState(); s == nusav1.JobState_JOB_STATE_RUNNING || s == nusav1.JobState_JOB_STATE_COMPLETE {
				for _, slot := range j.GetStatus().GetGroups()["all"].GetSlots() {
					if !strings.Contains(slot.GetPlacedBecause(), "holds it") {
						t.Errorf("it was not starving: %v", slot)
					}
				}
				break
			}
			// The region first holds the instance, then a node is reserved, then the node is empty.
			if f.Clock()-began > 5*time.Minute {
				t.Fatalf("waits for 5 minutes: %v", j)
			}
			more()
			time.Sleep(4 * time.Second)
		}
	})
}
