package state

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// overridable returns a log of the present feature level with a service api[0-3] of run 5, and its two
// running instances on n1.
func overridable(t *testing.T) *log {
	l := newLog(t)
	l.ok(Command{SetLimits: &SetLimits{FeatureLevel: FeatureLevel}})
	l.ok(testNode("n1"))
	l.ok(overrideOrder(0, 4, 10, 5))
	for i := range int32(2) {
		id := fmt.Sprint("a", i)
		l.ok(testPlace(id, i, "n1", 1))
		l.ok(testReport("n1", AllocReport{ID: id, State: Running}))
	}
	return l
}

func overrideOrder(from, to int32, generation, run int64) Command {
	return testOrder(from, to, generation, testJob(1, nil), func(s *Slot) { s.Run = run })
}

func overrideOf(change func(*SetOverride)) Command {
	c := &SetOverride{Namespace: "default", Job: "api", Reason: "hot", By: "jane"}
	change(c)
	return Command{SetOverride: c}
}

func scaleTo(n int32) Command {
	return overrideOf(func(c *SetOverride) { c.Group, c.Count = "web", n })
}

func rebindTo(federation string) Command {
	return Command{RebindFederation: &RebindFederation{FederationID: federation}}
}

func joinOf(federation string) Command {
	return Command{JoinFederation: &JoinFederation{FederationID: federation, Term: 7, Nonce: "n"}}
}

// firstPart has a part of the orders of another federation.
func firstPart() Command {
	c := overrideOrder(0, 4, 30, 2)
	c.ApplyOrders.More = true
	return c
}

var (
	stopAll  = overrideOf(func(c *SetOverride) { c.Stop = true })
	clearAll = overrideOf(func(c *SetOverride) { c.Clear = true })
)

// shows fails the test unless the group wants and holds these numbers of instances, and the override has
// this text.
func (l *log) shows(wanted, held int32, text string) {
	l.t.Helper()
	g, _ := l.Group(webKey)
	have := ""
	if o, ok := l.Override("default", "api"); ok {
		have = o.Text()
	}
	if g.Wanted != wanted || g.Counts.Held != held || have != text {
		l.t.Fatalf("wanted %d, held %d, %q; want %d, %d, %q", g.Wanted, g.Counts.Held, have, wanted, held, text)
	}
}

