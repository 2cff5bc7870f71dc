package sched_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
	"pgregory.net/rapid"
)

// TestOracle compares plans over random regions with the oracle, which goes through
// every node for every instance: the same nodes fit, the chosen node is as good as the
// best of them, and nodes are reserved as the rule says. A case is a region with
// several rounds of jobs, ends, operators and time, and a plan in each.
//
// A hundred cases are drawn in an ordinary run, 100,000 by
//
//	make oracle
//
// That is: go test ./regional/sched -run '^TestOracle$' -rapid.checks=100000
//
// With -v it prints how often each rule applied.
func TestOracle(t *testing.T) {
	seen := map[string]int{}
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
			w.drawLoads(t, nodes)
			in := w.input()
			p := planner.Make(in)
			if fresh := sched.Make(in); !reflect.DeepEqual(p, fresh) {
				t.Fatalf("a planner that has seen earlier views plans otherwise:\n%s", p.Diff(fresh))
			}
			if err := sched.Check(in, p); err != nil {
				t.Fatalf("%v\n%s", err, p)
			}
			w.checkExplain(w.checkPlan(t, in, p))
			if len(p.Places) < 8 { // checkShape makes one more plan
				w.checkShape(t, in)
			}
			countRules(seen, in, p)
			w.applyPlan(t, p)
			w.must(t, "converge")
			w.departures(t, nodes)
			w.must(t, rapid.SampledFrom([]string{"tick 5s", "tick 61s", "tick 61s", "tick 11m"}).Draw(t, "tick"))
		}
	})
	for _, rule := range slices.Sorted(maps.Keys(seen)) {
		t.Logf("%8d %s", seen[rule], rule)
	}
}

// countRules counts the rules that a plan followed: the kinds of asks that were placed, the
// terms of their scores, and the reasons why nodes were refused.
func countRules(seen map[string]int, in sched.Input, p *sched.Plan) {
	count := func(rule string, is bool) {
		if is {
			seen[rule]++
		}
	}
	seen["plans"]++
	for i := range p.Places {
		pl := &p.Places[i]
		job, _ := in.View.Job(pl.Key.JobKey(), pl.JobVersion)
		ask := &job.Group(pl.Key.Group).Ask
		count("placed", true)
		count("placed: dedicated", ask.Dedicated)
		count("placed: kept apart", len(ask.Apart) > 0)
		count("placed: with volumes", len(ask.Volumes) > 0)
		count("placed: with a pool", ask.Pool != "default")
		count("placed: with constraints", len(ask.Constraints) > 0)
		count("placed: system", job.Type == state.System)
		count("placed: beside another group of its job", len(job.Groups) > 1)
		count("placed: failed before", in.View.Instance(pl.Key, pl.Index).Failures > 0)
		count("placed: while nodes are kept", len(p.Reserved) > 0)
		for _, port := range ask.Ports {
			count("placed: static port", port.Static > 0)
			count("placed: dynamic port", port.Static == 0)
		}
		for _, g := range pl.GPUs {
			count("placed: whole gpu", g.ShareMilli == 1000)
			count("placed: part of a gpu", g.ShareMilli < 1000)
		}
		for _, term := range []string{"fit", "affinity", "anti-affinity", "spread", "reschedule", "cpu use", "memory use", "quota"} {
			count("placed: score by "+term, strings.Contains(pl.Why, " "+term+" "))
		}
	}
	for _, u := range p.Unplaced {
		count("unplaced: never", u.Never)
		for _, c := range u.Counts {
			count("unplaced: "+string(c.Reason), true)
		}
	}
	seen["kept"] += len(p.Reserved)
	seen["stopped"] += len(p.Stops)
}

// arrivals orders new jobs. With more nodes there are more instances.
func (w *world) arrivals(t *rapid.T, nodes, jobs int) int {
	for range rapid.IntRange(1, 4).Draw(t, "arrivals") {
		name := fmt.Sprint("j", jobs)
		jobs++
		w.must(t, drawJob(t, name, 1))
		to := rapid.IntRange(1, 2+nodes).Draw(t, "to")
		if w.jobs[name].Type == state.System {
			to = 1
		}
		second := rapid.IntRange(0, 3).Draw(t, "second") == 0
		if second { // a second group of the same job: both may share a node that is dedicated to the job
			w.must(t, drawGroup(t, name, "h", 1)+" more=yes")
		}
		w.must(t, fmt.Sprintf("order %s 0-%d", name, to))
		if second {
			w.must(t, fmt.Sprintf("order %s 0-%d group=h", name, to))
		}
	}
	return jobs
}

// departures ends, fails or declines instances. It also changes nodes, like operators and
// network failures do.
func (w *world) departures(t *rapid.T, nodes int) {
	for range rapid.IntRange(0, 6).Draw(t, "departures") {
		w.randomReport(t)
	}
	node := func() string { return fmt.Sprintf("n%02d", rapid.IntRange(0, nodes-1).Draw(t, "node")) }
	switch rapid.IntRange(0, 12).Draw(t, "operator") {
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
	case 5:
		w.must(t, "status "+node()+" left")
	case 6:
		w.must(t, "status "+node()+" ready")
	case 7:
		w.must(t, "drain "+node()+" off")
	}
}
