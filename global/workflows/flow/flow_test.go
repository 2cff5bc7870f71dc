package flow

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/golden"
	"github.com/nusa-scheduler/nusa/job/steps"
)

// world runs a workflow: it carries out plans, and ends jobs as the test says.
type world struct {
	t    testing.TB
	s    *Snapshot
	now  time.Time
	log  *strings.Builder
	held map[int]bool
	// touched are the steps to look at.
	touched map[int]bool
	// jobs are the jobs that have not been noted to have ended: None while they run.
	jobs map[[2]int]steps.End
	when map[int]bool
	end  *Plan
	// started counts the attempts by step and item.
	started map[[2]int]int
	// lists has the steps whose items are the output of another one, and how many there will be. Negative: the
	// output is no list.
	lists map[int]list
}

// list says from which step a step has its items.
type list struct{ from, items int }

var t0 = time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC)

// newWorld returns a run of steps, each with its rule.
func newWorld(t testing.TB, all []steps.Step, rules map[string]Rule, onExit string) *world {
	g, wrong := steps.New(all, onExit)
	if len(wrong) > 0 {
		t.Fatal(wrong)
	}
	w := &world{t: t, now: t0, log: &strings.Builder{}, held: map[int]bool{}, touched: map[int]bool{}, jobs: map[[2]int]steps.End{}, when: map[int]bool{}, started: map[[2]int]int{}, lists: map[int]list{}}
	w.s = &Snapshot{Graph: g, MaxParallel: 100, Open: len(g.Steps)}
	if g.OnExit >= 0 {
		w.s.Open--
	}
	for i, s := range g.Steps {
		r, given := rules[s.Name]
		if !given {
			r.Items = -1
		}
		w.s.Rules = append(w.s.Rules, r)
		w.s.Steps = append(w.s.Steps, Step{Items: make([]Item, max(1, r.Items))})
		w.touched[i] = true
	}
	return w
}

func (w *world) view() View {
	return View{
		Job: func(step, item int) (steps.End, string) {
			end, ok := w.jobs[[2]int{step, item}]
			if !ok {
				w.t.Fatalf("asked about a job of step %d that does not run", step)
			}
			return end, ""
		},
		When: func(step int) (bool, error) {
			v, given := w.when[step]
			if !given {
				return false, errors.New("no such key: size")
			}
			return v, nil
		},
	}
}

// turn makes one plan and carries out its first actions: all, if most is negative.
func (w *world) turn(room, most int) Plan {
	w.t.Helper()
	var touched []int
	for i := range w.touched {
		touched = append(touched, i)
	}
	for i := range w.held {
		touched = append(touched, i)
	}
	clear(w.touched)
	clear(w.held)
	p := Decide(w.s, touched, w.now, w.view(), room)
	for _, i := range p.Left {
		w.touched[i] = true
	}
	for _, i := range p.Held {
		w.held[i] = true
	}
	for n, a := range p.Actions {
		if n == most {
			for _, rest := range p.Actions[n:] {
				w.touched[rest.Step] = true
			}
			return p
		}
		w.apply(a)
	}
	switch {
	case p.Ended:
		w.end = &p
		fmt.Fprintf(w.log, "ended %s %s\n", p.Outcome, p.Why)
	case p.Changes:
		w.s.Phase, w.s.Outcome, w.s.Why = p.Phase, p.Outcome, p.Why
	}
	return p
}

func (w *world) apply(a Action) {
	st := &w.s.Steps[a.Step]
	name := w.s.Graph.Steps[a.Step].Name
	fmt.Fprintf(w.log, "%4s %s\n", w.now.Sub(t0), strings.Replace(a.String(), fmt.Sprintf("step %d", a.Step), name, 1))
	for item, from := range st.Items {
		if a.Item != item && a.Item != Whole {
			continue
		}
		k, to := [2]int{a.Step, item}, a.Apply(from)
		switch a.Do {
		case Start:
			if _, runs := w.jobs[k]; runs {
				w.t.Fatalf("step %s started twice", name)
			}
			w.started[k]++
			w.jobs[k] = steps.None
		case Retry, Finish:
			if end, runs := w.jobs[k]; runs && end == steps.None {
				w.t.Fatalf("step %s has ended while its job runs", name)
			}
			delete(w.jobs, k)
		}
		active, begun := Count(from)
		active2, begun2 := Count(to)
		st.Active, w.s.Active, w.s.Begun = st.Active+active2-active, w.s.Active+active2-active, w.s.Begun+begun2-begun
		st.Items[item] = to
	}
	if a.Do == Reset {
		st.Stale = slices.ContainsFunc(st.Items, func(it Item) bool { return it.Stage != Idle })
	}
	was := st.End
	st.End = EndOf(st.Items)
	if was == steps.None && st.End != steps.None {
		if a.Step != w.s.Graph.OnExit {
			w.s.Open--
		}
		for _, next := range w.s.Graph.Before[a.Step] {
			w.touched[next] = true
		}
		for i, l := range w.lists {
			if l.from == a.Step {
				w.resolve(i, l)
			}
		}
	}
}