// TestOverride is the table of docs/islands.md: what an override survives, and what ends it.
func TestOverride(t *testing.T) {
	slot := func(change func(*Slot)) Command {
		return testOrder(0, 4, 20, testJob(2, nil), func(s *Slot) { s.Run = 5; change(s) })
	}
	removed := Command{ApplyOrders: &ApplyOrders{Removed: []string{"default/api/web/0"}}}
	for name, c := range map[string]struct {
		then         []Command
		wanted, held int32
		text         string
	}{
		"stopped":                 {[]Command{stopAll}, 0, 4, "stopped"},
		"scaled":                  {[]Command{scaleTo(1)}, 1, 3, "web scaled to 1"},
		"scaled after a stop":     {[]Command{stopAll, scaleTo(3)}, 3, 1, "stopped, web scaled to 3"},
		"all after a stop":        {[]Command{stopAll, scaleTo(4)}, 4, 0, "stopped, but not web"},
		"a stop replaces bounds":  {[]Command{scaleTo(3), stopAll}, 0, 4, "stopped"},
		"scaled to all":           {[]Command{scaleTo(1), scaleTo(4)}, 4, 0, ""},
		"scaled to all at once":   {[]Command{scaleTo(4)}, 4, 0, ""},
		"cleared":                 {[]Command{stopAll, clearAll}, 4, 0, ""},
		"a new version":           {[]Command{scaleTo(1), slot(func(*Slot) {})}, 1, 3, "web scaled to 1"},
		"fewer by the federation": {[]Command{scaleTo(1), testOrder(0, 1, 20, testJob(1, nil), func(s *Slot) { s.Run = 5 })}, 1, 0, "web scaled to 1"},
		"more by the federation":  {[]Command{scaleTo(1), overrideOrder(4, 6, 20, 5)}, 1, 5, "web scaled to 1"},
		"stopped by its owner":    {[]Command{scaleTo(1), slot(func(s *Slot) { s.Desired = Stop })}, 0, 0, "web scaled to 1"},
		"moved":                   {[]Command{scaleTo(1), slot(func(s *Slot) { s.Desired = Revoke })}, 0, 0, "web scaled to 1"},
		"after a failover":        {[]Command{scaleTo(1), slot(func(s *Slot) { s.Desired = Hold })}, 0, 0, "web scaled to 1"},
		"moved and back":          {[]Command{scaleTo(1), removed, overrideOrder(0, 4, 30, 5)}, 1, 3, "web scaled to 1"},
		"run again":               {[]Command{scaleTo(1), overrideOrder(0, 4, 30, 30)}, 4, 0, ""},
		"moved and run again":     {[]Command{scaleTo(1), removed, overrideOrder(0, 4, 30, 30)}, 4, 0, ""},
		"rebound":                 {[]Command{scaleTo(1), rebindTo("g"), rebindTo("h")}, 1, 3, "web scaled to 1"},
		"rebound, its orders":     {[]Command{scaleTo(1), rebindTo("g"), overrideOrder(0, 4, 30, 2)}, 4, 0, ""},
		"rebound, scaled":         {[]Command{scaleTo(1), rebindTo("g"), scaleTo(2)}, 2, 2, "web scaled to 2"},
		"rebound, scaled, orders": {[]Command{scaleTo(1), rebindTo("g"), scaleTo(2), overrideOrder(0, 4, 30, 2)}, 4, 0, ""},
		"scaled, rebound, back":   {[]Command{rebindTo("f"), scaleTo(1), rebindTo("g"), scaleTo(2), rebindTo("f"), overrideOrder(0, 4, 30, 5)}, 2, 2, "web scaled to 2"},
		"rebound, a new one":      {[]Command{joinOf("f"), rebindTo("g"), scaleTo(1)}, 1, 3, "web scaled to 1"},
		"a new one, orders":       {[]Command{joinOf("f"), rebindTo("g"), scaleTo(1), overrideOrder(0, 4, 30, 2)}, 4, 0, ""},
		"a new one, back":         {[]Command{joinOf("f"), rebindTo("g"), scaleTo(1), rebindTo("f"), overrideOrder(0, 4, 30, 5)}, 1, 3, "web scaled to 1"},
		"back, a new one":         {[]Command{joinOf("f"), rebindTo("g"), rebindTo("f"), scaleTo(1), overrideOrder(0, 4, 30, 5)}, 1, 3, "web scaled to 1"},
		"a new one, its orders":   {[]Command{joinOf("f"), rebindTo("g"), firstPart(), scaleTo(1), overrideOrder(0, 4, 30, 2)}, 1, 3, "web scaled to 1"},
		"rebound thrice":          {[]Command{rebindTo("f"), scaleTo(1), rebindTo("g"), rebindTo("h"), rebindTo("g")}, 1, 3, "web scaled to 1"},
		"rebound thrice, orders":  {[]Command{rebindTo("f"), scaleTo(1), rebindTo("g"), rebindTo("h"), rebindTo("g"), overrideOrder(0, 4, 30, 2)}, 4, 0, ""},
		"rebound thrice, scaled":  {[]Command{rebindTo("f"), scaleTo(1), rebindTo("g"), rebindTo("h"), scaleTo(2), rebindTo("g"), overrideOrder(0, 4, 30, 2)}, 4, 0, ""},
		"of the other one, back":  {[]Command{joinOf("f"), rebindTo("g"), overrideOrder(0, 4, 30, 9), scaleTo(1), rebindTo("f"), overrideOrder(0, 4, 40, 5)}, 4, 0, ""},
		"rebound, none left":      {[]Command{stopAll, rebindTo("g"), removed}, 0, 0, ""},
		"rebound, not all yet":    {[]Command{stopAll, rebindTo("g"), {ApplyOrders: &ApplyOrders{More: true}}}, 0, 4, "stopped"},
		"rebound and back":        {[]Command{rebindTo("f"), scaleTo(1), rebindTo("g"), rebindTo("f"), overrideOrder(0, 4, 30, 5)}, 1, 3, "web scaled to 1"},
		"back too late":           {[]Command{rebindTo("f"), scaleTo(1), rebindTo("g"), {ApplyOrders: &ApplyOrders{}}, rebindTo("f")}, 4, 0, ""},
		"partly given back": {[]Command{scaleTo(2), {AnswerSlots: &AnswerSlots{Answers: []Answer{
			{Namespace: "default", Job: "api", Group: "web", From: 3, To: 4, Generation: 10, State: SlotReturned}}}}}, 2, 2, "web scaled to 2"},
	} {
		t.Run(name, func(t *testing.T) {
			l := overridable(t)
			for _, cmd := range c.then {
				l.do(cmd)
			}
			l.shows(c.wanted, c.held, c.text)
			restored, err := Restore(func(yield func(Record, error) bool) {
				for r := range l.Snapshot().Records() {
					if !yield(r, nil) {
						return
					}
				}
			})
			if err != nil || restored.Snapshot().Hash() != l.Snapshot().Hash() {
				t.Fatalf("a restored state differs: %v", err)
			}
			(&log{t: t, State: restored}).shows(c.wanted, c.held, c.text)
		})
	}
}

