package sched_test

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
	"pgregory.net/rapid"
)

// TestOracle holds plans over random regions against the oracle, which looks at
// every node for every instance: the same nodes fit, what is chosen is as good
// as the best of them, and who has waited keeps the node that the rule says. A
// case is a region with several rounds of jobs, ends, operators and time, and a
// plan in each.
//
// A hundred cases are drawn in an ordinary run, 100,000 by
//
//	make oracle
//
// which is: go test ./regional/sched -run '^TestOracle$' -rapid.checks=100000
func TestOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		nodes := rapid.SampledFrom([]int{1, 2, 3, 4, 5, 6, 8, 10, 17, 34}).Draw(t, "nodes")
		for i := range nodes {
			w.must(t, drawNode(t, fmt.Sprintf("n%02d", i)))
		}
		planner := sched.NewPlanner()
		jobs := 0
		for range rapid.IntRange(1, 4).Draw(t, "rounds") {
			jobs = w.arrivals(t, nodes, jobs)
			in := w.input()
			p := planner.Make(in)
			if fresh := sched.Make(in); !reflect.DeepEqual(p, fresh) {
				t.Fatalf("a planner that has seen earlier views plans otherwise:\n%s", p.Diff(fresh))
			}
			if err := sched.Check(in, p); err != nil {
				t.Fatalf("%v\n%s", err, p)
			}
			w.judgeExplain(judgePlan(t, in, p))
			w.carryOut(t, p)
			w.must(t, "settle")
			w.departures(t, nodes)
			w.must(t, rapid.SampledFrom([]string{"tick 5s", "tick 61s", "tick 61s", "tick 11m"}).Draw(t, "tick"))
		}
	})
}

// arrivals are jobs that come; the more nodes there are the more instances.
func (w *world) arrivals(t *rapid.T, nodes, jobs int) int {
	for range rapid.IntRange(1, 4).Draw(t, "arrivals") {
		name := fmt.Sprint("j", jobs)
		jobs++
		w.must(t, drawJob(t, name, 1))
		to := rapid.IntRange(1, 2+nodes).Draw(t, "to")
		if w.jobs[name].Type == state.System {
			to = 1
		}
		w.must(t, fmt.Sprintf("order %s 0-%d", name, to))
	}
	return jobs
}

// departures are instances that end, fail or are declined, and what operators
// and contact do to nodes.
func (w *world) departures(t *rapid.T, nodes int) {
	for range rapid.IntRange(0, 6).Draw(t, "departures") {
		w.randomReport(t)
	}
	node := func() string { return fmt.Sprintf("n%02d", rapid.IntRange(0, nodes-1).Draw(t, "node")) }
	switch rapid.IntRange(0, 9).Draw(t, "operator") {
	case 0:
		w.must(t, "cordon "+node())
	case 1:
		w.must(t, "drain "+node())
	case 2:
		w.must(t, "status "+node()+" lost")
	case 3:
		w.must(t, "cordon "+node()+" off")
	case 4:
		w.must(t, drawNode(t, node()))
	}
}
