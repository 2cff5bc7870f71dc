package sim_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/sim"
	"github.com/nusa-scheduler/nusa/sim/simnet"
)

// TestMastersKilledUnderBatchLoad kills one master after the other while small batch jobs come
// and go. Every instance runs exactly once.
func TestMastersKilledUnderBatchLoad(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			opts := sim.Options{Regions: []string{"alpha"}, Servers: 3, Agents: 4, Net: simnet.Options{Seed: seed}}
			inBubble(t, opts, func(t *testing.T, f *sim.Federation) {
				const count = 8
				rnd := rand.New(rand.NewPCG(seed, 2))
				var jobs []string
				submit := func() {
					name := fmt.Sprintf("sum-%d", len(jobs))
					jobs = append(jobs, name)
					f.Submit(fmt.Sprintf(`
name: %s
type: batch
groups:
  all:
    count: %d
    tasks:
      main: {driver: process, config: {command: sum}, env: {SIM_RUN_TIME: %dms}, resources: {cpu: 500m, memory: 64MiB}}
`, name, count, 1+rnd.IntN(3000)))
				}
				f.AwaitRegions()
				for range 8 {
					for range 3 {
						submit()
						time.Sleep(time.Duration(rnd.IntN(500)) * time.Millisecond)
					}
					master := f.Master("alpha")
					f.Kill(fmt.Sprintf("alpha-%d", master))
					submit()
					time.Sleep(time.Duration(rnd.IntN(3000)) * time.Millisecond)
					f.StartServer("alpha", master)
					// The next master is killed only after this one has been replaced.
					time.Sleep(20 * time.Second)
				}
				for _, name := range jobs {
					f.Eventually(2*time.Minute, name+" complete", func(ctx context.Context) error {
						j, err := f.Job(ctx, name)
						if err != nil {
							return err
						}
						if s := j.GetStatus(); s.GetState() != nusav1.JobState_JOB_STATE_COMPLETE || s.GetGroups()["all"].GetCounts().GetComplete() != count {
							return fmt.Errorf("job is %v: %v", s.GetState(), s.GetGroups()["all"].GetCounts())
						}
						return nil
					})
				}
				begun := f.Begun()
				if len(begun) != count*len(jobs) {
					t.Errorf("%d instances ran, want %d", len(begun), count*len(jobs))
				}
				for i, n := range begun {
					if n != 1 {
						t.Errorf("%v ran %d times", i, n)
					}
				}
			})
		})
	}
}
