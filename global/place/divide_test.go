package place

import (
	"fmt"
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
	"pgregory.net/rapid"
)

// TestDivisionKeepsItsRule compares each rule with a brute-force count, for random regions
// and bounds.
func TestDivisionKeepsItsRule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		options := make([]option, rapid.IntRange(1, 6).Draw(t, "regions"))
		room, owned := 0, 0
		for i := range options {
			options[i] = option{
				fits: rapid.IntRange(1, 20).Draw(t, "fits"), owned: rapid.SampledFrom([]int{0, 0, 0, 1, 5}).Draw(t, "owned"),
				weight: rapid.SampledFrom([]int{-5, 0, 1, 3, 50}).Draw(t, "weight"),
			}
			room, owned = room+options[i].fits, owned+options[i].owned
		}
		n := rapid.IntRange(1, 30).Draw(t, "n")
		spec := RegionsSpec{Divide: rapid.SampledFrom([]Divide{DivideBest, DivideCapacity, DivideEven, DivideWeighted}).Draw(t, "divide")}
		least := rapid.SampledFrom([]int{0, 2}).Draw(t, "least")
		got := division{spec: spec, least: least, desired: owned + n, n: n, chunk: 1}.divide(options)
		sum := 0
		for i, k := range got.counts {
			sum += k
			if k < 0 || k > options[i].fits {
				t.Fatalf("region %d gets %d, and %d fit", i, k, options[i].fits)
			}
		}
		if sum != min(n, room) || got.heldBack != 0 {
			t.Fatalf("%d of %d are placed, %d held back; there is room for %d", sum, n, got.heldBack, room)
		}
		if again := (division{spec: spec, least: least, desired: owned + n, n: n, chunk: 1}).divide(options); !slices.Equal(again.counts, got.counts) {
			t.Fatalf("%v, then %v", got.counts, again.counts)
		}
		if spec.Divide == DivideWeighted && !slices.ContainsFunc(options, func(o option) bool { return o.weight > 0 }) {
			return // no weight, no rule
		}
		used := 0
		for i, o := range options {
			if o.owned+got.counts[i] > 0 {
				used++
			}
		}
		if spec.Divide != DivideBest && spec.Divide != DivideWeighted && used < min(least, len(options), owned+n) {
			t.Fatalf("%d regions, want %d: %v", used, least, got.counts)
		}
		switch spec.Divide {
		case DivideBest:
			if want := fillBest(options, n); !slices.Equal(got.counts, want) {
				t.Fatalf("%v, want %v", got.counts, want)
			}
		case DivideEven:
			if want := fillEven(options, n); owned+n >= len(options) && !slices.Equal(got.counts, want) {
				t.Fatalf("%v, want %v", got.counts, want)
			}
		case DivideCapacity:
			if owned == 0 && least == 0 && n >= len(options) && n <= room {
				checkProportion(t, options, got.counts, n, room)
			}
		}
	})
}

// fillBest gives one region after the other what fits.
func fillBest(options []option, n int) []int {
	out := make([]int, len(options))
	for i, o := range options {
		out[i] = min(n, o.fits)
		n -= out[i]
	}
	return out
}

// fillEven gives one instance after the other to a region that has fewest. Among these regions it
// prefers one that had instances before, then the best.
func fillEven(options []option, n int) []int {
	out := make([]int, len(options))
	for range n {
		best := -1
		for i, o := range options {
			if out[i] < o.fits && (best < 0 || o.owned+out[i] < options[best].owned+out[best] ||
				o.owned+out[i] == options[best].owned+out[best] && o.owned > 0 && options[best].owned == 0) {
				best = i
			}
		}
		if best >= 0 {
			out[best]++
		}
	}
	return out
}

// checkProportion checks that each region is less than one instance away from its part.
func checkProportion(t *rapid.T, options []option, counts []int, n, room int) {
	for i, k := range counts {
		off := new(big.Rat).Sub(big.NewRat(int64(k), 1), big.NewRat(int64(n)*int64(options[i].fits), int64(room)))
		if new(big.Rat).Abs(off).Cmp(big.NewRat(1, 1)) >= 0 {
			t.Fatalf("region %d gets %d of %d, with %d of the room of %d: %v", i, k, n, options[i].fits, room, counts)
		}
	}
}

