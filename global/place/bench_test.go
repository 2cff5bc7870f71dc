package place

import (
	"fmt"
	"testing"

	"github.com/nusa-scheduler/nusa/global/region"
)

// bigSnapshot has 1,000 regions and many jobs. All but the first `busy` jobs are quiet.
func bigSnapshot(jobs, busy int) Snapshot {
	var s Snapshot
	for i := range 1000 {
		s.Regions = append(s.Regions, &Region{
			Name: fmt.Sprintf("r%04d", i), Connected: true, HasReport: true, SlotsRevision: 10, NodesReady: 100,
			Labels: map[string]string{"side": []string{"east", "west"}[i%2]},
			Free:   Resources{CPUMilli: 100000}, Capacity: Resources{CPUMilli: 200000},
			Bins: []Bin{{Nodes: 100, Free: Resources{CPUMilli: 1000}}},
		})
	}
	for i := range jobs {
		j := Job{
			Namespace: "default", Name: fmt.Sprintf("j%05d", i), Version: 1, Type: Service, Priority: 50, Revision: int64(i),
			Groups: []Group{{Name: "web", Count: 4, Ask: Ask{CPUMilli: 500}, Regions: RegionsSpec{
				Allow: []Selector{{Labels: map[string]string{"side": "east"}}},
				Near:  []Near{{Selector: Selector{Name: "r0007"}, Weight: 50}},
			}}},
		}
		if i >= busy {
			j.Slots = []region.Slot{{
				Namespace: "default", Job: j.Name, Group: "web", To: 4, Region: s.Regions[i%1000].Name,
				State: region.Accepted, Desired: region.DesiredRun, Generation: 5, Revision: 5, JobVersion: 1,
			}}
		}
		s.Jobs = append(s.Jobs, j)
	}
	return s
}

func BenchmarkPlan(b *testing.B) {
	for _, c := range []struct {
		name       string
		jobs, busy int
		terse      bool
	}{
		{"quiet-10000-jobs", 10000, 0, false},
		{"one-of-10000-jobs", 10000, 1, false},
		{"100-of-10000-jobs-terse", 10000, 100, true},
	} {
		s := bigSnapshot(c.jobs, c.busy)
		s.Terse = c.terse
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				MakePlan(s)
			}
		})
	}
}
