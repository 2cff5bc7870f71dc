package place

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/topology"
	"pgregory.net/rapid"
)

// follow lets time pass for the bounds, or prints a job's breaches.
func (w *world) follow(args []string, out *strings.Builder) error {
	const step = 5 * time.Second
	wait, err := time.ParseDuration(args[0])
	if err != nil {
		for _, b := range w.find(args[0]).Breaches {
			fmt.Fprintf(out, "%s at %s, %s: %s\n", b.Group, b.Region, b.Near, b)
		}
		return nil
	}
	f := NewBoundTracker(w.snapshot())
	for ; wait > 0; wait -= step {
		for _, j := range w.jobs {
			j.Breaches = f.Step(j, step)
		}
	}
	return nil
}

// TestMovesAreBoundedAndEnd changes the round trips of a random world and
// applies the plans. Only sustained breaches move instances, only to regions
// that are worth the move, and no more than update.max_parallel at a time. With
// constant bounds the moves end.
func TestMovesAreBoundedAndEnd(t *testing.T) {
	names := []string{"bra", "jpe", "sea", "use"}
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		run := func(line string) {
			if err := w.run(strings.Fields(line), &strings.Builder{}); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
		for _, name := range names {
			run(fmt.Sprintf("region %s fits=%d", name, rapid.IntRange(0, 9).Draw(t, name)))
		}
		change := func() {
			for i, a := range names {
				for _, b := range names[i+1:] {
					run(fmt.Sprintf("rtt %s %s %dms %s", a, b, rapid.IntRange(1, 150).Draw(t, "rtt"), rapid.SampledFrom([]string{"", "", "", "stale"}).Draw(t, "state")))
				}
			}
		}
		change()
		parallel := rapid.IntRange(1, 3).Draw(t, "parallel")
		run("job api")
		run(fmt.Sprintf("group api/web count=%d parallel=%d near=sea,%dms,required spread=%s", rapid.IntRange(1, 6).Draw(t, "count"), parallel,
			rapid.IntRange(10, 120).Draw(t, "max"), rapid.SampledFrom([]string{"0-0", "0-1", "1-2"}).Draw(t, "spread")))
		api := w.find("api")
		for range rapid.IntRange(1, 4).Draw(t, "changes") {
			run("plan")
			run("apply")
			change()
			for round := 0; ; round++ {
				run("wait " + rapid.SampledFrom([]string{"1m", "10m", "20m"}).Draw(t, "wait"))
				run("plan")
				revoked := checkMoves(t, w, api, parallel)
				run("apply")
				if w.confirm(api); revoked == 0 {
					break
				}
				if round > 20 {
					t.Fatalf("the moves go on:\n%s", w.last)
				}
			}
		}
	})
}

// checkMoves checks the latest plan and returns the number of revoked
// instances.
func checkMoves(t *rapid.T, w *world, j *Job, parallel int) int {
	s, revoked := w.snapshot(), 0
	d, g := newDistances(s), j.group("web")
	for _, a := range w.last.Actions {
		if a.Kind != Revoke {
			continue
		}
		revoked += a.To - a.From
		var b *Breach
		for i := range j.Breaches {
			if j.Breaches[i].Region == a.Region && j.Breaches[i].State == topology.Sustained {
				b = &j.Breaches[i]
			}
		}
		if b == nil {
			t.Fatalf("no sustained breach: %s", a)
		}
		improves := false
		for i, r := range s.Regions {
			n := &g.Regions.Near[0]
			then := n.deciding(d.at(n, i))
			improves = improves || r.Name != a.Region && n.refuses(d.at(n, i)) == "" && topology.ImprovesEnough(b.Latest, then.RTT)
		}
		if !improves {
			t.Fatalf("no region is better: %s", a)
		}
	}
	if revoked > parallel {
		t.Fatalf("%d down at a time, max_parallel is %d:\n%s", revoked, parallel, w.last)
	}
	for _, m := range w.last.Moves {
		if m.Why == "" || m.Breach.State != topology.Sustained {
			t.Fatalf("%+v", m)
		}
	}
	return revoked
}

