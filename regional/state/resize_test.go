package state

import (
	"testing"
)

// atResizeLevel returns a log with one running instance on n1, and version 2 of its job, which asks for
// other resources. Its node has 4000m of CPU.
func atResizeLevel(t *testing.T, level uint32, cpu int64, rest uint64) *log {
	l := newLog(t)
	l.ok(Command{SetLimits: &SetLimits{FeatureLevel: level}})
	l.ok(testNode("n1"))
	l.ok(testOrder(0, 2, 10, testJob(1, func(g *Group) { g.Rest = 7 }), nil))
	l.ok(testPlace("a1", 0, "n1", 1))
	l.ok(testReport("n1", AllocReport{ID: "a1", State: Running}))
	next := testJob(2, func(g *Group) { g.Rest, g.Ask.Resources.CPUMilli = rest, cpu })
	l.ok(testOrder(0, 2, 11, next, nil))
	return l
}

func resize(id string, version int64) Command {
	return Command{ApplyPlan: &ApplyPlan{Resizes: []ResizeAlloc{{id, version}}}}
}

// TestResizeChargesAtOnce: the entry of the log changes the charge of the node, and the agent gets an order.
// The allocation and its epoch stay, and it counts as starting until it is proven.
func TestResizeChargesAtOnce(t *testing.T) {
	l := atResizeLevel(t, ResizeLevel, 3000, 7)
	before, _ := l.Alloc("a1")
	if got := l.Use("n1").Resources.CPUMilli; got != 1000 {
		t.Fatalf("charged for %d", got)
	}
	l.now += 5 * second
	if r := l.ok(resize("a1", 2)); len(r.Orders) != 1 || !r.Orders[0].Resized {
		t.Fatalf("orders %v", r.Orders)
	}
	a, _ := l.Alloc("a1")
	if got := l.Use("n1").Resources.CPUMilli; got != 3000 || a.Resources.CPUMilli != 3000 {
		t.Errorf("charged for %d", got)
	}
	if a.Epoch != before.Epoch || a.Generation != before.Generation || a.JobVersion != 2 || a.GroupHash != 2 || a.Serving() {
		t.Errorf("it is %+v of %+v", a, a.Placement)
	}
	l.skipped(resize("a1", 2), ReasonStaleOrder) // it has that version
	for _, r := range []AllocReport{
		{ID: "a1", State: Running, Limits: LimitsApplied, Order: a.OrderIndex - 1}, // about an earlier order
		{ID: "a1", State: Running},
	} {
		l.ok(testReport("n1", r))
		if a, _ := l.Alloc("a1"); a.Limits != LimitsOrdered {
			t.Errorf("after %+v it is %d", r, a.Limits)
		}
	}
	l.now += 5 * second
	l.ok(testReport("n1", AllocReport{ID: "a1", State: Running, Limits: LimitsApplied, Order: a.OrderIndex}))
	if a, _ := l.Alloc("a1"); a.Limits != LimitsApplied || a.UpUnixNano != l.now || !a.Proving {
		t.Errorf("it is %+v", a)
	}
	l.ok(testStop("a1"))
	l.ok(testReport("n1", AllocReport{ID: "a1", State: Stopped}))
	if got := l.Use("n1").Resources; got != (Resources{}) {
		t.Errorf("charged for %+v after the end", got)
	}
}

// TestResizeIsSkipped: a change that is no longer possible changes nothing.
func TestResizeIsSkipped(t *testing.T) {
	for name, c := range map[string]struct {
		level  uint32
		cpu    int64
		rest   uint64
		id     string
		to     int64
		reason Reason
	}{
		"no room":         {ResizeLevel, 4001, 7, "a1", 2, ReasonInsufficientCPU},
		"more changes":    {ResizeLevel, 2000, 8, "a1", 2, ReasonStaleOrder},
		"earlier servers": {ResizeLevel - 1, 2000, 7, "a1", 2, ReasonStaleOrder},
		"old version":     {ResizeLevel, 2000, 7, "a1", 1, ReasonStaleOrder},
		"unknown":         {ResizeLevel, 2000, 7, "a9", 2, ReasonStaleOrder},
	} {
		t.Run(name, func(t *testing.T) {
			l := atResizeLevel(t, c.level, c.cpu, c.rest)
			l.skipped(resize(c.id, c.to), c.reason)
			if a, _ := l.Alloc("a1"); a.JobVersion != 1 || a.Limits != 0 {
				t.Errorf("it is %+v", a)
			}
		})
	}
	l := atResizeLevel(t, ResizeLevel, 4000, 7)
	l.ok(resize("a1", 2)) // all that the node has
}
