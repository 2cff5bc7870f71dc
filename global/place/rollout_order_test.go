package place

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
	"pgregory.net/rapid"
)

// ordered is a job with a RegionOrder in a random federation.
type ordered struct {
	w        *world
	j        *Job
	order    RegionOrder
	names    []string // in the order of the job; those that are not listed follow
	sites    map[string]*site
	parallel int
	// began and ended are the regions that got the present version, and those in which its rollout
	// ended, in the order of time.
	began, ended []string
	// wasPaused: at the latest plan the pause was not over.
	wasPaused bool
}

func newOrdered(t *rapid.T) *ordered {
	o := &ordered{w: newWorld(), sites: map[string]*site{}, parallel: rapid.IntRange(1, 3).Draw(t, "parallel")}
	_ = o.w.job("api", nil)
	o.j = o.w.find("api")
	o.j.Groups = []Group{{Name: "web", MaxParallel: o.parallel, Ask: Ask{CPUMilli: 1}, OnDisconnect: OnDisconnect{After: time.Minute}}}
	g := &o.j.Groups[0]
	for i := range rapid.IntRange(1, 6).Draw(t, "regions") {
		name, n := fmt.Sprintf("r%d", i), rapid.IntRange(1, 4).Draw(t, "n")
		o.names = append(o.names, name)
		_ = o.w.region(name, []string{"fits=0"})
		o.sites[name] = &site{has: slices.Repeat([]int64{1}, n), being: make([]int64, n), version: 1}
		o.w.write(o.j, []region.Change{{Slot: region.Slot{Namespace: "default", Job: "api", Group: "web", From: g.Count, To: g.Count + n,
			Region: name, State: region.Accepted, Desired: region.DesiredRun, JobVersion: 1}}})
		g.Count += n
	}
	o.names = rapid.Permutation(o.names).Draw(t, "order")
	listed := rapid.IntRange(0, len(o.names)).Draw(t, "listed")
	o.order = RegionOrder{MaxParallel: rapid.IntRange(1, 3).Draw(t, "regions at a time"), First: o.names[:listed], Continue: rapid.Bool().Draw(t, "continue"), Stored: true}
	for _, name := range o.names {
		o.tell(name)
	}
	return o
}

// take lets a region receive its slots.
func (o *ordered) take(name string) {
	for _, s := range o.j.Slots {
		if s.Region == name {
			o.sites[name].version = s.JobVersion
		}
	}
}

func (o *ordered) tell(name string) {
	o.j.report(Summary{Region: name, Version: o.sites[name].version, Groups: map[string]GroupCounts{}}, "web", o.sites[name].counts())
}

func (o *ordered) submit() {
	o.j.Version++
	o.j.Groups[0].UnchangedSince = o.j.Version
	o.began, o.ended = nil, nil
	order := o.order
	o.j.RegionOrder = &order
}

// has reports whether a region's slots have the present version.
func (o *ordered) has(name string) bool {
	return !slices.ContainsFunc(o.j.Slots, func(s region.Slot) bool { return s.Region == name && s.JobVersion < o.j.Version })
}

// unhealthy reports whether a region with the present version has reported instances that are not healthy
// in it. A region in which the version has failed, and the rollout continues, does not count.
func (o *ordered) unhealthy(name string) bool {
	sum := o.j.summaryOf(name)
	return o.j.RegionOrder.Ended[name] == "" && (sum.Version < o.j.Version || sum.Groups["web"].Failed+sum.Groups["web"].Busy > 0)
}

