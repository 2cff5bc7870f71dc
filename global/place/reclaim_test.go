package place

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/global/region"
	"pgregory.net/rapid"
)

// disconnected records that instances may still run on a disconnected node.
func (w *world) disconnected(args []string) {
	job, group, _ := strings.Cut(args[0], "/")
	first, last, ranged := strings.Cut(args[1], "-")
	from, _ := strconv.Atoi(first)
	to := from + 1
	if ranged {
		to, _ = strconv.Atoi(last)
		to++
	}
	a := Disconnected{Group: group, Region: args[2], From: from, To: to, Node: args[3]}
	j := w.find(job)
	for _, s := range j.slotsOf(group) {
		if s.Region == a.Region && s.From <= from && to <= s.To {
			a.Generation = s.Generation
		}
	}
	j.Disconnected = append(j.Disconnected, a)
}

// instance is one index of a group.
type instance struct {
	job, group string
	index      int
}

// tasks is what really runs: for each instance, the regions on whose
// disconnected nodes it may still run. It serves as an oracle.
type tasks map[instance]map[string]bool

// TestDisconnectedInstancesAreNeitherLostNorDoubled disconnects and reconnects
// nodes of random federations, while regions confirm revokes in any order. Only
// disconnected instances are revoked, no instance has two owners, and a
// federation without changes gets empty plans. An instance leaves the region
// that may still run it only if another region gets it as soon as the revoke is
// confirmed (for colocated groups, when all revokes are confirmed), whatever
// else was revoked, confirmed or released in between, and whatever other jobs
// wait for room. A region that owns instances of a group has all groups that
// are colocated with it.
func TestDisconnectedInstancesAreNeitherLostNorDoubled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, u := newWorld(), units{}
		names := []string{"bra", "jpe", "sea"}[:rapid.IntRange(1, 3).Draw(t, "regions")]
		for _, name := range names {
			if err := w.region(name, nil); err != nil {
				t.Fatal(err)
			}
			u[name] = rapid.IntRange(0, 8).Draw(t, "units")
			w.report(u, name)
		}
		most := rapid.IntRange(1, 2).Draw(t, "most cores")
		for i := range rapid.IntRange(1, 4).Draw(t, "jobs") {
			cores := rapid.IntRange(1, most).Draw(t, "cores")
			name := fmt.Sprintf("j%d", i)
			_ = w.job(name, []string{fmt.Sprintf("prio=%d", rapid.IntRange(0, 1).Draw(t, "prio"))})
			groups := []string{fmt.Sprintf("g%d", cores)}
			if rapid.Bool().Draw(t, "together") {
				groups = append(groups, fmt.Sprintf("h%d", cores))
				w.find(name).Colocate = [][]string{groups}
			}
			for _, group := range groups {
				if err := w.group(name+"/"+group, []string{
					fmt.Sprintf("cpu=%d", cores*1000), "mem=0", fmt.Sprintf("count=%d", rapid.IntRange(1, 5).Draw(t, "count")),
				}); err != nil {
					t.Fatal(err)
				}
			}
		}
		w.apply(MakePlan(w.snapshot()))
		lost := tasks{}
		for range rapid.IntRange(1, 10).Draw(t, "steps") {
			w.disturbNodes(t, u, names, lost)
			w.step(t, lost)
		}
		// All revokes are confirmed: every instance has another owner at once.
		w.confirmAll(t, u, lost)
		w.reportDisconnected(lost)
		if plan := MakePlan(w.snapshot()); !plan.Empty() {
			t.Fatalf("not quiet: %s", plan)
		}
	})
}

// disturbNodes makes one random change: it disconnects a node with the whole room
// of its region, reconnects a node, lets a region confirm, or lets a region grow.
func (w *world) disturbNodes(t *rapid.T, u units, names []string, lost tasks) {
	name := rapid.SampledFrom(names).Draw(t, "region")
	switch rapid.SampledFrom([]string{"silent", "silent", "back", "confirm", "confirm", "grow"}).Draw(t, "what") {
	case "silent":
		w.confirmAll(t, u, lost) // otherwise reserved room may vanish
		for _, j := range w.jobs {
			for _, s := range j.Slots {
				for i := s.From; i < s.To; i++ {
					at := instance{j.Name, s.Group, i}
					if s.Region != name || s.Desired != region.DesiredRun || !rapid.Bool().Draw(t, "on it") {
						continue
					}
					if lost[at] == nil {
						lost[at] = map[string]bool{}
					}
					lost[at][name] = true
				}
			}
		}
		u[name] = w.used(name) // the disconnected node stays charged: no room
	case "back":
		for at := range lost {
			delete(lost[at], name)
		}
	case "confirm":
		w.confirmSome(t, u, lost, func() bool { return rapid.Bool().Draw(t, "now") })
	case "grow":
		u[name] += rapid.IntRange(0, 3).Draw(t, "more")
	}
	for _, name := range names {
		w.report(u, name)
	}
}