func TestOverrideRefused(t *testing.T) {
	l := overridable(t)
	l.fails(scaleTo(5), ErrBeyondSlots)
	l.fails(scaleTo(-1), ErrInvalid)
	l.fails(overrideOf(func(c *SetOverride) { c.Stop, c.Reason = true, strings.Repeat("x", maxOverrideReason+1) }), ErrInvalid)
	l.fails(overrideOf(func(c *SetOverride) { c.Job, c.Stop = "none", true }), ErrNotFound)
	l.fails(overrideOf(func(c *SetOverride) { c.Group = "db" }), ErrNotFound)
	l.ok(testOrder(0, 4, 20, &Job{Version: 2, Type: Batch, Spec: []byte("b"), Groups: testJob(2, nil).Groups}, func(s *Slot) { s.Run = 20 }))
	l.fails(scaleTo(1), ErrNotService)
	l.ok(stopAll)
	l.shows(0, 4, "stopped")

	old := running(t, nil) // its servers have no feature level yet
	old.fails(stopAll, ErrInvalid)
	if r := old.do(clearAll); r.Changed {
		t.Error("an earlier version has cleared an override")
	}
}

// TestOverridesAreBounded: the last of many overrides is refused, and one more fits after a clear.
func TestOverridesAreBounded(t *testing.T) {
	l := overridable(t)
	named := func(i int, cmd Command) Command {
		c := *cmd.SetOverride
		c.Job = fmt.Sprint("j", i)
		return Command{SetOverride: &c}
	}
	for i := range MaxOverrides + 1 {
		l.ok(testOrder(0, 1, 10, testJob(1, nil), func(s *Slot) { s.Job = fmt.Sprint("j", i) }))
	}
	for i := range MaxOverrides {
		l.ok(named(i, stopAll))
	}
	l.fails(named(MaxOverrides, stopAll), ErrFull)
	l.ok(named(0, stopAll)) // a change needs no room
	l.ok(named(0, clearAll))
	l.ok(named(MaxOverrides, stopAll))
	if n := len(slices.Collect(l.Overrides())); n != MaxOverrides {
		t.Errorf("%d overrides, want %d", n, MaxOverrides)
	}
}

// TestOverrideOfBatch: instances of a batch job that have ended stay ended under an override.
func TestOverrideOfBatch(t *testing.T) {
	l := newLog(t)
	l.ok(Command{SetLimits: &SetLimits{FeatureLevel: FeatureLevel}})
	l.ok(testNode("n1"))
	job := testJob(1, nil)
	job.Type = Batch
	l.ok(testOrder(0, 3, 10, job, nil))
	l.ok(testPlace("a0", 0, "n1", 1))
	l.ok(testReport("n1", AllocReport{ID: "a0", State: Complete}))
	l.ok(stopAll)
	if g, _ := l.Group(webKey); g.Counts.Complete != 1 || g.Counts.Held != 2 || g.Counts.Pending != 0 {
		t.Errorf("%+v, want 1 complete and 2 held", g.Counts)
	}
	l.ok(clearAll)
	if g, _ := l.Group(webKey); g.Counts.Complete != 1 || g.Counts.Held != 0 || g.Counts.Pending != 2 {
		t.Errorf("%+v, want 1 complete and 2 pending", g.Counts)
	}
}

