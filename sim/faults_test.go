package sim_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/sim"
	"github.com/nusa-scheduler/nusa/sim/simnet"
)

var seeds = flag.Uint64("seeds", 3, "how many seeds TestRandomFaults tries, from 0")

// TestRandomFaults causes one seeded fault after the other while jobs come and go, and heals each
// fault. In the end every job runs exactly once. Meanwhile instances may run twice, as `keep` with
// `replace` allows. Each time of a schedule has one run.
func TestRandomFaults(t *testing.T) {
	for seed := range *seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			opts := sim.Options{Globals: 2, Servers: 3, Agents: 3, Net: simnet.Options{Loss: 0.01, Seed: seed}}
			inBubble(t, opts, func(t *testing.T, f *sim.Federation) {
				rnd := rand.New(rand.NewPCG(seed, 1))
				counts := map[string]int32{} // 0 = stopped
				s, began := schedules{t, f}, time.Now()
				spec := runsEvery("often", 20*time.Second, 3*time.Second)
				spec.Schedule.Overlap = nusav1.Overlap_OVERLAP_ALLOW
				s.submit(spec)
				for i := range 8 {
					name := fmt.Sprintf("job-%d", i)
					counts[name] = 1 + rnd.Int32N(5)
					heal := fault(t, f, rnd)
					f.Submit(service(name, int(counts[name])))
					time.Sleep(time.Duration(rnd.IntN(60)) * time.Second)
					if i%3 == 2 {
						stopped := fmt.Sprintf("job-%d", rnd.IntN(i))
						f.StopJob(stopped)
						counts[stopped] = 0
					}
					heal()
					time.Sleep(time.Duration(rnd.IntN(20)) * time.Second)
				}
				f.AwaitRegions()
				s.awaitOneRunEach("often", began, 20*time.Second)
				for i := range 8 {
					name := fmt.Sprintf("job-%d", i)
					if count := counts[name]; count > 0 {
						awaitRunsOnce(f, 5*time.Minute, name, count)
						continue
					}
					f.Eventually(5*time.Minute, name+" gone", func(ctx context.Context) error { return f.Gone(ctx, name) })
				}
			})
		})
	}
}

// fault causes one fault and returns the function that ends it. At most one server of a tier is
// down at any time.
func fault(t *testing.T, f *sim.Federation, rnd *rand.Rand) (heal func()) {
	region := []string{"alpha", "beta"}[rnd.IntN(2)]
	i := 1 + rnd.IntN(3)
	agent, server := fmt.Sprintf("%s-agent-%d", region, i), fmt.Sprintf("%s-%d", region, i)
	switch rnd.IntN(8) {
	case 0:
		t.Logf("kill %s", agent)
		f.Kill(agent)
		return func() { f.StartAgent(region, i) }
	case 1:
		t.Logf("kill %s", server)
		f.Kill(server)
		return func() { f.StartServer(region, i) }
	case 2:
		i = f.Master(region)
		t.Logf("kill the master of %s, %d", region, i)
		f.Kill(fmt.Sprintf("%s-%d", region, i))
		return func() { f.StartServer(region, i) }
	case 3:
		i = f.Active()
		t.Logf("kill the active global server, %d", i)
		f.Kill(fmt.Sprintf("global-%d", i))
		return func() { f.StartGlobal(i) }
	case 4:
		t.Logf("cut %s off from the global tier", region)
		return f.Cut(f.GlobalIPs(), f.RegionIPs(region))
	case 5:
		active := fmt.Sprintf("global-%d", f.Active())
		t.Logf("cut %s, the active one, off from the store", active)
		return f.CutStore(active)
	case 6:
		t.Logf("cut %s off from its region", agent)
		return f.Cut([]string{f.AgentIP(region, i)}, f.RegionIPs(region)[:3])
	default:
		master := f.Master(region)
		t.Logf("cut the master of %s, %d, off from the other servers", region, master)
		var others []string
		for k := 1; k <= 3; k++ {
			if k != master {
				others = append(others, f.ServerIP(region, k))
			}
		}
		return f.Cut([]string{f.ServerIP(region, master)}, others)
	}
}
