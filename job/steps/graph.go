package steps

import (
	"fmt"
	"slices"
	"strings"
)

// Step is what a graph needs to know of a step.
type Step struct {
	Name    string
	Depends *Condition
	// When: the step may be skipped although its condition holds.
	When bool
	// Job: the step runs a job. Without, it only waits for an approval.
	Job bool
	// Timeout: the step can time out.
	Timeout bool
}

// Graph has the steps of a workflow, in an order in which each stands after those on which it depends.
type Graph struct {
	Steps []Step
	// After has the indices of the steps on which each depends, and Before of those that depend on it.
	// Both are sorted.
	After, Before [][]int
	// OnExit is the index of the step that runs when all others have ended. -1: there is none.
	OnExit int
	index  map[string]int
}

// Problem is a fault of a step.
type Problem struct{ Step, Message string }

// Index returns the index of a step.
func (g *Graph) Index(name string) (int, bool) {
	i, ok := g.index[name]
	return i, ok
}

// New returns the graph of some steps, or what is wrong with them. onExit may be empty. The steps are taken
// in the order of their names as far as their conditions permit.
func New(all []Step, onExit string) (*Graph, []Problem) {
	all = slices.SortedFunc(slices.Values(all), func(x, y Step) int { return strings.Compare(x.Name, y.Name) })
	g := &Graph{OnExit: -1, index: map[string]int{}}
	for i, s := range all {
		g.index[s.Name] = i
	}
	var wrong []Problem
	for _, s := range all {
		for _, name := range s.Depends.Steps() {
			switch {
			case name == s.Name:
				wrong = append(wrong, Problem{s.Name, "the step depends on itself"})
			case name == onExit:
				wrong = append(wrong, Problem{s.Name, name + " is on_exit, which runs when all others have ended"})
			default:
				if _, ok := g.index[name]; !ok {
					wrong = append(wrong, Problem{s.Name, "there is no step " + name})
				}
			}
		}
	}
	if len(wrong) > 0 {
		return nil, wrong
	}
	order, cycle := sortSteps(all, g.index)
	if cycle != nil {
		return nil, []Problem{{cycle[0], "a cycle: " + strings.Join(append(cycle, cycle[0]), " needs ")}}
	}
	g.link(all, order)
	if i, ok := g.index[onExit]; ok {
		g.OnExit = i
	}
	if wrong, _ := g.dead(); len(wrong) > 0 {
		return nil, wrong
	}
	return g, nil
}

// link fills a graph with the steps in an order.
func (g *Graph) link(all []Step, order []int) {
	for i, from := range order {
		g.index[all[from].Name] = i
		g.Steps = append(g.Steps, all[from])
	}
	g.After, g.Before = make([][]int, len(all)), make([][]int, len(all))
	for i, s := range g.Steps {
		s.Depends.each(func(c *Condition) { c.at = g.index[c.step] })
		for _, name := range s.Depends.Steps() {
			j := g.index[name]
			g.After[i] = append(g.After[i], j)
			g.Before[j] = append(g.Before[j], i)
		}
		slices.Sort(g.After[i])
	}
}

// sortSteps returns an order in which each step stands after those on which it depends, or a cycle.
func sortSteps(all []Step, index map[string]int) (order []int, cycle []string) {
	const fresh, open, done = 0, 1, 2
	state := make([]uint8, len(all))
	type frame struct {
		step int
		left []string
	}
	for first := range all {
		if state[first] != fresh {
			continue
		}
		state[first] = open
		stack := []frame{{first, all[first].Depends.Steps()}}
		for len(stack) > 0 {
			top := &stack[len(stack)-1]
			if len(top.left) == 0 {
				state[top.step] = done
				order = append(order, top.step)
				stack = stack[:len(stack)-1]
				continue
			}
			next := index[top.left[0]]
			top.left = top.left[1:]
			switch state[next] {
			case fresh:
				state[next] = open
				stack = append(stack, frame{next, all[next].Depends.Steps()})
			case open:
				for i := slices.IndexFunc(stack, func(f frame) bool { return f.step == next }); i < len(stack); i++ {
					cycle = append(cycle, all[stack[i].step].Name)
				}
				return nil, cycle
			}
		}
	}
	return order, nil
}

// Bounds of the search for steps that can never start. Its cost is exponential in the steps that a condition
// names. Whatever it has not shown after so much work counts as possible.
const (
	// tries bounds the evaluations of one condition.
	tries = 20_000
	// work bounds the parts of conditions that are evaluated for a whole graph: a fraction of a second. A graph
	// of 10,000 steps with ordinary conditions needs a tenth of it.
	work = 5_000_000
)

// dead returns the steps that can never start, and what is left of work.
func (g *Graph) dead() (wrong []Problem, left int) {
	can := make([]set, len(g.Steps))
	left = work
	for i, s := range g.Steps {
		if !g.reaches(i, can, True, &left) {
			var ends []string
			for _, j := range g.After[i] {
				ends = append(ends, g.Steps[j].Name+" only as "+can[j].String())
			}
			why := "it is always false"
			if len(ends) > 0 {
				why = "its steps end: " + strings.Join(ends[:min(len(ends), 8)], ", ")
			}
			wrong = append(wrong, Problem{s.Name, fmt.Sprintf("the step can never start, because %s (%s)", why, strings.Join(g.path(i), " → "))})
			can[i] = setOf(Skipped)
			continue
		}
		can[i] = setOf(Succeeded, Failed)
		if s.Job {
			can[i] |= setOf(Lost)
		}
		if s.Timeout {
			can[i] |= setOf(TimedOut)
		}
		if s.When || g.reaches(i, can, False, &left) {
			can[i] |= setOf(Skipped)
		}
	}
	return wrong, left
}

// path returns the names on a longest way of first dependencies to a step.
func (g *Graph) path(i int) (out []string) {
	const most = 8
	for out = []string{g.Steps[i].Name}; len(g.After[i]) > 0 && len(out) < most; out = append(out, g.Steps[i].Name) {
		i = g.After[i][0]
	}
	slices.Reverse(out)
	return out
}

// reaches reports whether the condition of a step can have a value, with what its steps can end as. It also
// returns true if it found neither after many tries. budget is what is left of work for the whole graph.
func (g *Graph) reaches(i int, can []set, want Value, budget *int) bool {
	cost := 0
	g.Steps[i].Depends.each(func(*Condition) { cost++ })
	cost++
	names, left := g.After[i], min(tries, *budget/cost)
	defer func(before int) { *budget -= (before - left) * cost }(left)
	ends := make(map[int]End, len(names))
	var search func(at int) bool
	search = func(at int) bool {
		left--
		v := g.Steps[i].Depends.Eval(func(j int) End { return ends[j] })
		if v != Open || left <= 0 {
			return v == want || left <= 0
		}
		j := names[at]
		for e := Succeeded; e <= TimedOut; e++ {
			if !can[j].has(e) {
				continue
			}
			ends[j] = e
			if search(at + 1) {
				return true
			}
		}
		delete(ends, j)
		return false
	}
	return search(0)
}

// Below returns a step and all steps that depend on it, directly or through others, in the order of the graph,
// and OnExit.
func (g *Graph) Below(i int) []int {
	seen := make([]bool, len(g.Steps))
	out := []int{i}
	seen[i] = true
	for at := 0; at < len(out); at++ {
		for _, next := range g.Before[out[at]] {
			if !seen[next] {
				seen[next] = true
				out = append(out, next)
			}
		}
	}
	if g.OnExit >= 0 && !seen[g.OnExit] {
		out = append(out, g.OnExit)
	}
	slices.Sort(out)
	return out
}