// TestOverrideProperty: whatever orders, answers and overrides come, exactly the lowest instances that the
// region owns run, as many as the override allows; the counts agree; and a restored state is equal.
func TestOverrideProperty(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 19))
		l := newLog(t)
		l.ok(Command{SetLimits: &SetLimits{FeatureLevel: FeatureLevel}})
		bound, run, revision := int32(-1), int64(1), int64(10)
		for step := range 60 {
			revision++
			switch from := rng.Int32N(8); rng.IntN(8) {
			case 0, 1, 2:
				desired := Run
				if rng.IntN(4) == 0 {
					desired = Desired(1 + rng.IntN(int(Hold)))
				}
				if rng.IntN(6) == 0 {
					run = revision
				}
				l.do(testOrder(from, from+1+rng.Int32N(5), revision, testJob(1, nil), func(s *Slot) { s.Run, s.Desired = run, desired }))
				if o, ok := l.Override("default", "api"); bound >= 0 && !ok {
					bound = -1
				} else if ok && desired == Run && o.Run < run {
					t.Fatalf("seed %d, step %d: an override of run %d survives run %d", seed, step, o.Run, run)
				}
			case 3:
				l.do(Command{ApplyOrders: &ApplyOrders{Removed: []string{SlotID("default", "api", "web", from)}}})
			case 4:
				for s := range l.Slots() {
					l.do(Command{AnswerSlots: &AnswerSlots{Answers: []Answer{{
						Namespace: "default", Job: "api", Group: "web", From: s.From, To: s.From + 1, Generation: s.Generation, State: SlotReturned}}}})
				}
			case 5:
				if l.do(stopAll).Err == nil {
					bound = 0
				}
			case 6:
				n, owned := rng.Int32N(6), int32(len(ownedIndices(&l.View)))
				err := l.do(overrideOf(func(c *SetOverride) { c.Group, c.Count = "web", n })).Err
				if (n > owned || owned == 0) != (err != nil) || err != nil && owned > 0 && !errors.Is(err, ErrBeyondSlots) {
					t.Fatalf("seed %d, step %d: scaled to %d of %d: %v", seed, step, n, owned, err)
				}
				switch {
				case err == nil && n == owned:
					bound = -1
				case err == nil:
					bound = n
				}
			case 7:
				if rng.IntN(3) == 0 {
					l.do(clearAll)
					bound = -1
				}
			}
			checkHeld(t, fmt.Sprintf("seed %d, step %d", seed, step), &l.View, bound)
		}
		restored, err := Restore(func(yield func(Record, error) bool) {
			for r := range l.Snapshot().Records() {
				if !yield(r, nil) {
					return
				}
			}
		})
		if err != nil || restored.Snapshot().Hash() != l.Snapshot().Hash() {
			t.Fatalf("seed %d: a restored state differs: %v", seed, err)
		}
		checkHeld(t, fmt.Sprintf("seed %d, restored", seed), &restored.View, bound)
	}
}

// ownedIndices returns the indices that some slot owns, in order.
func ownedIndices(v *View) (out []int32) {
	for i := range int32(20) {
		for s := range v.Slots() {
			if s.Owns(i) {
				out = append(out, i)
				break
			}
		}
	}
	return out
}

// checkHeld compares the instances that run with those that bound allows; -1: all.
func checkHeld(t *testing.T, at string, v *View, bound int32) {
	t.Helper()
	owned := ownedIndices(v)
	want := owned
	if bound >= 0 {
		want = owned[:min(len(owned), int(bound))]
	}
	var have []int32
	for i := range int32(20) {
		g, ok := v.Group(webKey)
		if ok && SlotOf(g.Slots, i) != nil && SlotOf(g.Slots, i).Wants(i) {
			have = append(have, i)
		}
	}
	if !slices.Equal(have, want) {
		t.Fatalf("%s: %v run, want %v of %v with the bound %d", at, have, want, owned, bound)
	}
	if g, ok := v.Group(webKey); ok && (g.Wanted != int32(len(want)) || g.Counts.Held != int32(len(owned)-len(want))) {
		t.Fatalf("%s: wanted %d, held %d, want %d, %d", at, g.Wanted, g.Counts.Held, len(want), len(owned)-len(want))
	}
}
