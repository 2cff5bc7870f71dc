package place

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/topology"
	"pgregory.net/rapid"
)

// units is the true room of each region of a random world, in cores. Every
// region is one large node, so that an oracle can count.
type units map[string]int

// used counts the cores of all instances that a region owns.
func (w *world) used(name string) int {
	sum := 0
	for _, j := range w.jobs {
		for _, s := range j.Slots {
			if g := j.group(s.Group); g != nil && s.Region == name && s.State != region.Done {
				sum += s.Count() * int(g.Ask.CPUMilli/1000)
			}
		}
	}
	return sum
}

// report makes a region report its true room.
func (w *world) report(u units, name string) {
	r, free := w.regions[name], max(0, u[name]-w.used(name))
	r.ReportSequence++
	r.SlotsRevision = w.revision
	r.Free, r.Capacity = Resources{CPUMilli: int64(free) * 1000}, Resources{CPUMilli: int64(u[name]) * 1000}
	for cores := 1; cores <= 3; cores++ {
		w.fits[name][fmt.Sprintf("g%d", cores)] = free / cores
		w.fits[name][fmt.Sprintf("h%d", cores)] = free / cores
	}
}

// drawWorld makes regions and distances. Groups are named after the cores that
// an instance asks for.
func drawWorld(t *rapid.T) (*world, units) {
	w, u := newWorld(), units{}
	names := []string{"bra", "jpe", "sea", "use", "weu"}[:rapid.IntRange(1, 5).Draw(t, "regions")]
	for _, name := range names {
		args := []string{"labels=side:" + rapid.SampledFrom([]string{"east", "west"}).Draw(t, "side")}
		args = append(args, rapid.SampledFrom([][]string{nil, nil, nil, nil, {"cordoned"}, {"disconnected=90s"}, {"noreport"}, {"lost"}}).Draw(t, name)...)
		if err := w.region(name, args); err != nil {
			t.Fatal(err)
		}
		u[name] = rapid.IntRange(0, 12).Draw(t, "units")
		w.report(u, name)
	}
	for i, a := range names {
		for _, b := range names[i+1:] {
			args := []string{a, b, fmt.Sprintf("%dms", rapid.IntRange(1, 200).Draw(t, "rtt"))}
			args = append(args, rapid.SampledFrom([][]string{nil, nil, {"stale"}, {"unreachable"}, {"none"}}).Draw(t, "state")...)
			if err := w.rtt(args); err != nil {
				t.Fatal(err)
			}
		}
	}
	return w, u
}

func drawSpec(t *rapid.T) []string {
	args := []string{"divide=" + rapid.SampledFrom([]string{"", "best", "capacity", "even", "weighted"}).Draw(t, "divide")}
	if rapid.Bool().Draw(t, "allow") {
		args = append(args, "allow="+rapid.SampledFrom([]string{"side:east", "sea;jpe", "sea,side:west;bra"}).Draw(t, "selector"))
	}
	if rapid.Bool().Draw(t, "near") {
		args = append(args, fmt.Sprintf("near=%s,%dms,required,%s",
			rapid.SampledFrom([]string{"sea", "side:west"}).Draw(t, "to"), rapid.IntRange(10, 150).Draw(t, "max"),
			rapid.SampledFrom([]string{"refuse", "predicted", "accept"}).Draw(t, "unknown")))
	}
	if rapid.Bool().Draw(t, "spread") {
		least := rapid.IntRange(0, 3).Draw(t, "min")
		args = append(args, fmt.Sprintf("spread=%d-%d", least, rapid.SampledFrom([]int{0, least, least + 1}).Draw(t, "max")))
	}
	if rapid.Bool().Draw(t, "prefer") {
		args = append(args, "prefer=sea*20;weu*-10;side:east*40")
	}
	return args
}