// confirmAll confirms revokes, and those that follow from them, until none is
// left.
func (w *world) confirmAll(t *rapid.T, u units, lost tasks) {
	for w.confirmSome(t, u, lost, func() bool { return true }) {
	}
}

// confirmSome confirms a revoke if now returns true, and applies the plans that
// follow: revoked instances get another owner at once, colocated groups when
// the last of their revokes is confirmed. It returns whether there was any
// revoke.
func (w *world) confirmSome(t *rapid.T, u units, lost tasks, now func() bool) (some bool) {
	for _, j := range w.jobs {
		for _, s := range slices.Clone(j.Slots) {
			if s.Desired != region.DesiredRevoke || !now() {
				continue
			}
			some = true
			if err := w.answer([]string{j.Name + "/" + s.Group, fmt.Sprintf("%d-%d", s.From, s.To-1), s.Region, "revoked"}); err != nil {
				t.Fatal(err)
			}
			for i := s.From; i < s.To; i++ {
				at := instance{j.Name, s.Group, i}
				delete(lost[at], s.Region) // the region gave it up
				w.taken[at] = s.Region
			}
			// The region's room does not include what the disconnected node is charged with.
			u[s.Region] -= s.Count() * int(j.group(s.Group).Ask.CPUMilli/1000)
			for name := range w.regions {
				w.report(u, name)
			}
			w.step(t, lost)
		}
	}
	return some
}

// step makes one plan, applies it, and checks the invariants.
func (w *world) step(t *rapid.T, lost tasks) {
	w.reportDisconnected(lost)
	s := w.snapshot()
	plan := MakePlan(s)
	checkDeterministic(t, s, plan)
	w.checkRevoked(t, plan, lost)
	w.apply(plan)
	w.checkOwners(t)
	w.checkTogether(t, plan)
	for at, from := range w.taken {
		j := w.find(at.job)
		switch {
		case w.owner(at) != "":
			delete(w.taken, at)
		case j.Colocate == nil || !slices.ContainsFunc(j.Slots, func(s region.Slot) bool { return s.Desired == region.DesiredRevoke }):
			t.Fatalf("%v was revoked at %s, and no region has room\n%v\n%s", at, from, j.Slots, plan)
		}
	}
}

// reportDisconnected reports disconnected nodes for instances that their region owns and may
// still run.
func (w *world) reportDisconnected(lost tasks) {
	for _, j := range w.jobs {
		j.Disconnected = nil
		for _, s := range j.Slots {
			for i := s.From; i < s.To; i++ {
				if lost[instance{j.Name, s.Group, i}][s.Region] && s.Desired == region.DesiredRun {
					j.Disconnected = append(j.Disconnected, Disconnected{Group: s.Group, Region: s.Region, From: i, To: i + 1, Generation: s.Generation, Node: s.Region + "-2"})
				}
			}
		}
	}
}

// owner returns the region that has an instance and should run it, also while it is
// being revoked there.
func (w *world) owner(at instance) string {
	for _, s := range w.find(at.job).slotsOf(at.group) {
		if at.index >= s.From && at.index < s.To {
			return s.Region
		}
	}
	return ""
}

// checkTogether: the colocated groups of a job should run in the same regions.
func (w *world) checkTogether(t *rapid.T, plan Plan) {
	for _, j := range w.jobs {
		homes := map[string]map[string]bool{}
		for _, s := range j.Slots {
			if s.Desired == region.DesiredRun && j.Colocate != nil {
				if homes[s.Region] == nil {
					homes[s.Region] = map[string]bool{}
				}
				homes[s.Region][s.Group] = true
			}
		}
		for name, groups := range homes {
			if len(groups) < len(j.Groups) {
				t.Fatalf("%s is separated: %s has only %v\n%v\n%s", j.Name, name, groups, j.Slots, plan)
			}
		}
	}
}

// checkRevoked: only disconnected instances are revoked.
func (w *world) checkRevoked(t *rapid.T, plan Plan, lost tasks) {
	for _, a := range plan.Actions {
		for i := a.From; i < a.To && a.Kind == Revoke; i++ {
			if !lost[instance{a.Job, a.Group, i}][a.Region] {
				t.Fatalf("%s, which runs: %s", a, plan)
			}
		}
	}
}
