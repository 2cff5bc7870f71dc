package place

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/topology"
	"pgregory.net/rapid"
)

// TestIndexDecidesAsBruteForce changes random federations step by step: regions report, come and
// leave, are charged and labelled, distances and origins change, jobs arrive, grow and stop. The
// plans with an Index that is kept over all steps must equal the plans without one.
func TestIndexDecidesAsBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFederation(t)
		index := NewIndex()
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			f.change(t)
			s := f.snapshot(t)
			want := MakePlan(s)
			s.Index = index
			got := MakePlan(s)
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("with an index:\n%s\nwithout:\n%s", got, want)
			}
			if rapid.Bool().Draw(t, "apply") {
				f.apply(t, want)
			}
		}
	})
}

// TestIndexFollowsTheOtherDirection changes only the round trips towards the target of a near clause.
// The bounds of an Index depend on the round trips from the target, so it keeps them, but the exact
// scores change.
func TestIndexFollowsTheOtherDirection(t *testing.T) {
	matrix := topology.NewMatrix()
	matrix.SetRegions([]topology.Region{{Name: "a"}, {Name: "b"}, {Name: "c"}})
	set := func(from, to string, rtt time.Duration) {
		matrix.Set(topology.Edge{From: from, To: to, State: topology.OK, Source: topology.Measured, P50: rtt, P90: rtt, P99: rtt, Samples: 9}, 0)
	}
	set("a", "b", time.Millisecond)
	set("a", "c", time.Millisecond)
	ask := Ask{CPUMilli: 100}
	s := Snapshot{Terse: true, Jobs: []Job{{Namespace: "default", Name: "j", Type: Service, Version: 1, Groups: []Group{{
		Name: "g", Count: 1, Ask: ask, Regions: RegionsSpec{Near: []Near{{Selector: Selector{Name: "a"}, MaxRTT: 100 * time.Millisecond, Weight: 50}}},
	}}}}}
	for _, name := range []string{"a", "b", "c"} {
		r := &Region{Name: name, Connected: true, HasReport: true, NodesReady: 1, Capacity: Resources{CPUMilli: 1000}, Free: Resources{CPUMilli: 1000}, Fits: map[uint64]int{ask.Hash(): 10}}
		r.Cordoned = name == "a"
		s.Regions = append(s.Regions, r)
	}
	s.Index = NewIndex()
	for _, step := range []struct {
		b, c time.Duration // to a
		want string
	}{{90, 10, "c"}, {10, 90, "b"}, {90, 10, "c"}, {90, 95, "b"}} {
		set("b", "a", step.b*time.Millisecond)
		set("c", "a", step.c*time.Millisecond)
		was := s.Topology
		s.Topology = matrix.View(0, 0, nil)
		if was != nil && !s.Topology.SameTrips(was, s.Topology.IndexOf("a")) {
			t.Fatal("the round trips from a have changed")
		}
		plan := MakePlan(s)
		if len(plan.Actions) != 1 || plan.Actions[0].Region != step.want {
			t.Errorf("with %d ms from b and %d ms from c:\n%s\nwant %s", step.b, step.c, plan, step.want)
		}
	}
}

// some draws one of several values.
func some[V any](t *rapid.T, values ...V) V { return rapid.SampledFrom(values).Draw(t, "some") }

// often returns true in all but one of n cases.
func often(t *rapid.T, n int) bool { return rapid.IntRange(1, n).Draw(t, "often") > 1 }

// random is a federation that changes at random.
type random struct {
	regions  []*Region
	jobs     []*Job
	asks     []Ask
	matrix   *topology.Matrix
	view     *topology.View
	origins  map[string][]string
	returned []Returned
	accounts map[string]*Account
	// charged: the snapshots contain charges of regions, not of their jobs.
	charged  bool
	revision int64
	made     int
	now      time.Duration
}

func drawFederation(t *rapid.T) *random {
	f := &random{matrix: topology.NewMatrix(), accounts: map[string]*Account{}, charged: rapid.Bool().Draw(t, "charged"), revision: 100}
	for i := range 4 {
		f.asks = append(f.asks, Ask{CPUMilli: int64(100 * (1 + i)), MemoryBytes: int64(i) << 20, Drivers: some(t, nil, []string{"process"}, []string{"docker"}), Pool: some(t, "", "", "gpu")})
	}
	for i := range rapid.IntRange(1, some(t, 12, 12, 12, 40)).Draw(t, "regions") {
		f.add(t, fmt.Sprintf("r%02d", i))
	}
	f.measure(t)
	return f
}