// resolve gives a step its items, once the step that lists them has ended.
func (w *world) resolve(i int, l list) {
	r := &w.s.Rules[i]
	switch {
	case w.s.Steps[l.from].End != steps.Succeeded:
		r.Wrong = "no output"
	case l.items < 0:
		r.Wrong = "no list"
	default:
		r.Wrong, r.Items = "", l.items
		w.s.Steps[i].Items = make([]Item, max(1, l.items))
	}
}

// rest makes plans until nothing follows.
func (w *world) rest() {
	for range 1000 {
		if p := w.turn(1000, -1); w.end != nil || p.Idle() && len(p.Left) == 0 {
			return
		}
	}
	w.t.Fatal("the plans never end")
}

// job ends the job of a step.
func (w *world) job(name string, end steps.End) {
	i, ok := w.s.Graph.Index(name)
	if _, runs := w.jobs[[2]int{i, 0}]; !ok || !runs {
		w.t.Fatalf("step %s does not run:\n%s", name, w.log)
	}
	w.jobs[[2]int{i, 0}] = end
	w.touched[i] = true
	w.rest()
}

func (w *world) at(d time.Duration) {
	w.now = t0.Add(d)
	for i := range w.s.Steps {
		w.touched[i] = true
	}
	w.rest()
}

func step(t testing.TB, name, depends string) steps.Step {
	c, err := steps.Parse(depends)
	if err != nil {
		t.Fatal(err)
	}
	return steps.Step{Name: name, Depends: c, Job: true}
}

// TestStories tells what follows in some workflows.
func TestStories(t *testing.T) {
	var out strings.Builder
	story := func(title string, w *world, tell func(w *world)) {
		w.rest()
		tell(w)
		fmt.Fprintf(&out, "=== %s\n%s", title, w.log)
	}
	all := map[steps.End]bool{steps.Failed: true, steps.Lost: true, steps.TimedOut: true}
	diamond := []steps.Step{step(t, "fetch", ""), step(t, "left", "fetch.succeeded"), step(t, "right", "fetch.succeeded"), step(t, "join", "left.succeeded && (right.succeeded || right.skipped)")}
	story("diamond", newWorld(t, diamond, nil, ""), func(w *world) {
		w.job("fetch", steps.Succeeded)
		w.job("right", steps.Succeeded)
		w.job("left", steps.Succeeded)
		w.job("join", steps.Succeeded)
	})
	story("a failure skips what depends on it", newWorld(t, diamond, nil, ""), func(w *world) {
		w.job("fetch", steps.Succeeded)
		w.job("left", steps.Failed)
		w.job("right", steps.Lost)
	})
	story("a handled failure", newWorld(t, []steps.Step{step(t, "try", ""), step(t, "plan_b", "try.failed || try.timed_out")}, map[string]Rule{"try": {Items: -1, Timeout: time.Minute}}, ""), func(w *world) {
		w.at(time.Minute)
		w.job("try", steps.Succeeded) // too late: it has the order to stop
		w.job("plan_b", steps.Succeeded)
	})
	story("retry with a growing pause", newWorld(t, []steps.Step{step(t, "try", "")}, map[string]Rule{"try": {Items: -1, Limit: 2, Backoff: 10 * time.Second, Retry: all}}, ""), func(w *world) {
		w.job("try", steps.Failed)
		w.at(9 * time.Second)
		w.at(10 * time.Second)
		w.job("try", steps.Lost)
		w.at(30 * time.Second)
		w.job("try", steps.Failed)
	})
	approval := steps.Step{Name: "gate", Depends: diamond[0].Depends}
	story("approval, and on_exit after a cancel", newWorld(t, []steps.Step{approval, step(t, "deploy", "gate.succeeded"), step(t, "clean", "")}, map[string]Rule{"gate": {Items: -1, Approval: true, Timeout: time.Hour}}, "clean"), func(w *world) {
		i, _ := w.s.Graph.Index("gate")
		w.s.Steps[i].Items[0] = Item{Approved: true}
		w.s.Begun--
		w.at(time.Second)
		w.s.Phase, w.s.Why = Canceling, "by a caller"
		w.at(2 * time.Second)
		w.job("deploy", steps.Failed)
		w.job("clean", steps.Succeeded)
	})
	when := newWorld(t, []steps.Step{
		{Name: "gate", Depends: diamond[0].Depends, Timeout: true}, {Name: "big", Depends: diamond[0].Depends, When: true, Job: true}, {Name: "odd", Depends: diamond[0].Depends, When: true, Job: true},
	}, map[string]Rule{"gate": {Items: -1, Approval: true, Timeout: time.Hour}, "big": {Items: -1, When: true}, "odd": {Items: -1, When: true}}, "")
	big, _ := when.s.Graph.Index("big")
	when.when[big] = false
	story("when, and an approval that nobody gives", when, func(w *world) { w.at(time.Hour) })
	story("foreach, two at once", newWorld(t, []steps.Step{step(t, "part", ""), step(t, "none", ""), step(t, "join", "part.succeeded && none.succeeded")}, map[string]Rule{"part": {Items: 3, AtOnce: 2}, "none": {Items: 0, AtOnce: 1}}, ""), func(w *world) {
		i, _ := w.s.Graph.Index("part")
		for _, item := range []int{1, 0, 2} {
			w.jobs[[2]int{i, item}] = steps.Succeeded
			w.touched[i] = true
			w.rest()
		}
		w.job("join", steps.Succeeded)
	})
	one := newWorld(t, []steps.Step{step(t, "fetch", ""), step(t, "other", "")}, nil, "")
	one.s.OneFirst = true
	story("one first, because its region decides", one, func(w *world) {
		w.s.OneFirst = false
		w.at(time.Second)
		w.job("fetch", steps.Succeeded)
		w.job("other", steps.Succeeded)
	})
	golden.File(t, "testdata/stories.txt", out.String())
}

