package sched_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/regional/sched"
	"pgregory.net/rapid"
)

// starveWorld is a region in which small instances keep arriving. Each of them runs for a
// bounded time.
type starveWorld struct {
	*world
	*rapid.T
	longest  time.Duration
	ends     map[string]int64 // by allocation
	jobs     int
	reserved map[string]bool // nodes that were reserved for the large ask
}

// arrive orders n more small instances.
func (w *starveWorld) arrive(n int) {
	for range n {
		name := fmt.Sprint("s", w.jobs)
		w.jobs++
		w.must(w.T, fmt.Sprintf("job %s g type=batch cpu=%d mem=64", name, rapid.SampledFrom([]int{100, 200, 250, 500}).Draw(w.T, "cpu")))
		w.must(w.T, fmt.Sprintf("order %s 0-1", name))
	}
}

// end ends the allocations whose time is over.
func (w *starveWorld) end() {
	for a := range w.st.Snapshot().Allocs() {
		if at, ok := w.ends[a.ID]; ok && a.Live() && at <= w.now {
			w.must(w.T, "report "+a.ID+" complete")
		}
	}
}

// step makes a plan and applies it. It reports whether the large instance is placed.
func (w *starveWorld) step() bool {
	in := w.input()
	p := sched.Make(in)
	if err := sched.Check(in, p); err != nil {
		w.Fatal(err)
	}
	for _, k := range p.Reserved {
		w.reserved[k.NodeID] = true
	}
	w.applyPlan(w.T, p)
	w.must(w.T, "converge")
	placed := false
	for a := range w.st.Snapshot().Allocs() {
		placed = placed || a.Job == "big"
		if _, ok := w.ends[a.ID]; !ok && a.Live() {
			runs := w.longest
			if rapid.Bool().Draw(w.T, "shorter") {
				runs = w.longest / time.Duration(rapid.IntRange(1, 6).Draw(w.T, "runs"))
			}
			w.ends[a.ID] = w.now + int64(runs)
		}
	}
	return placed
}

// TestLargeAskIsNotStarved: small instances keep arriving, and each runs for at most T. A
// large instance that fits an empty node is placed by the next plan after ReserveAfter + T,
// or after ReserveAfter + 3 T if T is more than ten minutes.
func TestLargeAskIsNotStarved(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &starveWorld{world: newWorld(), T: t, ends: map[string]int64{}, reserved: map[string]bool{}}
		w.longest = time.Duration(rapid.SampledFrom([]int{20, 60, 150, 590, 900, 2000}).Draw(t, "longest")) * time.Second
		nodes, most := rapid.IntRange(1, 6).Draw(t, "nodes"), 0
		for i := range nodes {
			cpu := rapid.IntRange(1, 3).Draw(t, "cpu") * 1000
			most = max(most, cpu)
			w.must(t, fmt.Sprintf("node n%d cpu=%d", i, cpu))
		}
		pause := func() { // a few plans in the lifetime of a small instance
			w.now += int64(w.longest) / int64(rapid.IntRange(2, 9).Draw(t, "pause"))
		}
		for range rapid.IntRange(1, 3).Draw(t, "before") {
			w.end()
			w.arrive(8 * nodes)
			w.step()
			pause()
		}
		for s := range w.st.Snapshot().Slots() { // so that no older instance waits
			if g, _ := w.st.Snapshot().Group(s.Key()); g.Unplaced > 0 {
				w.must(t, fmt.Sprintf("order %s 0-1 desired=stop", s.Job))
			}
		}
		w.must(t, fmt.Sprintf("job big g cpu=%d mem=64", most-500*rapid.IntRange(0, 1).Draw(t, "less")))
		w.must(t, "order big 0-1")
		bound := w.longest
		if bound > 10*time.Minute {
			bound *= 3
		}
		deadline := w.now + int64(sched.ReserveAfter+bound)
		for {
			w.end()
			w.arrive(rapid.IntRange(1, 3*nodes).Draw(t, "arrive"))
			if w.step() {
				return
			}
			if w.now >= deadline {
				t.Fatalf("the large ask still waits; %d nodes were reserved for it\n%s", len(w.reserved), sched.Make(w.input()))
			}
			pause()
		}
	})
}

// TestNoNodeIsReservedWithinAMinute: no node is reserved before an instance has waited for a
// minute.
func TestNoNodeIsReservedWithinAMinute(t *testing.T) {
	w := newWorld()
	for _, line := range strings.Split(`node n1 cpu=1000
job small g cpu=100
order small 0-1
apply
job big g cpu=1000
order big 0-1
tick 59s
job more g cpu=100
order more 0-1`, "\n") {
		w.run(t, "early", line)
	}
	early := sched.Make(w.input())
	if len(early.Places) != 1 || len(early.Reserved) != 0 {
		t.Errorf("a minute is not over:\n%s", early)
	}
	w.run(t, "due", "tick 1s")
	p := sched.Make(w.input())
	if len(p.Places) != 0 || len(p.Reserved) != 1 || p.Reserved[0].Waited != time.Minute {
		t.Errorf("a minute is over:\n%s", p)
	}
	p.Places = early.Places
	if err := sched.Check(w.input(), p); err == nil || !strings.Contains(err.Error(), "reserved for default/big/g[0]") {
		t.Errorf("a placement on a reserved node passes the check: %v", err)
	}
}