// TestDivideTable checks the cases that the job file's documentation names.
func TestDivideTable(t *testing.T) {
	equal := []option{{fits: 100}, {fits: 100}, {fits: 100}, {fits: 100}}
	for _, c := range []struct {
		name    string
		d       division
		options []option
		want    []int
		held    int
	}{
		{"capacity, four equal regions", division{spec: RegionsSpec{Divide: DivideCapacity}, desired: 8, n: 8}, equal, []int{2, 2, 2, 2}, 0},
		{"best, four equal regions", division{spec: RegionsSpec{Divide: DivideBest}, desired: 8, n: 8}, equal, []int{8, 0, 0, 0}, 0},
		{"capacity, more regions than instances", division{spec: RegionsSpec{Divide: DivideCapacity}, desired: 2, n: 2}, equal, []int{1, 1, 0, 0}, 0},
		{"capacity, spread.max", division{spec: RegionsSpec{Divide: DivideCapacity, SpreadMax: 3}, desired: 9, n: 9}, equal, []int{3, 3, 3, 0}, 0},
		{"capacity, spread.min", division{spec: RegionsSpec{Divide: DivideCapacity, SpreadMin: 2}, desired: 9, n: 9}, equal, []int{5, 4, 0, 0}, 0},
		{"the default's two regions", division{spec: RegionsSpec{Divide: DivideCapacity}, least: 2, desired: 4, n: 4}, []option{{fits: 1000}, {fits: 1}}, []int{3, 1}, 0},
		{"without the default's two regions", division{spec: RegionsSpec{Divide: DivideCapacity}, desired: 4, n: 4}, []option{{fits: 1000}, {fits: 1}}, []int{4, 0}, 0},
		{"spread.min that cannot be met", division{spec: RegionsSpec{Divide: DivideCapacity, SpreadMin: 2}, desired: 4, n: 4}, []option{{fits: 9}}, []int{2}, 2},
		{"best with spread.min", division{spec: RegionsSpec{Divide: DivideBest, SpreadMin: 2}, desired: 9, n: 9}, []option{{fits: 20}, {fits: 10}, {fits: 50}}, []int{6, 3, 0}, 0},
		{"running instances stay", division{spec: RegionsSpec{Divide: DivideCapacity}, desired: 9, n: 3}, []option{{fits: 4, owned: 6}, {fits: 10}, {fits: 10}}, []int{0, 2, 1}, 0},
		{"weights", division{spec: RegionsSpec{Divide: DivideWeighted}, desired: 10, n: 10}, []option{{fits: 9, weight: 70}, {fits: 2, weight: 30}, {fits: 9}}, []int{8, 2, 0}, 0},
	} {
		c.d.chunk = 1
		if got := c.d.divide(c.options); !slices.Equal(got.counts, c.want) || got.heldBack != c.held {
			t.Errorf("%s: %v, %d held back; want %v, %d", c.name, got.counts, got.heldBack, c.want, c.held)
		}
	}
}

// TestOneInstanceHasOneRegion: whatever the rule, one instance goes to one region.
func TestOneInstanceHasOneRegion(t *testing.T) {
	for _, rule := range []Divide{"", DivideBest, DivideCapacity, DivideEven} {
		s := equalRegions(4, 1000)
		s.Jobs = []Job{oneInstance("a", rule)}
		if plan := MakePlan(s); len(plan.Actions) != 1 || plan.Actions[0].To-plan.Actions[0].From != 1 {
			t.Errorf("%q: %v", rule, plan.Actions)
		}
	}
}

// equalRegions returns a federation of equal, empty regions in which n instances of one core fit.
func equalRegions(regions, n int) Snapshot {
	s := Snapshot{Terse: true}
	all := Resources{CPUMilli: int64(n) * 1000, MemoryBytes: int64(n) << 30}
	for i := range regions {
		s.Regions = append(s.Regions, &Region{
			Name: fmt.Sprintf("r%04d", i), Connected: true, HasReport: true, ReportAge: time.Second, NodesReady: n,
			Free: all, Capacity: all, Bins: []Bin{{Nodes: n, Free: Resources{CPUMilli: 1000, MemoryBytes: 1 << 30}}},
		})
	}
	return s
}

func oneInstance(name string, rule Divide) Job {
	return Job{
		Namespace: "default", Name: name, Version: 1, Type: Service, Priority: 50, Revision: 1,
		Groups: []Group{{Name: "web", Count: 1, Ask: Ask{CPUMilli: 1000, MemoryBytes: 1 << 30}, Regions: RegionsSpec{Divide: rule}}},
	}
}

// counts returns the number of offered instances by region.
func counts(p Plan, s Snapshot) []int {
	out := make([]int, len(s.Regions))
	for _, a := range p.Actions {
		for i, r := range s.Regions {
			if r.Name == a.Region {
				out[i] += a.To - a.From
			}
		}
	}
	return out
}