func (f *random) add(t *rapid.T, name string) {
	r := &Region{Name: name, Labels: map[string]string{"side": some(t, "east", "west"), "tier": some(t, "a", "b", "c")},
		Connected: often(t, 8), HasReport: often(t, 8), FeatureLevel: some(t, 0, 1, 1), Cordoned: !often(t, 10), Draining: !often(t, 12), Lost: !often(t, 12)}
	f.accounts[name] = &Account{}
	at, _ := slices.BinarySearchFunc(f.regions, name, func(r *Region, name string) int {
		if r.Name < name {
			return -1
		}
		return 1
	})
	f.regions = slices.Insert(f.regions, at, r)
	f.report(t, at)
}

// report replaces a region by one with another report.
func (f *random) report(t *rapid.T, i int) {
	r := *f.regions[i]
	r.ReportSequence++
	r.At = f.now - some(t, 0, time.Second)
	r.ReportAge = some(t, 0, time.Second, time.Second, 21*time.Second, 63300*time.Millisecond, 10*time.Minute)
	r.SlotsRevision = some(t, f.revision, f.revision-10, 0)
	r.NodesReady = rapid.IntRange(0, 4).Draw(t, "nodes")
	r.Drivers = some(t, nil, []string{"process"}, []string{"docker", "process"})
	r.Capacity = Resources{CPUMilli: some(t, int64(0), 1000, 4000, 64_000), MemoryBytes: 1 << 30}
	r.Free = Resources{CPUMilli: r.Capacity.CPUMilli * some(t, int64(0), 1, 2, 3, 4) / 4, MemoryBytes: some(t, int64(1)<<29, 1<<30)}
	r.Bins = nil
	for range rapid.IntRange(0, 2).Draw(t, "bins") {
		r.Bins = append(r.Bins, Bin{Nodes: rapid.IntRange(0, 3).Draw(t, "bin"), Free: Resources{CPUMilli: some(t, int64(100), 450, 2000), MemoryBytes: some(t, int64(1)<<20, 64<<20)}, Pool: some(t, "", "gpu")})
	}
	r.Fits = map[uint64]int{}
	for _, a := range f.asks {
		if rapid.Bool().Draw(t, "exact") {
			r.Fits[a.Hash()] = some(t, 0, 1, 2, 3, 8, 8, 100)
		}
	}
	account := f.accounts[r.Name]
	account.Reported(&r)
	r.Charged = account.Charges()
	f.regions[i] = &r
}

// measure creates another view of the distances. Some rows of the matrix have not changed.
func (f *random) measure(t *rapid.T) {
	known := make([]topology.Region, 0, len(f.regions))
	for _, r := range f.regions {
		at := topology.Region{Name: r.Name, Labels: r.Labels}
		if often(t, 3) {
			at.Location = &topology.Location{Latitude: float64(some(t, 0, 10, 52)), Longitude: float64(some(t, 4, 100))}
		}
		known = append(known, at)
	}
	f.matrix.SetRegions(known)
	for i, a := range f.regions {
		for range some(t, 0, 0, 3) {
			k := rapid.IntRange(0, len(f.regions)-1).Draw(t, "to")
			rtt := time.Duration(some(t, 3, 20, 20, 60, 150)) * time.Millisecond
			if i == k {
				continue
			}
			f.matrix.Set(topology.Edge{
				From: a.Name, To: f.regions[k].Name, State: some(t, topology.OK, topology.OK, topology.OK, topology.Stale, topology.Unreachable), Source: topology.Measured,
				P50: rtt, P90: rtt * 2, P99: rtt * 3, Samples: 9, Age: time.Duration(i) * time.Second,
			}, 0)
		}
	}
	f.view = f.matrix.View(0, 0, nil)
	f.serve(t)
}

// serve lets other regions serve a domain.
func (f *random) serve(t *rapid.T) {
	f.origins = map[string][]string{"example.com": {some(t, f.regions...).Name, some(t, f.regions...).Name}}
}

