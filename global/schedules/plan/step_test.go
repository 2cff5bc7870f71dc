package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

var begin = time.Date(2026, 11, 28, 10, 0, 0, 0, time.UTC)

// every fires at whole multiples of a duration.
func every(d time.Duration) func(time.Time) (time.Time, bool) {
	return func(after time.Time) (time.Time, bool) { return after.Truncate(d).Add(d), true }
}

func (p *Plan) String() string {
	var out []string
	if p.Start != nil {
		out = append(out, "start "+Name("j", p.Start.Time, p.Start.Trigger, func(string) bool { return false }))
	}
	for _, s := range p.Stop {
		out = append(out, fmt.Sprintf("stop %s: %s", s.Name, s.Why))
	}
	for _, s := range p.Skipped {
		out = append(out, fmt.Sprintf("skip %s: %s", s.Time.Format("15:04"), s.Why))
	}
	if p.Missed > 0 {
		out = append(out, fmt.Sprintf("missed %d from %s", p.Missed, p.MissedFrom.Format("15:04")))
	}
	if p.Paused {
		out = append(out, "pause: "+p.State.PauseReason)
	}
	if n := len(p.State.Waiting); n > 0 {
		out = append(out, fmt.Sprintf("%d wait", n))
	}
	if len(out) == 0 {
		return "nothing"
	}
	return strings.Join(out, "; ")
}

// TestOverlap shows what each rule does at 10:01 while the run of 10:00 has not ended, and at 10:02.
func TestOverlap(t *testing.T) {
	running := []Run{{Name: "j.1000"}}
	for rule, want := range map[Overlap][2]string{
		Skip:      {"skip 10:01: run j.1000 has not ended", "skip 10:02: run j.1000 has not ended"},
		BufferOne: {"1 wait", "skip 10:02: 1 times wait for the end of run j.1000; 1 wait"},
		BufferAll: {"1 wait", "2 wait"},
		Cancel:    {"stop j.1000: a later run is due; 1 wait", "stop j.1000: a later run is due; skip 10:01: a later run is due; 1 wait"},
		Terminate: {"start j.20261128-100100; stop j.1000: a later run is due", "start j.20261128-100200; stop j.1000: a later run is due"},
		Allow:     {"start j.20261128-100100", "start j.20261128-100200"},
	} {
		r := Rule{Job: "d/j", Next: every(time.Minute), Overlap: rule, Buffer: 2, CatchUp: time.Hour}
		s := State{Decided: begin}
		for i, w := range want {
			p := Step(r, s, begin.Add(time.Duration(i+1)*time.Minute), running)
			if p.String() != w {
				t.Errorf("%s, step %d: %s, want %s", rule, i, &p, w)
			}
			if again := Step(r, p.State, begin.Add(time.Duration(i+1)*time.Minute), running); again.Start != nil || len(again.Skipped) > 0 {
				t.Errorf("%s: the second step decides again: %s", rule, &again)
			}
			s = p.State
		}
		running[0].State = Complete
		p := Step(r, s, begin.Add(2*time.Minute), running)
		if waits := len(s.Waiting) > 0; waits != (p.Start != nil) {
			t.Errorf("%s after the end: %s", rule, &p)
		}
		running[0].State = Active
	}
}

// TestManyRunsStopOneByOne: after a change of the rule many runs may be active. A step writes few of them.
func TestManyRunsStopOneByOne(t *testing.T) {
	for _, rule := range []Overlap{Cancel, Terminate} {
		r := Rule{Job: "d/j", Next: every(time.Minute), Overlap: rule, CatchUp: time.Hour}
		runs := []Run{{Name: "a"}, {Name: "b"}, {Name: "c"}}
		p, stopped := Plan{State: State{Decided: begin}}, 0
		for range 10 {
			p = Step(r, p.State, begin.Add(time.Minute), runs)
			if len(p.Stop) > 1 || p.Start != nil && stopped+len(p.Stop) < len(runs) {
				t.Fatalf("%s: %s", rule, &p)
			}
			for _, x := range p.Stop {
				i := slices.IndexFunc(runs, func(run Run) bool { return run.Name == x.Name })
				runs[i].Stopping = true
				stopped++
			}
			if !p.Again {
				break
			}
		}
		if stopped != len(runs) || !p.State.Decided.Equal(begin.Add(time.Minute)) {
			t.Errorf("%s: %d stopped, decided %s", rule, stopped, p.State.Decided)
		}
	}
}