// TestACanceledStepHasNotSucceeded: the worst end of an item counts, and a run that was retried from another step
// fails when a step stays canceled.
func TestACanceledStepHasNotSucceeded(t *testing.T) {
	for _, c := range []struct {
		items []steps.End
		want  steps.End
	}{
		{[]steps.End{steps.Canceled, steps.Failed}, steps.Failed},
		{[]steps.End{steps.Lost, steps.Canceled}, steps.Lost},
		{[]steps.End{steps.Canceled, steps.TimedOut, steps.Succeeded}, steps.TimedOut},
		{[]steps.End{steps.Succeeded, steps.Canceled}, steps.Canceled},
		{[]steps.End{steps.Skipped, steps.Succeeded}, steps.Succeeded},
	} {
		var items []Item
		for _, end := range c.items {
			items = append(items, Item{Stage: Done, End: end})
		}
		if got := EndOf(items); got != c.want {
			t.Errorf("%v: %v, want %v", c.items, got, c.want)
		}
		w := newWorld(t, []steps.Step{step(t, "each", ""), step(t, "other", "")}, map[string]Rule{"each": {Items: len(items), AtOnce: 1}}, "")
		i, _ := w.s.Graph.Index("each")
		w.s.Steps[i].Items, w.s.Steps[i].End = items, c.want
		w.s.Open--
		delete(w.touched, i)
		w.rest()
		w.job("other", steps.Succeeded)
		want := Failed
		if c.want == steps.Succeeded {
			want = Succeeded
		}
		if w.end == nil || w.end.Outcome != want {
			t.Errorf("%v: the run ended as %+v, want %v", c.items, w.end, want)
		}
	}
}