// change makes one to four changes.
func (f *random) change(t *rapid.T) {
	f.now += some(t, 0, time.Millisecond, 3*time.Second, time.Minute)
	for range rapid.IntRange(1, 4).Draw(t, "changes") {
		i := rapid.IntRange(0, len(f.regions)-1).Draw(t, "region")
		r := *f.regions[i]
		switch rapid.IntRange(0, 18).Draw(t, "change") {
		case 0, 1:
			f.report(t, i)
			continue
		case 2:
			f.measure(t)
			continue
		case 3:
			r.Labels = map[string]string{"side": some(t, "east", "west")}
		case 4:
			r.Connected = !r.Connected
		case 5:
			r.Cordoned = !r.Cordoned
		case 6:
			r.FeatureLevel = 1 - r.FeatureLevel
		case 7:
			r.CommitBlocked = some(t, 0, time.Second)
		case 8:
			f.returned = append(f.returned, Returned{Namespace: "default", Job: some(t, "j01", "j02", "j03"), Group: "a", Ask: some(t, 0, some(t, f.asks...).Hash()),
				Region: r.Name, Reason: "no_fitting_node", ReportSequence: r.ReportSequence + some(t, uint64(0), 1), Backoff: some(t, 0, 0, time.Minute)})
			continue
		case 9:
			if name := fmt.Sprintf("r%02d", rapid.IntRange(0, 20).Draw(t, "name")); f.accounts[name] == nil {
				f.add(t, name)
			}
			continue
		case 10:
			if len(f.regions) > 1 {
				delete(f.accounts, r.Name)
				f.regions = slices.Delete(slices.Clone(f.regions), i, i+1)
			}
			continue
		case 11:
			if len(f.jobs) > 0 {
				j := some(t, f.jobs...)
				j.Stopped = !j.Stopped
			}
			continue
		case 12:
			f.serve(t)
			continue
		case 13:
			f.breach(t)
			continue
		default:
			f.job(t)
			continue
		}
		f.regions[i] = &r
	}
}

// breach gives a job's required bound a breach that has lasted long.
func (f *random) breach(t *rapid.T) {
	for _, j := range f.jobs {
		for _, g := range j.Groups {
			for _, n := range g.Regions.Near {
				if n.Required {
					j.Breaches = []Breach{{Group: g.Name, Region: some(t, f.regions...).Name, Near: n.String(), Breach: topology.Breach{State: topology.Sustained, Latest: time.Second}}}
				}
			}
		}
	}
}

// job adds a job, or changes one.
func (f *random) job(t *rapid.T) {
	var j *Job
	if len(f.jobs) == 0 || often(t, 4) {
		f.made++
		j = &Job{Namespace: "default", Name: fmt.Sprintf("j%02d", f.made), Type: some(t, Service, Service, Batch, System), Priority: some(t, 50, 50, 60), Revision: int64(f.made)}
		f.jobs = append(f.jobs, j)
	} else {
		j = some(t, f.jobs...)
	}
	j.Version++
	j.Groups, j.Colocate = nil, nil
	for k := range some(t, 1, 1, 1, 2) {
		j.Groups = append(j.Groups, Group{Name: []string{"a", "b"}[k], Count: some(t, 0, 1, 1, 2, 3, 5, 30), Ask: some(t, f.asks...), Regions: f.rules(t), Bound: !often(t, 5), Refused: f.refused(t)})
	}
	if len(j.Groups) > 1 && rapid.Bool().Draw(t, "colocate") {
		j.Colocate = [][]string{{"a", "b"}}
	}
}

// refused returns the regions whose plugins refuse a group.
func (f *random) refused(t *rapid.T) map[string]string {
	if often(t, 4) {
		return nil
	}
	return map[string]string{some(t, f.regions...).Name: "the config is wrong"}
}

func (f *random) selector(t *rapid.T) Selector {
	return some(t, Selector{Name: some(t, f.regions...).Name}, Selector{Labels: map[string]string{"side": some(t, "east", "west")}},
		Selector{Labels: map[string]string{"side": "east", "tier": "a"}}, Selector{Name: some(t, f.regions...).Name, Labels: map[string]string{"side": "east"}}, Selector{})
}