// TestRandomWorldsKeepTheRules runs random federations: jobs arrive, grow,
// change and stop, and regions answer and report. After each plan every rule is
// checked against the true room and a second implementation of the rules.
func TestRandomWorldsKeepTheRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, u := drawWorld(t)
		for step := range rapid.IntRange(1, 12).Draw(t, "steps") {
			w.disturb(t, u, step)
			s := w.snapshot()
			plan := MakePlan(s)
			checkDeterministic(t, s, plan)
			checkOffers(t, s, plan)
			w.apply(plan)
			w.checkOwners(t)
			for name := range w.regions {
				if used := w.used(name); used > u[name] {
					t.Fatalf("%s runs %d cores of %d\n%s", name, used, u[name], plan)
				}
			}
			w.checkTakeovers(t, s, plan)
			for rounds := 0; ; rounds++ {
				again := MakePlan(w.snapshot())
				if again.Empty() {
					break
				}
				took := func(a Action) bool { return a.Kind == Takeover }
				if rounds > 8 || !slices.ContainsFunc(plan.Actions, took) {
					t.Fatalf("not quiet after\n%s\nbut\n%s", plan, again)
				}
				// The rest of a job whose slots moved is planned next.
				s, plan = w.snapshot(), again
				w.apply(plan)
				w.checkOwners(t)
				w.checkTakeovers(t, s, plan)
			}
		}
	})
}

// checkTakeovers checks the hard rules for takeovers: only slots that are due move, and only to
// regions that can take them. A slot that had to stop may be due if its index is wanted again.
func (w *world) checkTakeovers(t *rapid.T, s Snapshot, plan Plan) {
	for _, a := range plan.Actions {
		if a.Kind != Takeover {
			continue
		}
		i := slices.IndexFunc(s.Jobs, func(j Job) bool { return j.Name == a.Job })
		j := s.Jobs[i]
		if !slices.ContainsFunc(j.Movable, func(m Movable) bool {
			return m.Generation == a.Slot.Generation && m.Region == a.Region && m.From == a.From
		}) ||
			a.Slot.State == region.Done || j.Stopped || a.To > j.group(a.Group).Count {
			t.Fatalf("%s is not due", a)
		}
		for _, p := range a.Parts {
			r := w.regions[p.Region]
			if p.Region == a.Region || r.Lost || !r.Connected || r.Cordoned || !r.HasReport {
				t.Fatalf("%s breaks a rule of %s", a, p.Region)
			}
		}
	}
}

// disturb makes one random change. Asks never change, so that instances that
// are stopping can be counted.
func (w *world) disturb(t *rapid.T, u units, step int) {
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(w.jobs) == 0 || rapid.IntRange(0, 3).Draw(t, "new") == 0 {
		name := fmt.Sprintf("j%d", step)
		must(w.job(name, []string{
			"type=" + rapid.SampledFrom([]string{"service", "batch"}).Draw(t, "type"),
			fmt.Sprintf("prio=%d", rapid.IntRange(0, 2).Draw(t, "prio")),
		}))
		for cores := 1; cores <= rapid.IntRange(1, 3).Draw(t, "groups"); cores++ {
			path := fmt.Sprintf("%s/g%d", name, cores)
			must(w.group(path, append(drawSpec(t), fmt.Sprintf("cpu=%d", cores*1000), "mem=0",
				fmt.Sprintf("count=%d", rapid.IntRange(0, 6).Draw(t, "count")))))
		}
		return
	}
	j := rapid.SampledFrom(w.jobs).Draw(t, "job")
	switch rapid.SampledFrom([]string{"scale", "version", "stop", "answer", "answer", "report", "cordon", "lose", "due", "due"}).Draw(t, "what") {
	case "scale":
		must(w.group(j.Name+"/g1", []string{fmt.Sprintf("count=%d", rapid.IntRange(0, 8).Draw(t, "count"))}))
	case "version":
		j.Version++
		must(w.group(j.Name+"/g1", drawSpec(t)))
	case "stop":
		j.Stopped = !j.Stopped
	case "answer":
		if len(j.Slots) == 0 {
			return
		}
		s := rapid.SampledFrom(j.Slots).Draw(t, "slot")
		from := rapid.IntRange(s.From, s.To-1).Draw(t, "from")
		to := rapid.IntRange(from, s.To-1).Draw(t, "to")
		state := rapid.SampledFrom([]string{"rejected", "returned", "accepted", "done"}).Draw(t, "state")
		if s.Desired == region.DesiredStop {
			state = "stopped"
		} else if s.Desired == region.DesiredRevoke {
			state = "revoked"
		}
		if state == "accepted" && s.State != region.Offered || s.State == region.Done {
			return
		}
		if state == "accepted" {
			from, to = s.From, s.To-1
		}
		must(w.answer([]string{j.Name + "/" + s.Group, fmt.Sprintf("%d-%d", from, to), s.Region, state, "no_fitting_node"}))
	case "report":
		for name := range w.regions {
			w.report(u, name)
		}
	case "lose":
		r := w.regions[rapid.SampledFrom(w.snapshot().Regions).Draw(t, "region").Name]
		r.Lost = !r.Lost
	case "due":
		for _, s := range j.Slots {
			if r := w.regions[s.Region]; r.Lost && rapid.Bool().Draw(t, "due") {
				j.Movable = append(j.Movable, Movable{Group: s.Group, Region: s.Region, From: s.From, To: s.To, Generation: s.Generation})
			}
		}
	case "cordon":
		r := w.regions[rapid.SampledFrom(w.snapshot().Regions).Draw(t, "region").Name]
		r.Cordoned = !r.Cordoned
	}
}