// TestEqualJobsSpread: a thousand equal jobs of one instance are spread evenly over equal regions.
// One plan places all jobs, or each job has its own plan. The regions end nearly full or nearly
// empty.
func TestEqualJobsSpread(t *testing.T) {
	for _, regions := range []int{2, 10} {
		for _, room := range []int{1000 / regions, 1000, 1_000_000} {
			s := equalRegions(regions, room)
			for i := range 1000 {
				s.Jobs = append(s.Jobs, oneInstance(fmt.Sprintf("job-%03d", i), ""))
			}
			got := counts(MakePlan(s), s)
			if least, most := slices.Min(got), slices.Max(got); most-least > max(2, 1000/regions*4/100) {
				t.Errorf("%d regions with room for %d: %v", regions, room, got)
			}
		}
	}
}

// TestEqualRegionsHaveTheirTurn: jobs that are planned one by one against the same report do not
// all choose the same of two equal regions.
func TestEqualRegionsHaveTheirTurn(t *testing.T) {
	sum := make([]int, 2)
	for i := range 1000 {
		s := equalRegions(2, 100)
		s.Jobs = []Job{oneInstance(fmt.Sprintf("job-%03d", i), "")}
		plan := MakePlan(s)
		for r, n := range counts(plan, s) {
			sum[r] += n
		}
		if again := MakePlan(s); !slices.Equal(counts(plan, s), counts(again, s)) {
			t.Fatal("two plans of one snapshot differ")
		}
	}
	if min(sum[0], sum[1]) < 450 {
		t.Errorf("%v", sum)
	}
}

// TestBandMovesNothing: a running group stays and grows where it is while its region's score is
// less than the band below another region's.
func TestBandMovesNothing(t *testing.T) {
	for i := range 50 {
		s := equalRegions(3, 1000)
		s.Jobs = []Job{oneInstance(fmt.Sprintf("job-%d", i), "")}
		s.Jobs[0].Groups[0].Regions.Divide = DivideBest
		plan := MakePlan(s)
		home := plan.Actions[0].Region
		s.Jobs[0].Slots = append(s.Jobs[0].Slots, plan.Actions[0].Changes()[0].Slot)
		for k := range s.Regions {
			if r := s.Regions[k]; r.Name == home {
				r.Free.CPUMilli -= r.Capacity.CPUMilli * 24 / 1000 // 0.48 points
			}
		}
		if p := MakePlan(s); !p.Empty() {
			t.Fatalf("it moves: %s", p)
		}
		s.Jobs[0].Groups[0].Count = 2
		if p := MakePlan(s); p.Actions[0].Region != home {
			t.Fatalf("it grows at %s, not at %s: %s", p.Actions[0].Region, home, p)
		}
	}
}

// TestEqualRegionsMustHoldAll: of equal regions, a plan chooses those in which all instances fit.
func TestEqualRegionsMustHoldAll(t *testing.T) {
	for i := range 50 {
		s := equalRegions(4, 100)
		j := oneInstance(fmt.Sprintf("job-%d", i), DivideBest)
		j.Groups[0].Count = 5
		for k := range s.Regions {
			s.Regions[k].Fits = map[uint64]int{j.Groups[0].Ask.Hash(): 4}
		}
		s.Regions[2].Fits = map[uint64]int{j.Groups[0].Ask.Hash(): 5}
		s.Jobs = []Job{j}
		if got := counts(MakePlan(s), s); got[2] != 5 {
			t.Fatalf("%v", got)
		}
	}
}

// TestStoredCapacityMovesNothing: a job that an earlier version placed in one region stays there.
// Its new instances are divided as the rule is defined now.
func TestStoredCapacityMovesNothing(t *testing.T) {
	for _, rule := range []Divide{DivideCapacity, ""} {
		s := equalRegions(4, 100)
		j := oneInstance("old", rule)
		j.Groups[0].Count = 8
		j.Slots = []region.Slot{{
			Namespace: j.Namespace, Job: j.Name, Group: "web", To: 8, Region: "r0002", State: region.Accepted, Desired: region.DesiredRun, JobVersion: 1, Generation: 5, Revision: 5,
		}}
		s.Jobs = []Job{j}
		if p := MakePlan(s); !p.Empty() {
			t.Errorf("%q: %s", rule, p)
		}
		s.Jobs[0].Groups[0].Count = 14
		if got := counts(MakePlan(s), s); !slices.Equal(got, []int{2, 2, 0, 2}) {
			t.Errorf("%q: %v", rule, got)
		}
	}
}
