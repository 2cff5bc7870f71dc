package state

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
)

// BenchmarkLife applies the commands of a region of 5,000 nodes, for jobs of one instance
// and for one job of 100,000. The entries are like those of a busy master: submits and
// reports, a view for the plan, the plan, a view of the whole entry. The figures are for
// one instance. live-B and objects are its share of the heap once it runs. gc-ms is one
// collection of the whole heap.
func BenchmarkLife(b *testing.B) {
	b.Run("50000x1", func(b *testing.B) { benchLife(b, 50_000, 1, 40) })
	b.Run("50000x1/few", func(b *testing.B) { benchLife(b, 50_000, 1, 6) }) // callers at a time
	b.Run("1x100000", func(b *testing.B) { benchLife(b, 1, 100_000, 2048) })
}

const lifeNodes = 5000

func benchLife(b *testing.B, jobs, count, entry int) {
	for b.Loop() {
		l := newLife(b)
		live, objects := inUse()
		for from := 0; from < jobs; from += entry {
			submits := l.submits(from, min(from+entry, jobs), count)
			for at := 0; at < count; at += entry {
				places := l.places(from, min(from+entry, jobs), at, min(at+entry, count))
				l.entry(append(l.running, submits...), places)
				l.running, submits = l.reports(places), nil
			}
		}
		l.entry(l.running, nil)
		l.running = nil
		n := float64(jobs * count)
		if got := l.view.AllocCounts()[Running]; got != jobs*count {
			b.Fatalf("%d run", got)
		}
		began := time.Now()
		runtime.GC()
		b.ReportMetric(time.Since(began).Seconds()*1e3, "gc-ms")
		then, objectsThen := inUse()
		b.ReportMetric(float64(then-live)/n, "live-B")
		b.ReportMetric(float64(objectsThen-objects)/n, "objects")
		b.ReportMetric(float64(l.took.Nanoseconds())/n, "ns/instance")
		b.ReportMetric(float64(l.bytes)/n, "B/instance")
		b.ReportMetric(float64(l.mallocs)/n, "allocs/instance")
		b.ReportMetric(0, "ns/op")
		runtime.KeepAlive(l)
	}
}

// life is a master's state and the entries it applies.
type life struct {
	b        *testing.B
	st       *State
	view     *View // the committed view
	rnd      *rand.Rand
	nodes    []string
	running  []Command // reports for the next entry
	sequence uint64    // of the reports of all agents
	// These are figures of the method entry alone.
	took           time.Duration
	bytes, mallocs uint64
}

func newLife(b *testing.B) *life {
	l := &life{b: b, st: New(), rnd: rand.New(rand.NewPCG(1, 2))}
	l.st.Apply(1, Command{SetLimits: &SetLimits{FeatureLevel: FeatureLevel}})
	for range lifeNodes {
		c := testNode(l.id())
		c.UpsertNode.Node.Capacity = Resources{1 << 40, 1 << 60, 1 << 60}
		l.nodes = append(l.nodes, c.UpsertNode.Node.ID)
		l.st.Apply(l.st.index+1, c)
	}
	l.view = l.st.Snapshot()
	return l
}

func (l *life) id() string {
	r := l.rnd
	return fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", r.Uint32(), r.Uint32N(1<<16), r.Uint32N(1<<12), r.Uint32N(1<<12), r.Uint64N(1<<48))
}

// entry applies one entry.
func (l *life) entry(first, then []Command) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	index := l.st.index + 1
	results := l.st.Apply(index, Command{NowUnixNano: second, Batch: first}).Batch
	l.view = l.st.Snapshot()
	for _, c := range then {
		results = append(results, l.st.Apply(index, c))
	}
	l.view = l.st.Snapshot()
	l.took += time.Since(began)
	runtime.ReadMemStats(&after)
	l.bytes += after.TotalAlloc - before.TotalAlloc
	l.mallocs += after.Mallocs - before.Mallocs
	for _, r := range results {
		if r.Err != nil || len(r.Skipped) > 0 {
			l.b.Fatal(r.Err, r.Skipped)
		}
	}
}

func lifeJob(i int) string { return fmt.Sprintf("job-%06d", i) }

func (l *life) submits(from, to, count int) []Command {
	var out []Command
	for i := from; i < to; i++ {
		out = append(out, Command{NowUnixNano: second, SubmitLocalJob: &SubmitLocalJob{Job: Job{
			Key: JobKey{Namespace: "default", Job: lifeJob(i), Local: true}, Type: Service, Spec: make([]byte, 150),
			Groups: []Group{{
				Name: "main", Hash: 7, Count: int32(count), Ask: Ask{Resources: Resources{10, 16 << 20, 0}, Pool: "default", Drivers: []DriverAsk{{Name: "process"}}},
			}},
		}}})
	}
	return out
}

// places returns placements of the instances from ≤ i < to of some jobs.
func (l *life) places(job, toJob, from, to int) []Command {
	const perCommand = 512
	plan, room := []*ApplyPlan(nil), 0
	for ; job < toJob; job++ {
		key := GroupKey{"default", lifeJob(job), "main", true}
		for i := from; i < to; i++ {
			if room == 0 {
				plan, room = append(plan, &ApplyPlan{}), perCommand
			}
			room--
			c := plan[len(plan)-1]
			if n := len(c.Places); n == 0 || c.Places[n-1].Key != key {
				c.Places = append(c.Places, PlaceGroup{Key: key, JobVersion: 1})
			}
			g := &c.Places[len(c.Places)-1]
			g.Allocs = append(g.Allocs, PlaceAlloc{
				ID: l.id(), Index: int32(i), NodeID: l.nodes[l.rnd.IntN(lifeNodes)],
				Why: fmt.Sprintf("best of %d fitting nodes of %d: binpack 0.%03d", lifeNodes, lifeNodes, i/lifeNodes),
			})
		}
	}
	var out []Command
	for _, c := range plan {
		out = append(out, Command{NowUnixNano: second, ApplyPlan: c})
	}
	return out
}

// reports returns one report for each placed instance, with the state running.
func (l *life) reports(places []Command) []Command {
	var out []Command
	for _, c := range places {
		for _, g := range c.ApplyPlan.Places {
			for _, a := range g.Allocs {
				l.sequence++
				out = append(out, Command{NowUnixNano: second, AgentReports: &AgentReports{
					NodeID: a.NodeID, Position: Position{"e", l.sequence}, Reports: []AllocReport{{ID: a.ID, State: Running, Tasks: make([]byte, 64)}},
				}})
			}
		}
	}
	return out
}

// inUse returns the heap in use, in bytes and objects.
func inUse() (int64, int64) {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc), int64(m.HeapObjects)
}