func checkDeterministic(t *rapid.T, s Snapshot, plan Plan) {
	shuffled := s
	shuffled.Jobs = rapid.Permutation(s.Jobs).Draw(t, "order")
	if again := MakePlan(shuffled); again.String() != plan.String() {
		t.Fatalf("the order of the jobs changes the plan:\n%s\n%s", plan, again)
	}
	terse := s
	terse.Terse = true
	brief := MakePlan(terse)
	if fmt.Sprint(brief.Actions) != fmt.Sprint(plan.Actions) {
		t.Fatalf("terse decides differently")
	}
	terse.Index = NewIndex()
	if indexed := MakePlan(terse); !reflect.DeepEqual(indexed, brief) {
		t.Fatalf("an index changes the plan:\n%s\n%s", brief, indexed)
	}
}

// checkOffers checks the hard rules for every offer, independently of the
// planner.
func checkOffers(t *rapid.T, s Snapshot, plan Plan) {
	regions := map[string]*Region{}
	for _, r := range s.Regions {
		regions[r.Name] = r
	}
	offers := map[string]int{}
	for _, a := range plan.Actions {
		if a.Kind != Offer {
			continue
		}
		r := regions[a.Region]
		var j Job
		for _, x := range s.Jobs {
			if x.Name == a.Job {
				j = x
			}
		}
		g := j.group(a.Group)
		if r.Cordoned || r.Lost || !r.Connected || !r.HasReport || j.Stopped || g == nil || a.To > g.Count || a.From >= a.To {
			t.Fatalf("%s breaks a rule of the region", a)
		}
		if len(g.Regions.Allow) > 0 && !slices.ContainsFunc(g.Regions.Allow, func(sel Selector) bool {
			return (sel.Name == "" || sel.Name == r.Name) && (sel.Labels["side"] == "" || sel.Labels["side"] == r.Labels["side"])
		}) {
			t.Fatalf("%s is not allowed there", a)
		}
		for _, n := range g.Regions.Near {
			if n.Unknown != UnknownRefuse {
				continue
			}
			if !slices.ContainsFunc(s.Regions, func(to *Region) bool {
				matches := to.Name == n.Selector.Name || n.Selector.Labels["side"] == to.Labels["side"] && n.Selector.Name == ""
				d := s.Topology.Distance(r.Name, to.Name, 50)
				return matches && d.State == topology.OK && d.Source == topology.Measured && d.RTT <= n.MaxRTT
			}) {
				t.Fatalf("%s is not near", a)
			}
		}
		for _, back := range s.Returned {
			if back.Region == r.Name && back.Ask == g.Ask.Hash() && r.ReportSequence <= back.ReportSequence {
				t.Fatalf("%s was returned just now", a)
			}
		}
		offers[a.Job+"/"+a.Group+" "+a.Region]++
	}
	checkSpread(t, s, plan)
}