// TestScheduleGoesBeforeBackfill: a time that is due during a run of a backfill waits for its end, and no
// rule stops the backfill.
func TestScheduleGoesBeforeBackfill(t *testing.T) {
	for rule, want := range map[Overlap]string{
		Skip: "skip 10:02: 1 times wait for the end of run b; 1 wait", BufferOne: "skip 10:02: 1 times wait for the end of run b; 1 wait", BufferAll: "2 wait",
		Cancel: "skip 10:01: a later run is due; 1 wait", Terminate: "skip 10:01: a later run is due; 1 wait",
	} {
		r := Rule{Job: "d/j", Next: every(time.Minute), Overlap: rule, Buffer: 2, CatchUp: time.Hour}
		s := State{Decided: begin, BackfillAt: begin.Add(-time.Hour), BackfillTo: begin, BackfillLeft: 3}
		runs := []Run{{Name: "b", Backfill: true}}
		p := Step(r, s, begin.Add(time.Minute), runs)
		if p.String() != "1 wait" {
			t.Errorf("%s: %s", rule, &p)
		}
		p = Step(r, p.State, begin.Add(2*time.Minute), runs)
		if p.String() != want {
			t.Errorf("%s: %s, want %s", rule, &p, want)
		}
		runs[0].State = Complete
		p = Step(r, p.State, begin.Add(2*time.Minute), runs)
		if p.Start == nil || p.Start.Trigger != BySchedule || p.State.BackfillLeft != 3 {
			t.Errorf("%s: after the end of the run: %s", rule, &p)
		}
	}
}

func TestCatchUpPauseBackfillAndTrigger(t *testing.T) {
	r := Rule{Job: "d/j", Next: every(time.Hour), Overlap: Allow, CatchUp: 2 * time.Hour, PauseAfter: 2}
	p := Step(r, State{Decided: begin}, begin.Add(5*time.Hour+time.Minute), nil)
	if got, want := p.String(), "start j.20261128-140000; missed 3 from 11:00"; got != want {
		t.Errorf("late: %s, want %s", got, want)
	}
	// A year without a server costs a few steps.
	s, steps := State{Decided: begin.AddDate(-20, 0, 0)}, 0
	for p = (Plan{Again: true, State: s}); p.Again && p.Start == nil; steps++ {
		p = Step(r, p.State, begin, nil)
	}
	if p.Start == nil || !p.Start.Time.Equal(begin.Add(-2*time.Hour)) || steps > 3 {
		t.Errorf("after %d steps: %s", steps, &p)
	}
	p = Step(r, State{Decided: begin}, begin, []Run{{Name: "a", State: Failed}, {Name: "b", State: Failed}, {Name: "c", State: Failed, Counted: true}})
	if got, want := p.String(), "pause: 2 runs in a row have failed, the last one is b"; got != want {
		t.Errorf("failures: %s, want %s", got, want)
	}
	p = Step(r, p.State, begin.Add(9*time.Hour), nil)
	if p.String() != "nothing" {
		t.Errorf("paused: %s", &p)
	}
	if n := Between(r, begin, begin.Add(5*time.Hour), 100); n != 5 {
		t.Errorf("%d times", n)
	}
	if n := Between(r, begin, begin.AddDate(1, 0, 0), 100); n != 101 {
		t.Errorf("%d times", n)
	}
	filling, ok := Fill(State{Decided: begin}, begin.Add(-4*time.Hour), begin.Add(-2*time.Hour), 2)
	if _, again := Fill(filling, begin.Add(-4*time.Hour), begin.Add(-2*time.Hour), 2); !ok || again {
		t.Errorf("a backfill: %v, a second one: %v", ok, again)
	}
	p.State = filling
	for _, want := range []string{"start j.20261128-060000-b", "start j.20261128-070000-b", "nothing"} {
		p = Step(r, p.State, begin, nil)
		if p.String() != want {
			t.Errorf("backfill: %s, want %s", &p, want)
		}
	}
	for rule, want := range map[Overlap]string{Skip: "run a has not ended, and overlap is skip", Terminate: "", Allow: ""} {
		r.Overlap = rule
		if p, why := Now(r, State{}, begin.Add(time.Millisecond), []Run{{Name: "a"}}); why != want || !p.Start.Time.Equal(begin) {
			t.Errorf("trigger with %s: %q, want %q; begins %s", rule, why, want, p.Start.Time)
		}
	}
}

// TestAWrongClockStopsNoSchedule: a server whose clock was a year ahead has decided the times of that year. The next
// server decides them when they come. Clocks that differ by minutes decide no time twice.
func TestAWrongClockStopsNoSchedule(t *testing.T) {
	r := Rule{Job: "default/j", Next: every(time.Minute), Overlap: Skip, CatchUp: time.Hour}
	ahead := Step(r, State{Decided: begin}, begin.AddDate(1, 0, 0), nil).State
	if !ahead.Decided.After(begin.AddDate(0, 11, 0)) {
		t.Fatalf("the wrong clock decided up to %s", ahead.Decided)
	}
	p := Step(r, ahead, begin.Add(30*time.Second), nil)
	if want := begin.Add(time.Minute); !p.Wake.Equal(want) || p.Start != nil || p.State.Decided.After(want) {
		t.Errorf("decided up to %s, the next time is %s, want %s", p.State.Decided, p.Wake, want)
	}
	p = Step(r, p.State, begin.Add(time.Minute), nil)
	if p.Start == nil || !p.Start.Time.Equal(begin.Add(time.Minute)) {
		t.Errorf("no run begins at the next time: %+v", p.Start)
	}
	p = Step(r, p.State, begin.Add(-10*time.Minute), nil)
	if p.Start != nil || !p.State.Decided.Equal(begin.Add(time.Minute)) {
		t.Errorf("a clock 11 minutes behind decides again: %+v", p)
	}
}