func (f *random) rules(t *rapid.T) (out RegionsSpec) {
	out.Divide = some(t, "", DivideBest, DivideCapacity, DivideEven, DivideWeighted)
	out.SpreadMin, out.SpreadMax = some(t, 0, 0, 0, 1, 2, 3), some(t, 0, 0, 1, 2, 3)
	for range some(t, 0, 0, 1, 2) {
		out.Allow = append(out.Allow, f.selector(t))
	}
	for range some(t, 0, 0, 1, 2) {
		out.Prefer = append(out.Prefer, Preference{Selector: f.selector(t), Weight: some(t, -20, 1, 50, 100)})
	}
	for range some(t, 0, 0, 1, 2) {
		n := Near{Selector: f.selector(t), MaxRTT: some(t, 0, 25*time.Millisecond, 100*time.Millisecond), Percentile: some(t, topology.Percentile(0), 50, 90, 99),
			Required: rapid.Bool().Draw(t, "required"), Unknown: some(t, "", UnknownRefuse, UnknownPredicted, UnknownAccept), Weight: some(t, 0, 10, 50)}
		switch rapid.IntRange(0, 4).Draw(t, "target") {
		case 0:
			n.Domain = some(t, "example.com", "example.org")
		case 1:
			n.Location = &topology.Location{Latitude: float64(some(t, 1, 50)), Longitude: 5}
		}
		out.Near = append(out.Near, n)
	}
	return out
}

func (f *random) snapshot(t *rapid.T) Snapshot {
	s := Snapshot{Regions: slices.Clone(f.regions), Topology: f.view, Origins: f.origins, Returned: f.returned, Charged: f.charged, Now: f.now, Terse: often(t, 6)}
	for _, j := range f.jobs {
		s.Jobs = append(s.Jobs, *j)
	}
	return s
}

// apply stores what a plan changes. Some regions give up at once what the plan revokes.
func (f *random) apply(t *rapid.T, plan Plan) {
	f.revision += 10
	for _, a := range plan.Actions {
		j := f.jobs[slices.IndexFunc(f.jobs, func(j *Job) bool { return j.Name == a.Job })]
		for _, c := range a.Changes() {
			f.write(j, c)
		}
	}
	for _, j := range f.jobs {
		for _, s := range slices.Clone(j.Slots) {
			if s.Desired == region.DesiredRun || rapid.Bool().Draw(t, "keeps") {
				continue
			}
			f.write(j, region.Change{Slot: s, Delete: true})
			if g := j.group(s.Group); g != nil && s.Desired == region.DesiredRevoke {
				j.Groups = slices.Clone(j.Groups)
				g = j.group(s.Group)
				g.Released = append(slices.Clone(g.Released), Released{Region: s.Region, From: s.From, To: s.To})
			}
		}
	}
}

func (f *random) write(j *Job, c region.Change) {
	slots := slices.Clone(j.Slots)
	i := slices.IndexFunc(slots, func(s region.Slot) bool { return s.Key() == c.Slot.Key() })
	if i >= 0 {
		slots = slices.Delete(slots, i, i+1)
	}
	if !c.Delete {
		c.Slot.Revision = f.revision
		c.Slot.Generation = cmp.Or(c.Slot.Generation, f.revision)
		if c.Slot.State == region.Offered {
			c.Slot.State = region.Accepted
		}
		slots = append(slots, c.Slot)
	}
	slices.SortFunc(slots, func(a, b region.Slot) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.From, b.From), cmp.Compare(a.Region, b.Region))
	})
	j.Slots = slots
	at := regionList(f.regions).index(c.Slot.Region)
	if at < 0 {
		return
	}
	r, account := *f.regions[at], f.accounts[c.Slot.Region]
	for _, charge := range ChargesOf(j, &c.Slot) {
		switch {
		case charge.Region != r.Name:
		case c.Delete:
			account.Remove(&r, charge.Key)
		default:
			account.Put(&r, charge)
		}
	}
	r.Charged = account.Charges()
	f.regions[at] = &r
}

// TestIndexDecidesAsBruteForceAtSize: the federation has real distances, and so many regions that
// the index looks at only some of them.
func TestIndexDecidesAsBruteForceAtSize(t *testing.T) {
	s := federation(200, 120)
	want := MakePlan(s)
	s.Index = NewIndex()
	for range 2 {
		if got := MakePlan(s); !reflect.DeepEqual(got, want) {
			t.Fatalf("with an index:\n%s\nwithout:\n%s", got, want)
		}
	}
}

