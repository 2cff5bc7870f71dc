package global

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/bench/emulate"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// regionCPU is the CPU of an emulated region of one node, in millicores.
const regionCPU = 64_000

// overload is a load on emulated regions in virtual time. Many callers submit jobs of one instance.
// Each job runs for a while and is then purged.
type overload struct {
	// load is the CPU that the jobs ask for, as a fraction of the capacity of all regions.
	load    float64
	regions int
	callers int
	// sizes are the sizes of the jobs in millicores.
	sizes []int64
	// life is how long a job runs on average.
	life, duration time.Duration
	// patient jobs run for their whole life once they have an owner. Other jobs end after their
	// life even if they never got an owner.
	patient bool
	// near makes a third of the jobs require a near region. Another third prefers one.
	near bool
	// delay is how late the regions' reports arrive.
	delay time.Duration
	// ownEvery is the time after which a region's own jobs reserve another ownCPU; 0 = never.
	ownEvery time.Duration
	ownCPU   int64

	t     *testing.T
	s     *testServer
	fleet *emulate.Fleet
	began time.Time

	mu      sync.Mutex
	rand    *rand.Rand
	cpu     map[string]int64     // of each job
	waiting map[string]time.Time // the time since when each job has no owner
	bound   map[string]bool      // jobs that some regions do not suit
	placed  map[string]chan struct{}
	// filled counts the instances that each region has taken.
	filled   map[string]int
	samples  []sample
	most     time.Duration // the longest wait of a job that got an owner
	decided  int
	exceeded map[string]int64 // the most that a region had above its capacity
	held     map[string]int   // the most instances that waited at a region
}

// sample is the free room and the waiting jobs at one time.
type sample struct {
	at      time.Duration
	free    map[string]int64
	filled  map[string]int
	held    map[string]int   // instances that wait at a region
	waiting map[string]int64 // the size of each job
}

func (o *overload) jobCPU(name string) (int64, int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.cpu[name], 1 << 20
}

// own returns what a region's own jobs reserve. It grows with time.
func (o *overload) own(string) (int64, int64) {
	if o.ownEvery == 0 {
		return 0, 0
	}
	return int64(time.Since(o.began)/o.ownEvery) * o.ownCPU, 0
}

func (o *overload) offered(s *nusav1.Slot, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	since, waits := o.waiting[s.GetJob()]
	if !waits {
		return
	}
	delete(o.waiting, s.GetJob())
	close(o.placed[s.GetJob()])
	o.filled[s.GetRegion()]++
	o.decided++
	o.most = max(o.most, at.Sub(since))
}

