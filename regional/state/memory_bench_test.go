package state

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"unsafe"
)

// BenchmarkMemory measures the heap of a large region. It has 10,000 nodes and 100,000
// allocations of one job, which are placed and then reported as running. Commands and views
// alternate as on a master.
func BenchmarkMemory(b *testing.B) {
	const nodes, allocs, each = 10_000, 100_000, 2_000
	for b.Loop() {
		rnd := rand.New(rand.NewPCG(1, 2))
		st, index := New(), uint64(0)
		var view *View
		apply := func(c Command) {
			index++
			if r := st.Apply(index, c); r.Err != nil || len(r.Skipped) > 0 {
				b.Fatal(r.Err, r.Skipped)
			}
			view = st.Snapshot()
		}
		before := heap()
		for n := range nodes {
			c := testNode(fmt.Sprintf("%08x-0000-4000-8000-%012x", n, n))
			c.UpsertNode.Node.Capacity = Resources{64_000, 256 << 30, 4 << 40}
			apply(c)
		}
		registered := heap()
		job := Job{Key: JobKey{Namespace: "default", Job: "api", Local: true}, Groups: []Group{{
			Name: "web", Count: allocs, Hash: 1, Ask: Ask{Resources: Resources{100, 128 << 20, 0}, Pool: "default"},
		}}}
		apply(Command{SubmitLocalJob: &SubmitLocalJob{Job: job}})
		on := make([][]string, nodes)
		for from := 0; from < allocs; from += each {
			place := PlaceGroup{Key: GroupKey{"default", "api", "web", true}, JobVersion: 1}
			for i := from; i < from+each; i++ {
				n := (i * 7919) % nodes
				id := fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", rnd.Uint32(), rnd.Uint32N(1<<16), rnd.Uint32N(1<<12), rnd.Uint32N(1<<12), rnd.Uint64N(1<<48))
				on[n] = append(on[n], id)
				place.Allocs = append(place.Allocs, PlaceAlloc{
					ID: id, Index: int32(i), NodeID: fmt.Sprintf("%08x-0000-4000-8000-%012x", n, n),
					Why: fmt.Sprintf("best of %d fitting nodes of %d: binpack %0.3f", nodes-n%100, nodes, float64(i/nodes)/10),
				})
			}
			apply(Command{ApplyPlan: &ApplyPlan{Places: []PlaceGroup{place}}})
		}
		placed := heap()
		for n := range nodes {
			c := &AgentReports{NodeID: fmt.Sprintf("%08x-0000-4000-8000-%012x", n, n)}
			for _, id := range on[n] {
				tasks := make([]byte, 64)
				c.Reports = append(c.Reports, AllocReport{ID: id, State: Running, Tasks: tasks})
			}
			apply(Command{AgentReports: c})
		}
		running := heap()
		b.ReportMetric(float64(registered-before)/nodes, "B/node")
		b.ReportMetric(float64(placed-registered)/allocs, "B/placed")
		b.ReportMetric(float64(running-registered)/allocs, "B/running")
		runtime.KeepAlive(on)
		if n := view.AllocCounts()[Running]; n != allocs {
			b.Fatalf("%d run", n)
		}
	}
	b.ReportMetric(float64(unsafe.Sizeof(Alloc{})), "B/Alloc")
	b.ReportMetric(float64(unsafe.Sizeof(inst{})), "B/inst")
}

// heap returns the bytes of the heap in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