// TestNearGroupsGoWhereBruteForceSends: of many regions the index measures only those that may be
// the best for a near clause.
func TestNearGroupsGoWhereBruteForceSends(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		n := 5 + r.IntN(60)
		var s Snapshot
		var known []topology.Region
		var edges []topology.Edge
		for i := range n {
			name := fmt.Sprintf("r%02d", i)
			known = append(known, topology.Region{Name: name, Location: &topology.Location{Latitude: float64(r.IntN(60)), Longitude: float64(r.IntN(90))}})
			s.Regions = append(s.Regions, &Region{Name: name, Connected: true, HasReport: true, NodesReady: 1, FeatureLevel: 1, Fits: map[uint64]int{},
				Bins: []Bin{{Nodes: r.IntN(4), Free: Resources{CPUMilli: 200}}}, Free: Resources{CPUMilli: int64(r.IntN(1000))}, Capacity: Resources{CPUMilli: 1000}})
			for k := range n {
				if k == i || r.IntN(10) == 0 {
					continue
				}
				rtt := time.Duration(1+r.IntN(100)) * time.Millisecond
				edges = append(edges, topology.Edge{From: name, To: fmt.Sprintf("r%02d", k), State: topology.State(1 + r.IntN(3)), Source: topology.Measured,
					P50: rtt, P90: rtt * 2, P99: rtt * 3, Samples: 9, Age: time.Second})
			}
		}
		for i := range 1 + r.IntN(20) {
			s.Jobs = append(s.Jobs, Job{Namespace: "default", Name: fmt.Sprintf("j%02d", i), Type: Service, Revision: int64(i), Groups: []Group{{
				Name: "g", Count: 1 + r.IntN(4), Ask: Ask{CPUMilli: 100}, Regions: RegionsSpec{SpreadMin: r.IntN(3), Near: []Near{{
					Selector: Selector{Name: fmt.Sprintf("r%02d", r.IntN(n))}, Weight: []int{0, 5, 20, 50}[r.IntN(4)], MaxRTT: time.Duration(r.IntN(2)*80) * time.Millisecond,
					Percentile: []topology.Percentile{50, 90, 99}[r.IntN(3)], Required: r.IntN(3) == 0, Unknown: []Unknown{UnknownRefuse, UnknownPredicted, UnknownAccept}[r.IntN(3)],
				}}},
			}}})
		}
		matrix := topology.NewMatrix()
		matrix.SetRegions(known)
		var doubts doubting
		for i, e := range edges {
			matrix.Set(e, 0)
			if i%7 == 0 && n%2 == 0 {
				doubts = append(doubts, topology.Doubt{From: e.From, To: e.To, Why: "strange"})
			}
		}
		s.Topology, s.Terse = matrix.View(0, 0, doubts), true
		want := MakePlan(s)
		s.Index = NewIndex()
		for range 2 {
			if got := MakePlan(s); !reflect.DeepEqual(got, want) {
				t.Fatalf("with an index:\n%s\nwithout:\n%s", got, want)
			}
		}
	})
}

// doubting is a topology that predicts half a second between all regions and doubts some
// measurements.
type doubting []topology.Doubt

func (d doubting) Number(string) int { return 0 }
func (d doubting) RTT(int, int) (time.Duration, float64, bool) {
	return 500 * time.Millisecond, 0.1, true
}
func (d doubting) Doubts() []topology.Doubt { return d }

// TestPlanLeavesJobsBeyondItsBound: groups that find no room need a verdict on each region.
func TestPlanLeavesJobsBeyondItsBound(t *testing.T) {
	s := federation(50, 12)
	for i := range s.Jobs {
		s.Jobs[i].Groups[0].Ask.CPUMilli = 1 << 40
	}
	s.Index, s.MaxVerdicts = NewIndex(), 100
	if plan := MakePlan(s); len(plan.Groups) != 2 || len(plan.Undecided) != 10 {
		t.Errorf("%d groups decided, %d jobs undecided", len(plan.Groups), len(plan.Undecided))
	}
	s = federation(50, 12)
	s.Index, s.MaxVerdicts = NewIndex(), 100
	if plan := MakePlan(s); len(plan.Groups) != 12 || len(plan.Undecided) != 0 {
		t.Errorf("%d groups decided, %d jobs undecided", len(plan.Groups), len(plan.Undecided))
	}
}