// caller submits jobs until ctx ends.
func (o *overload) caller(ctx context.Context, caller int, pause time.Duration) {
	var stops sync.WaitGroup
	defer stops.Wait()
	for n := 0; ; n++ {
		o.mu.Lock()
		wait := time.Duration(o.rand.ExpFloat64() * float64(pause))
		life := time.Duration((0.5 + o.rand.Float64()) * float64(o.life))
		name := fmt.Sprintf("job-%d-%d", caller, n)
		cpu, kind, target := o.sizes[o.rand.IntN(len(o.sizes))], o.rand.IntN(3), o.rand.IntN(o.regions)
		o.mu.Unlock()
		placed := make(chan struct{})
		if !sleep(ctx, wait) {
			return
		}
		o.mu.Lock()
		o.cpu[name], o.waiting[name], o.placed[name] = cpu, time.Now(), placed
		o.bound[name] = o.near && kind == 0
		o.mu.Unlock()
		spec := testJob(name, 1, func(j *nusav1.JobSpec) {
			j.GetGroups()["web"].GetTasks()["server"].Resources = &nusav1.Resources{CpuMilli: cpu, MemoryBytes: 1 << 20}
			if o.near && kind < 2 {
				j.Regions = &nusav1.RegionsSpec{Near: []*nusav1.Near{{
					Selector: &nusav1.RegionSelector{Name: o.fleet.Names()[target]}, MaxRtt: durationpb.New(80 * time.Millisecond), Required: kind == 0,
				}}}
			}
		})
		if _, err := o.s.jobs().Submit(ctx, &nusav1.SubmitRequest{Spec: proto.CloneOf(spec)}); err != nil {
			if ctx.Err() == nil {
				o.t.Errorf("submit %s: %v", name, err)
			}
			return
		}
		stops.Go(func() {
			if o.patient {
				select {
				case <-placed:
				case <-ctx.Done():
					return
				}
			}
			if !sleep(ctx, life) {
				return
			}
			_, err := o.s.jobs().Stop(ctx, &nusav1.StopJobRequest{Job: &nusav1.JobRef{Name: name}, Purge: true})
			if err != nil && ctx.Err() == nil {
				o.t.Errorf("stop %s: %v", name, err)
			}
			o.mu.Lock()
			delete(o.waiting, name)
			o.mu.Unlock()
		})
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// sample records the free room and the waiting jobs.
func (o *overload) sample() {
	free, held := o.fleet.Free(), o.fleet.Waiting()
	o.mu.Lock()
	defer o.mu.Unlock()
	x := sample{at: time.Since(o.began), free: map[string]int64{}, filled: map[string]int{}, held: held, waiting: map[string]int64{}}
	for name, r := range free {
		x.free[name], x.filled[name] = r.GetCpuMilli(), o.filled[name]
		o.held[name] = max(o.held[name], held[name])
		o.exceeded[name] = max(o.exceeded[name], -r.GetCpuMilli())
	}
	for name := range o.waiting {
		if !o.bound[name] {
			x.waiting[name] = o.cpu[name]
		}
	}
	o.samples = append(o.samples, x)
}

// run applies the load in virtual time.
func (o *overload) run(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o.t, o.began, o.rand = t, time.Now(), rand.New(rand.NewPCG(1, uint64(len(o.sizes))))
		o.held = map[string]int{}
		o.bound, o.placed = map[string]bool{}, map[string]chan struct{}{}
		o.cpu, o.waiting, o.filled, o.exceeded = map[string]int64{}, map[string]time.Time{}, map[string]int{}, map[string]int64{}
		f := newFederation()
		o.s = f.start(t, "g1", func(c *Config) {
			c.ReportInterval, c.CheckpointInterval = 5*time.Second, 30*time.Second
			c.Clock = func() time.Duration { return time.Since(o.began) + time.Hour }
		})
		o.fleet = emulate.New(emulate.Config{
			Addr: o.s.addr, Net: f.pipes.net(), Regions: o.regions, Nodes: 1, Ask: o.jobCPU, Own: o.own, ReportDelay: o.delay, Offered: o.offered,
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var parts sync.WaitGroup
		parts.Go(func() {
			if err := o.fleet.Run(ctx); err != nil {
				t.Errorf("the emulated regions ended: %v", err)
			}
		})
		if err := o.fleet.AwaitConnected(ctx, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second) // the first reports
		sum := int64(0)
		for _, s := range o.sizes {
			sum += s
		}
		mean := float64(sum) / float64(len(o.sizes))
		rate := o.load * float64(o.regions*regionCPU) / mean / o.life.Seconds()
		for c := range o.callers {
			parts.Go(func() { o.caller(ctx, c, time.Duration(float64(o.callers)/rate*float64(time.Second))) })
		}
		for end := time.Now().Add(o.duration); time.Now().Before(end); {
			time.Sleep(time.Second)
			synctest.Wait()
			o.sample()
		}
		cancel()
		parts.Wait()
	})
	t.Logf("%d decided, longest wait %s, %d wait at the end", o.decided, o.most, len(o.waiting))
}

// idleRoom returns room that nobody took within a time although jobs that fit it waited throughout.
// For the largest waiting size, the instances for which a region had room at a sample must be taken
// before the time has passed.
func (o *overload) idleRoom(within time.Duration) (out []string) {
	for i, x := range o.samples {
		if len(x.waiting) == 0 {
			continue
		}
		for region, free := range x.free {
			largest := slices.Max(o.sizes)
			room, n := int(free/largest), 0
			for _, later := range o.samples[i:] {
				n = later.filled[region] - x.filled[region]
				if len(later.waiting) == 0 || n >= room {
					break
				}
				if later.at-x.at > within {
					out = append(out, fmt.Sprintf("%s: room for %d in %s, %d taken until %s; %d jobs wait", x.at, room, region, n, later.at, len(later.waiting)))
					break
				}
			}
		}
	}
	return out
}

// missed returns jobs that waited for longer than a time beside room for them that nobody took: one region had room for
// the job throughout, took nothing, and held nothing for a job that fits nowhere.
func (o *overload) missed(within time.Duration) (out []string) {
	type room struct {
		job, region string
		filled      int
	}
	since := map[room]time.Duration{}
	for _, x := range o.samples {
		now := map[room]time.Duration{}
		for job, size := range x.waiting {
			for region, free := range x.free {
				if free < size || x.held[region] > 0 {
					continue
				}
				k := room{job, region, x.filled[region]}
				from, known := since[k]
				if !known {
					from = x.at
				}
				now[k] = from
				if x.at-from > within {
					out = append(out, fmt.Sprintf("%s: %s, of %d millicores, waits, and %s has had room since %s", x.at, job, size, region, from))
				}
			}
		}
		since = now
	}
	return out
}

// TestOverload: jobs ask for more than the capacity. Still each region takes jobs that fit its room within two reports,
// and no job waits longer than that while a region has room for the job and takes nothing. No region gets more than
// fits, except for what its own jobs took since the report that was used.
func TestOverload(t *testing.T) {
	const report = 5 * time.Second
	one, eight := []int64{2000}, []int64{500, 1000, 1500, 2000, 2500, 3000, 3500, 4000}
	for name, o := range map[string]*overload{
		"one size":      {load: 1.3, regions: 6, sizes: one, duration: 100 * time.Second},
		"patient jobs":  {load: 2, regions: 3, sizes: eight, duration: 150 * time.Second, patient: true},
		"near":          {load: 1.3, regions: 6, sizes: eight, duration: 2 * time.Minute, patient: true, near: true},
		"late reports":  {load: 1.3, regions: 6, sizes: eight, duration: 2 * time.Minute, patient: true, delay: 10 * time.Second},
		"regions' work": {load: 1.3, regions: 4, sizes: eight, duration: 2 * time.Minute, delay: 10 * time.Second, ownEvery: 7 * time.Second, ownCPU: 1000},
	} {
		t.Run(name, func(t *testing.T) {
			o.callers, o.life = 64, 40*time.Second
			o.run(t)
			old := 2*report + o.delay + time.Second
			for i, text := range slices.Concat(o.idleRoom(old), o.missed(old)) {
				if i < 10 {
					t.Error(text)
				}
			}
			unseen := int64(0)
			if o.ownEvery > 0 {
				unseen = int64(old/o.ownEvery+1) * o.ownCPU
			}
			for region, over := range o.exceeded {
				if over > unseen {
					t.Errorf("%s had %d millicores above its capacity, and %d had come without the global tier", region, over, unseen)
				}
			}
			for region, n := range o.held {
				if n > 1 {
					t.Errorf("%d instances waited at %s, which was full, and not where room became free", n, region)
				}
			}
			if len(o.waiting) == 0 {
				t.Error("nothing waits at the end: there was no overload")
			}
		})
	}
}
