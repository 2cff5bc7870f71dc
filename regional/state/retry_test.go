package state

import (
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state/retry"
)

// TestRetriesNeedTheirLevel: below RetryLevel the state has nothing that earlier servers do not know, and
// the earlier rules apply.
func TestRetriesNeedTheirLevel(t *testing.T) {
	policy := func(g *Group) {
		g.Retry, g.Parallel = &retry.Policy{Attempts: 1, Default: retry.Rule{Attempts: -1, From: time.Hour}}, 1
	}
	job := batch(policy)(1)
	for _, level := range []uint32{RetryLevel - 1, RetryLevel, ParallelLevel} {
		l := newLog(t)
		l.ok(testNode("n1"))
		l.ok(Command{SetLimits: &SetLimits{FeatureLevel: level}})
		l.ok(testOrder(0, 2, 10, job, func(s *Slot) { s.Parallel = 1 }))
		l.ok(testPlace("a1", 0, "n1", 1))
		l.ok(testReport("n1", AllocReport{ID: "a1", State: Failed, Reason: ReasonExited, Failure: &retry.Failure{Category: retry.App, ExitCode: 3}}))
		in := l.Instance(webKey, 0)
		g, _ := l.Group(webKey)
		stored, _ := l.Job(webKey.JobKey(), 1)
		knows, bounds := level >= RetryLevel, level >= ParallelLevel
		if (in.Retry != nil) != knows || (stored.Groups[0].Retry != nil) != knows || (g.Slots[0].Parallel != 0) != bounds || (stored.Groups[0].Parallel != 0) != bounds {
			t.Errorf("level %d: %+v, %+v", level, in, stored.Groups[0])
		}
		wait := time.Duration(in.NotBeforeUnixNano - l.now)
		if want := map[bool]time.Duration{false: 5 * time.Second, true: time.Hour}[knows]; wait != want {
			t.Errorf("level %d: the next attempt is in %s, want %s", level, wait, want)
		}
		var records []Record
		for r := range l.Snapshot().Records() {
			records = append(records, r)
		}
		if s, err := Restore(seq(records)); err != nil || s.Snapshot().Hash() != l.Snapshot().Hash() {
			t.Errorf("level %d: a restored snapshot differs: %v", level, err)
		}
	}
}

// TestNewGenerationResetsRetries: another region, or a return, begins the count again.
func TestNewGenerationResetsRetries(t *testing.T) {
	l := newLog(t)
	l.ok(testNode("n1"))
	l.ok(Command{SetLimits: &SetLimits{FeatureLevel: RetryLevel}})
	job := batch(func(g *Group) { g.Retry = &retry.Policy{Rules: []retry.Rule{{Fail: true}}, Attempts: 5} })(1)
	l.ok(testOrder(0, 1, 10, job, nil))
	l.ok(testPlace("a1", 0, "n1", 1))
	l.ok(testReport("n1", AllocReport{ID: "a1", State: Failed, Reason: ReasonExited}))
	if in := l.Instance(webKey, 0); !in.Exhausted || in.Reason != ReasonRetriesExhausted || in.Retry.Rule != 1 {
		t.Fatalf("%+v", in)
	}
	l.ok(testOrder(0, 1, 20, job, nil))
	if in := l.Instance(webKey, 0); in.Exhausted || in.Retry != nil || in.Failures != 0 {
		t.Errorf("%+v", in)
	}
}

// TestRetriesWithMoreMemory: an allocation is charged for the memory of its retry. Below MemoryLevel the memory stays.
func TestRetriesWithMoreMemory(t *testing.T) {
	for _, level := range []uint32{MemoryLevel - 1, MemoryLevel} {
		l := newLog(t)
		l.ok(testNode("n1"))
		l.ok(Command{SetLimits: &SetLimits{FeatureLevel: level}})
		job := batch(func(g *Group) {
			g.Retry = &retry.Policy{Attempts: 5, MemoryBytes: g.Ask.Resources.MemoryBytes, Rules: []retry.Rule{{Attempts: -1, MemoryMilli: 2000}}}
		})(1)
		base := job.Groups[0].Ask.Resources.MemoryBytes
		l.ok(testOrder(0, 1, 10, job, nil))
		l.ok(testPlace("a1", 0, "n1", 1))
		l.ok(testReport("n1", AllocReport{ID: "a1", State: Failed, Reason: ReasonExited, Failure: &retry.Failure{Category: retry.OOM}}))
		want := base
		if level >= MemoryLevel {
			want = 2 * base
		}
		if got := l.Instance(webKey, 0).Retry.MemoryBytes; got != want && (got != 0 || level >= MemoryLevel) || base == 0 {
			t.Fatalf("level %d: the next attempt has %d bytes of memory, want %d", level, got, want)
		}
		place := testPlace("a2", 0, "n1", 1)
		place.ApplyPlan.Places[0].Allocs[0].MemoryBytes = l.Instance(webKey, 0).Retry.MemoryBytes
		l.ok(place)
		if a, _ := l.Alloc("a2"); a.Resources.MemoryBytes != want {
			t.Errorf("level %d: charged for %d bytes of memory, want %d", level, a.Resources.MemoryBytes, want)
		}
	}
}