// checkSpread: no plan opens a region beyond spread.max. If spread.min is not
// reached, instances stay unplaced for the missing regions.
func checkSpread(t *rapid.T, s Snapshot, plan Plan) {
	for _, e := range plan.Groups {
		var g *Group
		for i := range s.Jobs {
			if s.Jobs[i].Name == e.Job {
				g = s.Jobs[i].group(e.Group)
			}
		}
		used, opened, placed, taken := 0, false, 0, 0
		for _, v := range e.Regions {
			placed += v.New
			// Instances of a lost region follow when there is room. They may then open a region.
			lost := slices.ContainsFunc(s.Regions, func(r *Region) bool { return r.Name == v.Region && r.Lost })
			if v.Taken > 0 && !lost {
				used++
				taken += v.Taken
			}
			opened = opened || v.New > 0 && v.New == v.Taken
		}
		if most := g.Regions.SpreadMax; most > 0 && used > most && opened {
			t.Fatalf("%d regions, %d allowed:\n%s", used, most, plan)
		}
		// The remaining instances are unplaced, or are still being stopped
		// elsewhere.
		if least := min(g.Regions.SpreadMin, g.Count); placed > 0 && used+g.Count-taken < least {
			t.Fatalf("%d regions, at least %d wanted, and no instance held back:\n%s", used, least, plan)
		}
	}
}

// checkOwners: no index has two owners.
func (w *world) checkOwners(t *rapid.T) {
	for _, j := range w.jobs {
		owner := map[string]string{}
		for _, s := range j.Slots {
			for i := s.From; i < s.To; i++ {
				k := fmt.Sprintf("%s[%d]", s.Group, i)
				if s.System {
					k += s.Region
				}
				if owner[k] != "" {
					t.Fatalf("%s %s is owned by %s and %s", j.Name, k, owner[k], s.Region)
				}
				owner[k] = s.Region
			}
		}
	}
}

// TestEverythingThatFitsIsPlaced: without spread and colocation, exactly as
// many instances are placed as fit in the regions that may take them.
func TestEverythingThatFitsIsPlaced(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, _ := drawWorld(t)
		want, room := 0, 0
		for _, name := range []string{"a", "b", "c"} {
			count := rapid.IntRange(0, 20).Draw(t, "count")
			want += count
			_ = w.job(name, nil)
			args := []string{"cpu=1000", "mem=0", fmt.Sprintf("count=%d", count)}
			for _, word := range drawSpec(t) {
				if strings.HasPrefix(word, "divide") || strings.HasPrefix(word, "prefer") {
					args = append(args, word)
				}
			}
			if err := w.group(name+"/g1", args); err != nil {
				t.Fatal(err)
			}
		}
		s := w.snapshot()
		for _, r := range s.Regions {
			if r.Connected && r.HasReport && !r.Cordoned && !r.Lost {
				room += w.fits[r.Name]["g1"]
			}
		}
		placed, plan := 0, MakePlan(s)
		for _, a := range plan.Actions {
			placed += a.To - a.From
		}
		if placed != min(want, room) {
			t.Fatalf("%d placed of %d with room for %d\n%s", placed, want, room, plan)
		}
		if len(plan.Actions) > 3*len(s.Regions) {
			t.Fatalf("%d slots for 3 groups in %d regions", len(plan.Actions), len(s.Regions))
		}
	})
}

