package place

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/nusa-scheduler/nusa/global/region"
)

func TestProbeDemandOfClauses(t *testing.T) {
	eu := map[string]string{"area": "eu"}
	s := Snapshot{
		Regions: []*Region{{Name: "fra", Labels: eu}, {Name: "lon", Labels: eu}, {Name: "sgp"}, {Name: "tyo"}},
		Origins: map[string][]string{"a.com": {"tyo"}},
	}
	job := func(name string, near Near, allow ...Selector) Job {
		return Job{Name: name, Groups: []Group{{Name: "web", Regions: RegionsSpec{Near: []Near{near}, Allow: allow}}}}
	}
	for _, tc := range []struct {
		name string
		jobs []Job
		want map[string]map[string]float64
	}{
		{"nothing is asked", []Job{job("a", Near{Selector: Selector{Name: "sgp"}})}, map[string]map[string]float64{}},
		{"by name, soft", []Job{job("a", Near{Selector: Selector{Name: "sgp"}, Weight: 50}, Selector{Labels: eu})},
			map[string]map[string]float64{"fra": {"sgp": 0.25}, "lon": {"sgp": 0.25}, "sgp": {"fra": 0.25, "lon": 0.25}}},
		{"by domain, required, and where it runs", []Job{func() Job {
			j := job("a", Near{Domain: "a.com", Required: true}, Selector{Name: "fra"}, Selector{Name: "sgp"})
			j.Slots = []region.Slot{{Job: "a", Group: "web", To: 1, Region: "sgp"}}
			return j
		}()}, map[string]map[string]float64{"fra": {"tyo": 0.8}, "sgp": {"tyo": 1}, "tyo": {"fra": 0.8, "sgp": 1}}},
		{"by labels; the stronger counts", []Job{
			job("a", Near{Selector: Selector{Labels: eu}, Weight: 100}, Selector{Name: "fra"}),
			job("b", Near{Selector: Selector{Name: "lon"}, Required: true}, Selector{Name: "fra"}),
		}, map[string]map[string]float64{"fra": {"lon": 0.8}, "lon": {"fra": 0.8}}},
		{"stopped jobs ask nothing", []Job{func() Job {
			j := job("a", Near{Selector: Selector{Name: "sgp"}, Weight: 50})
			j.Stopped = true
			return j
		}()}, map[string]map[string]float64{}},
	} {
		s.Jobs = tc.jobs
		if got := ProbeDemand(s); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// TestProbeDemandIsBounded: the result is bounded, and the narrow rules stay in it.
func TestProbeDemandIsBounded(t *testing.T) {
	s := Snapshot{}
	for i := range 1000 {
		s.Regions = append(s.Regions, &Region{Name: fmt.Sprintf("r%04d", i), Labels: map[string]string{"x": "y"}})
	}
	near := []Near{{Selector: Selector{Labels: map[string]string{"x": "y"}}, Weight: 50}, {Selector: Selector{Name: "r0007"}, Required: true}}
	s.Jobs = []Job{{Name: "a", Groups: []Group{{Name: "web", Regions: RegionsSpec{Near: near}}}}}
	got, n := ProbeDemand(s), 0
	for _, row := range got {
		n += len(row)
	}
	if n != 2*999 || got["r0007"]["r0001"] != requiredDemand || got["r0001"]["r0007"] != requiredDemand {
		t.Errorf("%d pairs, %v", n, got["r0001"])
	}
}

// BenchmarkProbeDemand has jobs of fifty kinds. Jobs of one kind share their groups.
func BenchmarkProbeDemand(b *testing.B) {
	const kinds, jobs = 50, 10_000
	s := Snapshot{}
	groups := make([][]Group, kinds)
	for i := range kinds {
		name := fmt.Sprintf("r%04d", i)
		s.Regions = append(s.Regions, &Region{Name: name})
		groups[i] = []Group{{Name: "web", Regions: RegionsSpec{Near: []Near{{Selector: Selector{Name: name}, Required: i%2 == 0, Weight: 50}}}}}
	}
	for i := range jobs {
		s.Jobs = append(s.Jobs, Job{Name: fmt.Sprint(i), Groups: groups[i%kinds], Slots: []region.Slot{{Group: "web", To: 1, Region: s.Regions[i%7].Name}}})
	}
	for b.Loop() {
		if len(ProbeDemand(s)) != kinds {
			b.Fatal("no demand")
		}
	}
}
