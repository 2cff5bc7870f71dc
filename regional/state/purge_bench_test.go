package state

import (
	"fmt"
	"testing"
)

// BenchmarkPurgeable searches 100,000 allocations that cannot be removed. A master
// searches once a minute.
func BenchmarkPurgeable(b *testing.B) {
	for _, jobs := range []int{100_000, 100} {
		b.Run(fmt.Sprintf("jobs=%d", jobs), func(b *testing.B) {
			st := New()
			apply := func(index uint64, c Command) {
				if r := st.Apply(index, c); r.Err != nil {
					b.Fatal(r.Err)
				}
			}
			for n := range 20 {
				apply(1, testNode(fmt.Sprint("n", n)))
			}
			each := int32(100_000 / jobs)
			for i := range jobs {
				name := fmt.Sprintf("job-%06d", i)
				apply(uint64(2+2*i), Command{SubmitLocalJob: &SubmitLocalJob{Job: Job{
					Key: JobKey{Namespace: "default", Job: name, Local: true}, Groups: []Group{{Name: "web", Count: each, Hash: 1, Ask: Ask{Pool: "default"}}},
				}}})
				place := PlaceGroup{Key: GroupKey{"default", name, "web", true}, JobVersion: 1}
				for k := range each {
					place.Allocs = append(place.Allocs, PlaceAlloc{ID: fmt.Sprintf("%08x", (uint32(i)*uint32(each)+uint32(k))*2654435761), Index: k, NodeID: fmt.Sprint("n", (i+int(k))%20), Why: "test"})
				}
				apply(uint64(3+2*i), Command{ApplyPlan: &ApplyPlan{Places: []PlaceGroup{place}}})
			}
			view := st.Snapshot()
			if n := view.AllocCounts()[Pending]; n != 100_000 {
				b.Fatalf("%d allocations", n)
			}
			b.ReportAllocs()
			for b.Loop() {
				if c := view.Purgeable(0, 0, 1000); c != nil {
					b.Fatal(c)
				}
			}
		})
	}
}