// TestColocatedGroupsShareTheirRegions: in a world without refusals, a region
// that runs one of the groups runs all of them, after any plans.
func TestColocatedGroupsShareTheirRegions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, u := drawWorld(t)
		_ = w.job("a", nil)
		for cores := 1; cores <= 3; cores++ {
			args := []string{fmt.Sprintf("cpu=%d", 1000*cores), "mem=0", fmt.Sprintf("count=%d", rapid.IntRange(1, 6).Draw(t, "count"))}
			if cores == 1 {
				args = append(args, drawSpec(t)...)
			}
			if err := w.group(fmt.Sprintf("a/g%d", cores), args); err != nil {
				t.Fatal(err)
			}
		}
		w.find("a").Colocate = [][]string{{"g1", "g2"}, {"g2", "g3"}}
		for range 3 {
			plan := MakePlan(w.snapshot())
			w.apply(plan)
			in := map[string]map[string]bool{}
			for _, s := range w.find("a").Slots {
				if in[s.Region] == nil {
					in[s.Region] = map[string]bool{}
				}
				in[s.Region][s.Group] = true
			}
			for name, groups := range in {
				if len(groups) != 3 {
					t.Fatalf("%s runs %v only\n%s", name, groups, plan)
				}
				if used := w.used(name); used > u[name] {
					t.Fatalf("%s runs %d cores of %d\n%s", name, used, u[name], plan)
				}
			}
			if again := MakePlan(w.snapshot()); !again.Empty() {
				t.Fatalf("not quiet after\n%s\nbut\n%s", plan, again)
			}
			name := rapid.SampledFrom(w.snapshot().Regions).Draw(t, "grows").Name
			u[name] += rapid.IntRange(0, 12).Draw(t, "more")
			w.report(u, name)
		}
	})
}

func TestAskHashIsStable(t *testing.T) {
	base := Ask{
		CPUMilli: 500, MemoryBytes: 1 << 28, DiskBytes: 1 << 30, GPU: GPU{Count: 1, Models: []string{"a100", "h100"}},
		Pool: "default", Drivers: []string{"docker", "process"}, Constraints: []string{"x", "y"}, StaticPorts: []int{80, 443},
	}
	// Regions of other versions use the same hash: a change here breaks them.
	if got, want := base.Hash(), uint64(0x96a61dfae5276b4c); got != want {
		t.Errorf("hash is %#x, was %#x", got, want)
	}
	same := base
	same.Pool = ""
	same.GPU.Models = []string{"h100", "a100", "h100"}
	same.Drivers = []string{"process", "docker", "docker"}
	same.StaticPorts = []int{443, 80}
	if same.Hash() != base.Hash() {
		t.Error("order or repetition changes the hash")
	}
	for name, change := range map[string]func(*Ask){
		"cpu": func(a *Ask) { a.CPUMilli++ }, "memory": func(a *Ask) { a.MemoryBytes++ }, "disk": func(a *Ask) { a.DiskBytes++ },
		"gpus": func(a *Ask) { a.GPU.Count++ }, "share": func(a *Ask) { a.GPU.ShareMilli = 500 }, "models": func(a *Ask) { a.GPU.Models = nil },
		"pool": func(a *Ask) { a.Pool = "gpu" }, "drivers": func(a *Ask) { a.Drivers = []string{"dockerprocess"} },
		"constraints": func(a *Ask) { a.Constraints = []string{"xy"} }, "static": func(a *Ask) { a.StaticPorts = []int{80} },
		"dynamic": func(a *Ask) { a.DynamicPorts = 1 }, "dedicated": func(a *Ask) { a.Dedicated = true },
		"apart":        func(a *Ask) { a.Apart = []string{"db"} },
		"volumes":      func(a *Ask) { a.Volumes = []string{"/srv"} },
		"capabilities": func(a *Ask) { a.Capabilities = []string{"docker/exec"} },
	} {
		other := base
		if change(&other); other.Hash() == base.Hash() {
			t.Errorf("%s does not change the hash", name)
		}
	}
}

func TestStaleReportsLowerTheScore(t *testing.T) {
	for _, c := range []struct {
		age  time.Duration
		want float64
	}{{0, 0}, {15 * time.Second, 0}, {25 * time.Second, -1}, {time.Hour, -10}} {
		s := Snapshot{Regions: []*Region{{Name: "sea", Connected: true, HasReport: true, ReportAge: c.age, Bins: []Bin{{Nodes: 1, Free: Resources{CPUMilli: 1}}}}},
			Jobs: []Job{{Namespace: "default", Name: "a", Type: Service, Groups: []Group{{Name: "g", Count: 1, Ask: Ask{CPUMilli: 1}}}}}}
		if got := MakePlan(s).Groups[0].Regions[0].Score; got != c.want {
			t.Errorf("age %s: score %g, want %g", c.age, got, c.want)
		}
	}
}