// TestWhichAttemptsAreFollowed: an attempt that is followed by another one leaves no dead letter, also if its job fails
// while it is being stopped because of its timeout.
func TestWhichAttemptsAreFollowed(t *testing.T) {
	r := Rule{Limit: 1, Retry: map[steps.End]bool{steps.Failed: true, steps.TimedOut: true}}
	for _, c := range []struct {
		phase           Phase
		it              Item
		attempt, latest int
		want            bool
	}{
		{Running, Item{Stage: Active, Tries: 1}, 1, 1, true},
		{Running, Item{Stage: Active, Tries: 2}, 2, 2, false},
		{Running, Item{Stage: Active, Tries: 2}, 1, 2, true},
		{Exiting, Item{Stage: Active, Tries: 1}, 1, 1, true},
		{Canceling, Item{Stage: Active, Tries: 1}, 1, 1, false},
		{Running, Item{Stage: Stopping, Tries: 1, End: steps.TimedOut}, 1, 1, true},
		{Running, Item{Stage: Stopping, Tries: 1, End: steps.Canceled}, 1, 1, false},
		{Running, Item{Stage: Stopping, Tries: 2, End: steps.TimedOut}, 2, 2, false},
		{Running, Item{Stage: Backoff, Tries: 1}, 1, 1, true},
		{Running, Item{Stage: Done, Tries: 1, End: steps.Failed}, 1, 1, false},
	} {
		if got := r.Followed(c.phase, c.it, c.attempt, c.latest); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// TestARetryOfManyItemsFitsIntoTransactions: a step has up to 1,000 items, and a transaction has room for fewer
// records. So several plans reset them.
func TestARetryOfManyItemsFitsIntoTransactions(t *testing.T) {
	const items, room = 1000, 96
	w := newWorld(t, []steps.Step{step(t, "each", ""), step(t, "sum", "each.failed")}, map[string]Rule{"each": {Items: items, AtOnce: items}}, "")
	for i := range w.s.Steps {
		st := &w.s.Steps[i]
		for item := range st.Items {
			st.Items[item] = Item{Stage: Done, End: steps.Failed, Tries: 1}
		}
		st.End, st.Stale = steps.Failed, true
	}
	w.s.Phase, w.s.Open = Resetting, 0
	plans := 0
	for ; w.s.Phase == Resetting && plans < items; plans++ {
		if p := w.turn(room, -1); len(p.Actions) > room {
			t.Fatalf("plan %d has %d actions, its transaction has room for %d", plans, len(p.Actions), room)
		}
	}
	if want := (items+1)/room + 1; plans != want || w.s.Phase != Running || strings.Count(w.log.String(), "reset") != items+1 {
		t.Errorf("%d plans with %d resets, want %d with %d; phase %d", plans, strings.Count(w.log.String(), "reset"), want, items+1, w.s.Phase)
	}
}

// TestEveryRunEndsAsTheOracleSays runs random workflows. Plans are cut short, jobs end in any order, and now
// and then everything is looked at again. Each step must end as a walk over all conditions says, with as many
// attempts, and a step may start only if its condition is true.
func TestEveryRunEndsAsTheOracleSays(t *testing.T) {
	for seed := range uint64(3000) {
		oracle(t, seed)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// tree is a condition that the oracle evaluates itself.
type tree struct {
	op   string
	step int
	end  steps.End
	kids []*tree
}

func (x *tree) String() string {
	switch x.op {
	case "":
		return fmt.Sprintf("s%03d.%s", x.step, x.end)
	case "!":
		return "!(" + x.kids[0].String() + ")"
	}
	return "(" + x.kids[0].String() + " " + x.op + " " + x.kids[1].String() + ")"
}

func (x *tree) holds(ends []steps.End) bool {
	switch x.op {
	case "":
		return ends[x.step] == x.end
	case "!":
		return !x.kids[0].holds(ends)
	case "&&":
		return x.kids[0].holds(ends) && x.kids[1].holds(ends)
	}
	return x.kids[0].holds(ends) || x.kids[1].holds(ends)
}

func randomTree(r *rand.Rand, below, depth int) *tree {
	if depth == 0 || r.IntN(2) == 0 {
		return &tree{step: r.IntN(below), end: []steps.End{steps.Succeeded, steps.Succeeded, steps.Failed, steps.Skipped, steps.Lost}[r.IntN(5)]}
	}
	op := []string{"&&", "||", "!"}[r.IntN(3)]
	return &tree{op: op, kids: []*tree{randomTree(r, below, depth-1), randomTree(r, below, depth-1)}}
}

func oracle(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	n := 1 + r.IntN(9)
	all, trees, rules := []steps.Step{}, make([]*tree, n), map[string]Rule{}
	outcomes := map[[3]int]steps.End{} // by step, item and attempt
	when, lists := map[int]bool{}, map[int]list{}
	ends, tries := make([]steps.End, n), map[[2]int]int{}
	for i := range n {
		text := ""
		if i > 0 && r.IntN(4) > 0 {
			trees[i] = randomTree(r, i, 2)
			text = trees[i].String()
		}
		s := step(t, fmt.Sprintf("s%03d", i), text)
		rule := Rule{Items: -1, Limit: r.IntN(3), Backoff: time.Second, Retry: map[steps.End]bool{steps.Failed: r.IntN(2) == 0, steps.Lost: r.IntN(2) == 0}}
		if r.IntN(4) == 0 {
			rule.Items, rule.AtOnce = r.IntN(4), 1+r.IntN(2)
		}
		s.When = r.IntN(4) == 0
		if s.When {
			rule.When, when[i] = true, r.IntN(3) > 0
		}
		if items := r.IntN(5) - 1; i > 0 && r.IntN(4) == 0 { // its items are the output of another step
			lists[i] = list{r.IntN(i), items}
			trees[i] = &tree{op: "&&", kids: []*tree{{step: lists[i].from, end: steps.Succeeded}, randomTree(r, i, 1)}}
			s = step(t, s.Name, trees[i].String())
			s.When = rule.When
			rule.Items, rule.AtOnce, rule.Wrong = 0, 1+r.IntN(2), "not ended"
		}
		all, rules[s.Name] = append(all, s), rule
		if trees[i] != nil && !trees[i].holds(ends) || s.When && !when[i] {
			ends[i] = steps.Skipped
			continue
		}
		var of []Item
		items := rule.Items
		if l, has := lists[i]; has {
			items = l.items
		}
		if items < 0 && rule.Wrong != "" {
			ends[i] = steps.Failed
			continue
		}
		for item := range max(1, items) {
			end := steps.Succeeded
			for try := 1; items != 0; try++ {
				end = []steps.End{steps.Succeeded, steps.Succeeded, steps.Failed, steps.Lost}[r.IntN(4)]
				outcomes[[3]int{i, item, try}], tries[[2]int{i, item}] = end, try
				if !end.Bad() || !rule.Retry[end] || try > rule.Limit {
					break
				}
			}
			of = append(of, Item{Stage: Done, End: end})
		}
		ends[i] = EndOf(of)
	}
	g, wrong := steps.New(all, "")
	if len(wrong) > 0 {
		return // a step that never starts
	}
	w := newWorld(t, all, rules, "")
	w.s.MaxParallel = 1 + r.IntN(3)
	for i, l := range lists {
		at, _ := g.Index(all[i].Name)
		from, _ := g.Index(all[l.from].Name)
		w.lists[at] = list{from, l.items}
		w.s.Rules[at].Uses = []int{from}
	}
	for i := range n {
		at, _ := g.Index(all[i].Name)
		if v, has := when[i]; has {
			w.when[at] = v
		}
	}
	for turns := 0; w.end == nil; turns++ {
		if turns > 3000 {
			t.Fatalf("the run does not end:\n%s", w.log)
		}
		w.turn(1+r.IntN(30), r.IntN(6)-1)
		w.now = w.now.Add(time.Duration(r.IntN(1000)) * time.Millisecond)
		if r.IntN(5) == 0 {
			for i := range w.s.Steps {
				w.touched[i] = true // as after an election
			}
		}
		if w.s.Active > w.s.MaxParallel {
			t.Fatalf("%d jobs at once", w.s.Active)
		}
		for i := range w.s.Steps {
			for item, it := range w.s.Steps[i].Items {
				k := [2]int{i, item}
				from := slices.IndexFunc(all, func(s steps.Step) bool { return s.Name == g.Steps[i].Name })
				if end, runs := w.jobs[k]; runs && end == steps.None && r.IntN(3) == 0 {
					w.jobs[k] = outcomes[[3]int{from, item, w.started[k]}]
					if w.jobs[k] == steps.None {
						t.Fatalf("attempt %d of %s should not be:\n%s", w.started[k], g.Steps[i].Name, w.log)
					}
					w.touched[i] = true
				}
				if it.Stage == Backoff && due(it.Until, w.now) {
					w.touched[i] = true
				}
			}
		}
	}
	want := Succeeded
	for i, s := range all {
		at, _ := g.Index(s.Name)
		if got := w.s.Steps[at].End; got != ends[i] {
			t.Errorf("%s ended %s, want %s:\n%s", s.Name, got, ends[i], w.log)
		}
		for item := range w.s.Steps[at].Items {
			if got := w.started[[2]int{at, item}]; got != tries[[2]int{i, item}] {
				t.Errorf("%s item %d: %d attempts, want %d:\n%s", s.Name, item, got, tries[[2]int{i, item}], w.log)
			}
		}
		handled := slices.ContainsFunc(g.Before[at], func(j int) bool { return w.s.Steps[j].End != steps.Skipped })
		if ends[i].Bad() && !handled {
			want = Failed
		}
	}
	if w.end.Outcome != want {
		t.Errorf("the run %s, want %s:\n%s", w.end.Outcome, want, w.log)
	}
}