// plan applies a plan, and stores the ends of regions only if store is true: the transactions are
// independent. It checks what the plan begins.
func (o *ordered) plan(t *rapid.T, store bool) {
	held, updating := map[string]bool{}, 0
	for _, name := range o.names {
		held[name] = o.has(name)
		if held[name] && o.unhealthy(name) {
			updating++
		}
	}
	p := MakePlan(o.w.snapshot())
	if store {
		for _, e := range p.RegionEnds {
			o.ended = append(o.ended, e.Region)
		}
	} else {
		p.RegionEnds = nil
	}
	o.w.apply(p)
	for _, name := range o.names {
		if !o.has(name) || held[name] {
			continue
		}
		if o.wasPaused {
			t.Fatalf("%s begins during a pause:\n%s", name, p)
		}
		o.began = append(o.began, name)
		updating++
		if updating > o.order.MaxParallel {
			t.Fatalf("%s begins, and %d regions are not healthy by their reports; regions.max_parallel is %d:\n%s", name, updating-1, o.order.MaxParallel, p)
		}
	}
	if open := slices.DeleteFunc(slices.Clone(o.began), func(name string) bool { return slices.Contains(o.ended, name) }); len(open) > o.order.MaxParallel {
		t.Fatalf("%v have begun, and the end of none of them is stored; regions.max_parallel is %d:\n%s", open, o.order.MaxParallel, p)
	}
	if again := MakePlan(o.w.snapshot()); !again.Empty() && len(p.RegionEnds) == 0 {
		t.Fatalf("not quiet:\n%s", again)
	}
}

// check checks the bound of the regions, and the order in which they began.
func (o *ordered) check(t *rapid.T) {
	unhealthy := 0
	for name, s := range o.sites {
		if s.down() > o.parallel {
			t.Fatalf("%d instances are down in %s, max_parallel is %d", s.down(), name, o.parallel)
		}
		why := o.j.RegionOrder.Ended[name]
		if o.has(name) && why == "" && slices.ContainsFunc(s.has, func(v int64) bool { return v != o.j.Version }) && !slices.Contains(o.ended, name) {
			unhealthy++
		}
	}
	if unhealthy > o.order.MaxParallel && len(o.began) > 0 {
		t.Fatalf("%d regions are being updated, regions.max_parallel is %d", unhealthy, o.order.MaxParallel)
	}
	for i, name := range o.began {
		for _, later := range o.began[i+1:] {
			if o.j.RegionOrder.turn(later) < o.j.RegionOrder.turn(name) {
				t.Fatalf("%s began before %s, the order is %v", name, later, o.order.First)
			}
		}
	}
}

// TestRolloutKeepsTheOrder: whatever regions do, and however late they report it, a version begins in the
// order of the job, in no more than regions.max_parallel regions at a time, and not during a pause. In
// each region at most update.max_parallel instances are down. If all instances get healthy, the version
// reaches all regions.
func TestRolloutKeepsTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := newOrdered(t)
		o.submit()
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			name := rapid.SampledFrom(o.names).Draw(t, "region")
			s, there := o.sites[name], o.w.regions[name].Connected
			switch rapid.SampledFrom([]string{"version", "round", "round", "round", "take", "step", "tell", "die", "die", "fail", "cut", "pause", "hold"}).Draw(t, "what") {
			case "version":
				o.submit()
			case "take":
				if there {
					o.take(name)
				}
			case "step":
				s.step(o.parallel, rapid.Bool().Draw(t, "up"))
			case "tell":
				if there {
					o.tell(name)
				}
			case "round":
				if there {
					o.round(name)
				}
			case "die":
				i := rapid.IntRange(0, len(s.has)-1).Draw(t, "index")
				if s.down() < o.parallel {
					s.has[i], s.being[i] = 0, s.version
				}
				if there {
					o.tell(name)
				}
			case "fail":
				s.failing = !s.failing
			case "cut": // the region is cut for a short time, and those after it wait for it
				o.w.regions[name].Connected, o.w.regions[name].DisconnectedFor = !there, time.Second
			case "pause":
				order := *o.j.RegionOrder
				order.PauseLeft, order.After = time.Minute-order.PauseLeft, name
				o.j.RegionOrder = &order
			case "hold":
				if o.j.RolloutHold == "" {
					o.j.RolloutHold = "paused"
				} else {
					o.j.RolloutHold = ""
				}
			}
			o.wasPaused = o.j.RegionOrder.PauseLeft > 0 || o.j.RolloutHold != ""
			o.plan(t, rapid.Bool().Draw(t, "stored"))
			o.check(t)
		}
		o.finish(t)
	})
}