func TestNamesAndJitter(t *testing.T) {
	used := map[string]bool{}
	var got []string
	for range 12 {
		name := Name("j", begin, Manual, func(n string) bool { return used[n] })
		used[name] = true
		got = append(got, name)
	}
	if got[0] != "j.20261128-100000-t" || got[1] != "j.20261128-100000-t2" || got[11] != "j.20261128-100000-t12" {
		t.Errorf("%v", got)
	}
	r := Rule{Job: "d/j", Jitter: time.Hour}
	seen := map[time.Duration]bool{}
	for i := range 100 {
		at := begin.Add(time.Duration(i) * time.Minute)
		d := r.due(at).Sub(at)
		if d < 0 || d >= time.Hour || d != r.due(at).Sub(at) {
			t.Fatalf("jitter %s", d)
		}
		seen[d] = true
	}
	if len(seen) < 90 {
		t.Errorf("only %d delays", len(seen))
	}
}

// TestNoTimeTwiceAndNoneMissed drives schedules at random: servers are away, lose what they did not
// store, and runs take random times. Each time must have exactly one fate.
func TestNoTimeTwiceAndNoneMissed(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 7))
		r := Rule{
			Job: "d/j", Next: every(time.Duration(1+random.IntN(5)) * time.Minute), Overlap: []Overlap{Skip, BufferOne, BufferAll, Cancel, Terminate, Allow}[random.IntN(6)],
			Buffer: 1 + random.IntN(3), CatchUp: time.Duration(5+random.IntN(20)) * time.Minute, Jitter: time.Duration(random.IntN(2)) * 3 * time.Minute,
		}
		s, now := State{Decided: begin}, begin
		fate := map[int64][]string{}
		type running struct {
			Run
			until time.Time
		}
		var runs []running
		idle := time.Duration(0) // the longest time without a server
		for now.Before(begin.Add(6 * time.Hour)) {
			pause := time.Duration(random.IntN(40)) * time.Second
			if random.IntN(50) == 0 {
				pause = time.Duration(random.IntN(60)) * time.Minute
			}
			now, idle = now.Add(pause), max(idle, pause)
			var view []Run
			for i := range runs {
				if runs[i].State == Active && (!now.Before(runs[i].until) || runs[i].Stopping && random.IntN(2) == 0) {
					runs[i].State = Complete
				}
				view = append(view, runs[i].Run)
			}
			for range 50 {
				p := Step(r, s, now, view)
				if random.IntN(10) == 0 {
					break // the server ends before it has stored the plan
				}
				s = p.State
				for _, x := range p.Skipped {
					fate[x.Time.Unix()] = append(fate[x.Time.Unix()], "skipped")
				}
				for _, x := range p.Stop {
					i := slices.IndexFunc(runs, func(run running) bool { return run.Name == x.Name })
					runs[i].Stopping, view[i].Stopping = true, true
				}
				if p.Start != nil {
					fate[p.Start.Time.Unix()] = append(fate[p.Start.Time.Unix()], "began")
					if now.Sub(p.Start.Time) < 0 {
						t.Fatalf("seed %d: %s began early", seed, p.Start.Time)
					}
					begun := running{Run{Name: Name("j", p.Start.Time, BySchedule, nil)}, now.Add(time.Duration(random.IntN(400)) * time.Second)}
					if busy := len(activeRuns(view)); busy > 0 && r.Overlap != Allow && r.Overlap != Terminate {
						t.Fatalf("seed %d: %d runs overlap with %s", seed, busy+1, r.Overlap)
					}
					runs, view = append(runs, begun), append(view, begun.Run)
				}
				if !p.Again {
					break
				}
			}
		}
		for _, w := range s.Waiting {
			fate[w.Unix()] = append(fate[w.Unix()], "waits")
		}
		without := int64(0)
		for at := begin; ; {
			at, _ = r.Next(at)
			if at.After(s.Decided) {
				break
			}
			switch f := fate[at.Unix()]; len(f) {
			case 0:
				without++
			case 1:
			default:
				t.Fatalf("seed %d: %s %v", seed, at, f)
			}
		}
		if without != s.Missed || without > 0 && idle <= r.CatchUp-time.Minute {
			t.Fatalf("seed %d: %d times have no fate, %d are missed, with at most %s without a server and catch_up %s", seed, without, s.Missed, idle, r.CatchUp)
		}
	}
}