// confirm answers every revoke as done, and plans again.
func (w *world) confirm(j *Job) {
	for _, s := range append([]region.Slot(nil), j.Slots...) {
		if s.Desired != region.DesiredRevoke {
			continue
		}
		out := region.ApplyAnswer(j.slotsOf(s.Group), s.Region, region.Answer{
			Namespace: s.Namespace, Job: s.Job, Group: s.Group, From: s.From, To: s.To, Generation: s.Generation, State: region.Revoked,
		})
		w.revision++
		w.write(j, out.Changes)
	}
	w.apply(MakePlan(w.snapshot()))
}

// TestBreachesLastUntilHealed: breaches begin where instances run, survive a
// move, and end when they are healed or when the bound, the job or all evidence
// is gone.
func TestBreachesLastUntilHealed(t *testing.T) {
	near := Near{Selector: Selector{Name: "sea"}, MaxRTT: 40 * time.Millisecond, Required: true}
	at := func(d time.Duration, state topology.State) *BoundTracker {
		e := topology.Edge{From: "jpe", To: "sea", State: state, Source: topology.Measured, P50: d, P90: d, P99: d}
		return NewBoundTracker(Snapshot{
			Regions:  []*Region{{Name: "jpe"}, {Name: "sea"}},
			Topology: topology.NewView([]topology.Region{{Name: "jpe"}, {Name: "sea"}}, []topology.Edge{e}),
		})
	}
	far, close := at(60*time.Millisecond, topology.OK), at(20*time.Millisecond, topology.OK)
	fresh := func() *Job {
		return &Job{
			Namespace: "default", Name: "api", Type: Service, Groups: []Group{{Name: "web", Count: 1, Regions: RegionsSpec{Near: []Near{near}}}},
			Slots: []region.Slot{{Group: "web", From: 0, To: 1, Region: "jpe", Desired: region.DesiredRun}},
		}
	}
	run := func(j *Job, f *BoundTracker, d time.Duration) *Job {
		for ; d > 0; d -= time.Minute {
			j.Breaches = f.Step(j, time.Minute)
		}
		return j
	}
	state := func(j *Job) string {
		if len(j.Breaches) == 0 {
			return "none"
		}
		return j.Breaches[0].State.String()
	}
	check := func(what string, j *Job, want string) {
		t.Helper()
		if got := state(j); got != want || len(j.Breaches) > 1 {
			t.Errorf("%s: %s (%v), want %s", what, got, j.Breaches, want)
		}
	}
	check("kept", run(fresh(), close, time.Hour), "none")
	check("for a short time", run(fresh(), far, 15*time.Minute), "broken")
	check("for long", run(fresh(), far, 16*time.Minute), "sustained")
	check("healed", run(run(fresh(), far, 16*time.Minute), close, 17*time.Minute), "none")
	check("healing", run(run(fresh(), far, 16*time.Minute), close, 5*time.Minute), "sustained")
	check("old values are no evidence", run(fresh(), at(60*time.Millisecond, topology.Stale), time.Hour), "none")
	check("without evidence it is forgotten", run(run(fresh(), far, 16*time.Minute), at(0, topology.Unreachable), 3*time.Minute), "none")
	lax := fresh()
	lax.Groups[0].Regions.Near[0].Unknown = UnknownPredicted
	check("unless the job allows them", run(lax, at(60*time.Millisecond, topology.Stale), time.Hour), "sustained")
	gone := run(fresh(), far, 16*time.Minute)
	gone.Slots = nil
	check("it outlives the move", run(gone, far, time.Minute), "sustained")
	check("until it is healed", run(gone, close, 17*time.Minute), "none")
	check("and does not begin elsewhere", run(gone, far, time.Hour), "none")
	other := run(fresh(), far, 16*time.Minute)
	other.Groups[0].Regions.Near[0].MaxRTT = 50 * time.Millisecond
	check("another bound starts from zero", run(other, far, time.Minute), "broken")
	stopped := run(fresh(), far, 16*time.Minute)
	stopped.Stopped = true
	check("stopped", run(stopped, far, time.Minute), "none")
	twice := fresh()
	twice.Groups[0].Regions.Near = append(twice.Groups[0].Regions.Near, near)
	check("the same bound twice", run(twice, far, 16*time.Minute), "sustained")
}