// nearLabels makes the jobs of a federation be near all regions of a zone or near the origins of a
// domain, each within another bound.
func nearLabels(s *Snapshot, zones int) {
	for i, r := range s.Regions {
		r.Labels = map[string]string{"zone": fmt.Sprint("z", i%zones)}
	}
	for i := range s.Jobs {
		s.Jobs[i].Groups[0].Regions = RegionsSpec{Near: []Near{{
			Selector: Selector{Labels: map[string]string{"zone": fmt.Sprint("z", i%zones)}}, MaxRTT: time.Duration(20+i) * time.Millisecond, Weight: 50,
		}}}
	}
}

// TestDistancesOfManyTargetsAreLookedUpOnce: rules with the same targets and different bounds share
// the distances of a plan.
func TestDistancesOfManyTargetsAreLookedUpOnce(t *testing.T) {
	for _, index := range []*Index{nil, NewIndex()} {
		s := federation(40, 30)
		nearLabels(&s, 4)
		s.Index = index
		p := newPlanner(s)
		p.planAll()
		if most := 40 * 40; len(p.plan.Actions) != 30 || p.eval.distances.pairs > most {
			t.Errorf("index %v: %d actions, %d distances were looked up, at most %d are needed", index != nil, len(p.plan.Actions), p.eval.distances.pairs, most)
		}
	}
}

// TestPlanLeavesNearJobsBeyondItsBound: a rule with many targets compares each target with each
// region. A plan with a bound leaves such a job, and the jobs after it, to a plan without one.
func TestPlanLeavesNearJobsBeyondItsBound(t *testing.T) {
	domain := func(s *Snapshot) {
		for _, r := range s.Regions {
			s.Origins["example.com"] = append(s.Origins["example.com"], r.Name)
		}
		for i := range s.Jobs {
			s.Jobs[i].Groups[0].Regions = RegionsSpec{Near: []Near{{Domain: "example.com", MaxRTT: time.Duration(20+i) * time.Millisecond, Weight: 50}}}
		}
	}
	for name, tc := range map[string]struct {
		rule            func(*Snapshot)
		most, undecided int
	}{
		"labels, no room for one":   {func(s *Snapshot) { nearLabels(s, 1) }, 500, 8},
		"labels, room for three":    {func(s *Snapshot) { nearLabels(s, 4) }, 500, 5},
		"labels, room for all":      {func(s *Snapshot) { nearLabels(s, 4) }, 2000, 0},
		"a domain, no room for one": {domain, 500, 8},
		"a domain, room for all":    {domain, 2000, 0},
	} {
		s := federation(40, 8)
		s.Origins, s.MaxVerdicts, s.Index = map[string][]string{}, tc.most, NewIndex()
		tc.rule(&s)
		for range 2 {
			if plan := MakePlan(s); len(plan.Undecided) != tc.undecided || len(plan.Groups) != 8-tc.undecided {
				t.Errorf("%s: %d groups decided, %d jobs undecided", name, len(plan.Groups), len(plan.Undecided))
			}
			view := *s.Topology
			s.Topology = &view // another view of the same distances
		}
	}
}

// TestPlanLeavesJobsWithManyLabelsBeyondItsBound: a weight for a label costs a look at each
// region, until the index contains the label.
func TestPlanLeavesJobsWithManyLabelsBeyondItsBound(t *testing.T) {
	s := federation(40, 8)
	nearLabels(&s, 4)
	for i := range s.Jobs {
		var rule RegionsSpec
		for k := range 64 {
			rule.Prefer = append(rule.Prefer, Preference{Selector: Selector{Labels: map[string]string{"zone": fmt.Sprint("z", k)}}, Weight: 1 + i})
		}
		s.Jobs[i].Groups[0].Regions = rule
	}
	s.Index, s.MaxVerdicts = NewIndex(), 200
	for _, undecided := range []int{5, 2, 0} {
		if plan := MakePlan(s); len(plan.Undecided) != undecided {
			t.Errorf("%d jobs undecided, want %d", len(plan.Undecided), undecided)
		}
	}
}