// round lets a region replace all its instances, unless the version fails there.
func (o *ordered) round(name string) {
	o.take(name)
	for range len(o.sites[name].has) + 2 {
		o.sites[name].step(o.parallel, true)
	}
	o.tell(name)
}

// finish lets every instance get healthy, and checks that the version reaches all regions.
func (o *ordered) finish(t *rapid.T) {
	order := *o.j.RegionOrder
	order.PauseLeft, order.Ended = 0, maps.Clone(order.Ended)
	o.j.RegionOrder, o.j.RolloutHold, o.wasPaused = &order, "", false
	for range 4 * len(o.names) {
		for _, name := range o.names {
			o.w.regions[name].Connected, o.w.regions[name].DisconnectedFor, o.sites[name].failing = true, 0, false
			o.round(name)
		}
		o.plan(t, true)
	}
	for name, s := range o.sites {
		if slices.ContainsFunc(s.has, func(v int64) bool { return v != o.j.Version }) {
			t.Fatalf("%s has %v, not version %d:\n%s", name, s.has, o.j.Version, MakePlan(o.w.snapshot()))
		}
	}
}

// TestCanariesKeepTheOrder: canaries are placed in the first RegionOrder.MaxParallel regions of the order that run
// the group and have room. A region gets one only if fewer regions before it have room left, and a region that does
// not run the group only if no other one has room.
func TestCanariesKeepTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := newOrdered(t)
		o.submit()
		names := append(slices.Clone(o.names), "new")
		_ = o.w.region("new", nil)
		room, canaries := map[string]int{}, rapid.IntRange(1, 8).Draw(t, "canaries")
		for _, name := range names {
			room[name] = rapid.IntRange(0, 3).Draw(t, "room")
			up := rapid.IntRange(0, 4).Draw(t, "up") > 0
			_ = o.w.region(name, []string{fmt.Sprintf("fits=%d", room[name]), "report"})
			o.w.regions[name].Connected = up
			if !up {
				room[name] = 0
			}
		}
		g := &o.j.Groups[0]
		g.CanaryFrom, o.j.RolloutHold = g.Count, "canaries"
		g.Count += canaries
		p, left, placed := MakePlan(o.w.snapshot()), maps.Clone(room), 0
		for _, a := range p.Actions {
			if a.Kind != Offer || a.From < g.CanaryFrom {
				t.Fatalf("not a canary:\n%s", p)
			}
			left[a.Region], placed = left[a.Region]-(a.To-a.From), placed+a.To-a.From
		}
		sum := 0
		for _, name := range names {
			sum += room[name]
		}
		if placed != min(canaries, sum) {
			t.Fatalf("%d of %d canaries are placed, and there is room for %d:\n%s", placed, canaries, sum, p)
		}
		open := 0
		for _, name := range o.names[:len(o.order.First)] {
			if open >= o.order.MaxParallel && left[name] < room[name] {
				t.Fatalf("%s gets a canary, and %d regions before it have room:\n%s", name, open, p)
			}
			if left[name] > 0 {
				open++
			}
		}
		for _, name := range names[len(o.order.First):] {
			if len(o.order.First) > 0 && left[name] < room[name] && (open >= o.order.MaxParallel || name == "new" && slices.ContainsFunc(o.names, func(n string) bool { return left[n] > 0 })) {
				t.Fatalf("%s gets a canary, and regions before it have room:\n%s", name, p)
			}
		}
	})
}

// TestCanariesWithoutAnyCandidate: no region may have the canaries, for example because it refuses their config.
func TestCanariesWithoutAnyCandidate(t *testing.T) {
	pl := &placer{eval: &evaluator{}, plan: &Plan{}}
	w := &work{job: &Job{RegionOrder: &RegionOrder{First: []string{"a"}}}, group: &Group{Name: "web", Count: 2, CanaryFrom: 1}, n: 1, free: [][2]int{{1, 2}}}
	pl.canaries(w)
	if w.n != 1 || len(w.free) != 1 || len(pl.plan.Actions) != 0 {
		t.Errorf("%d instances are left, free are %v, planned is %v", w.n, w.free, pl.plan.Actions)
	}
}
