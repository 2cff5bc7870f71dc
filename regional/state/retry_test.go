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

// TestOrdersCompleteJobs: a job version that a region stored at a lower level, without the retry policy of one of its
// groups, has the policy when the region gets that group at FieldsLevel.
func TestOrdersCompleteJobs(t *testing.T) {
	job := batch(nil)(1)
	other := job.Groups[0]
	other.Name, other.Retry = "worker", &retry.Policy{Attempts: 0, Default: retry.Rule{Attempts: -1, From: time.Hour}}
	job.Groups = append(job.Groups, other)
	worker := func(s *Slot) { s.Group = other.Name }
	for _, level := range []uint32{FieldsLevel - 1, FieldsLevel} {
		l := newLog(t)
		l.ok(testNode("n1"))
		l.ok(Command{SetLimits: &SetLimits{FeatureLevel: RetryLevel - 1}})
		l.ok(testOrder(0, 1, 10, job, nil))
		l.ok(Command{SetLimits: &SetLimits{FeatureLevel: level}})
		stored, _ := l.Job(webKey.JobKey(), 1)
		if lacks := l.Lacks(stored, job); lacks != (level >= FieldsLevel) || stored.Groups[1].Retry != nil {
			t.Errorf("level %d: lacks fields: %v: %+v", level, lacks, stored.Groups[1])
		}
		l.ok(testOrder(0, 1, 20, job, worker))
		place := testPlace("a1", 0, "n1", 1)
		place.ApplyPlan.Places[0].Key.Group = other.Name
		l.ok(place)
		l.ok(testReport("n1", AllocReport{ID: "a1", State: Failed, Reason: ReasonExited, Failure: &retry.Failure{Category: retry.App, ExitCode: 3}}))
		stored, _ = l.Job(webKey.JobKey(), 1)
		in := l.Instance(GroupKey{Namespace: "default", Job: "api", Group: other.Name}, 0)
		if in.Exhausted != (level >= FieldsLevel) || l.Lacks(stored, job) || (stored.Groups[1].Retry != nil) != (level >= FieldsLevel) {
			t.Errorf("level %d: %+v of %+v", level, in, stored.Groups[1])
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

// TestAttemptsMoveToEachSlot: two slots of a group that one transaction offers have one generation. The attempts of the
// instances of both count, once.
func TestAttemptsMoveToEachSlot(t *testing.T) {
	job := batch(func(g *Group) {
		g.Count, g.Retry = 4, &retry.Policy{Attempts: 5, Rules: []retry.Rule{{Attempts: -1, OtherRegion: true}}}
	})(1)
	for _, level := range []uint32{EachSlotLevel - 1, EachSlotLevel} {
		l := newLog(t)
		l.ok(testNode("n1"))
		l.ok(Command{SetLimits: &SetLimits{FeatureLevel: level}})
		order := func(from, to int32, a ...Attempts) Command {
			c := testOrder(from, to, 10, job, nil)
			c.ApplyOrders.Orders[0].Attempts = a
			return c
		}
		l.ok(order(0, 2, Attempts{0, retry.Used{Failures: 2}}, Attempts{1, retry.Used{Failures: 1}}))
		l.ok(order(3, 4, Attempts{3, retry.Used{Failures: 4}}))
		want := int32(0)
		if level >= EachSlotLevel {
			want = 4
		}
		if got := l.Instance(webKey, 3).Failures; got != want || l.Instance(webKey, 0).Failures != 2 {
			t.Errorf("level %d: %d failures in the second slot, want %d", level, got, want)
		}
		l.ok(testPlace("a1", 1, "n1", 1))
		l.ok(testReport("n1", AllocReport{ID: "a1", State: Failed, Reason: ReasonExited}))
		l.ok(order(1, 2, Attempts{1, retry.Used{Failures: 5, Exhausted: true}})) // a part of the first slot
		if in := l.Instance(webKey, 1); in.Failures != 2 || in.Exhausted {
			t.Errorf("level %d: the attempts of a part of a slot count again: %+v", level, in)
		}
	}
}

// TestAttemptsMove: what an instance has used of its retry policy stays in a new generation of the same version and
// run, and comes with the order from another region. A new version, a new run and a lower level begin again.
func TestAttemptsMove(t *testing.T) {
	policy := func(g *Group) {
		g.Retry = &retry.Policy{Attempts: 3, Rules: []retry.Rule{{Attempts: -1, OtherRegion: true}}}
	}
	first, second := batch(policy)(1), batch(policy)(2)
	used := retry.Used{Failures: 2, ByRule: []int32{2}, MemoryBytes: 7}
	order := func(generation int64, job *Job, run int64, a ...Attempts) Command {
		c := testOrder(0, 1, generation, job, func(s *Slot) { s.Run = run })
		c.ApplyOrders.Orders[0].Attempts = a
		return c
	}
	fail := func(l *log, id string) {
		l.t.Helper()
		l.ok(testPlace(id, 0, "n1", 1))
		l.ok(testReport("n1", AllocReport{ID: id, State: Failed, Reason: ReasonExited}))
	}
	for name, c := range map[string]struct {
		level    uint32
		next     Command
		failures int32
		memory   int64
		over     bool
	}{
		"another generation": {AttemptsLevel, order(20, first, 1), 1, 0, false},
		"another version":    {AttemptsLevel, order(20, second, 1), 0, 0, false},
		"another run":        {AttemptsLevel, order(20, first, 2), 0, 0, false},
		"a lower level":      {AttemptsLevel - 1, order(20, first, 1, Attempts{0, used}), 0, 0, false},
		"from elsewhere":     {AttemptsLevel, order(20, first, 1, Attempts{0, used}, Attempts{5, used}), 2, 7, false},
		"over elsewhere":     {AttemptsLevel, order(20, first, 1, Attempts{0, retry.Used{Failures: 4, Exhausted: true}}), 4, 0, true},
		"the same order":     {AttemptsLevel, order(10, first, 1, Attempts{0, used}), 1, 0, false},
	} {
		l := newLog(t)
		l.ok(testNode("n1"))
		l.ok(Command{SetLimits: &SetLimits{FeatureLevel: c.level}})
		l.ok(order(10, first, 1))
		fail(l, "a1")
		if in := l.Instance(webKey, 0); in.Failures != 1 || in.Retry.Leave != (c.level >= AttemptsLevel) {
			t.Errorf("%s: before: %+v", name, in)
		}
		l.ok(c.next)
		in := l.Instance(webKey, 0)
		if r := retry.UsedOf(in.Retry, in.Failures, in.Exhausted); r.Failures != c.failures || r.MemoryBytes != c.memory || r.Exhausted != c.over {
			t.Errorf("%s: %+v", name, r)
		}
		var records []Record
		for r := range l.Snapshot().Records() {
			records = append(records, r)
		}
		if s, err := Restore(seq(records)); err != nil || s.Snapshot().Hash() != l.Snapshot().Hash() {
			t.Errorf("%s: a restored snapshot differs: %v", name, err)
		}
		if name != "from elsewhere" {
			continue
		}
		fail(l, "a2")
		if in := l.Instance(webKey, 0); in.Failures != 3 || in.Exhausted || in.Retry.ByRule[0] != 3 {
			t.Errorf("the third failure: %+v", in)
		}
		fail(l, "a3")
		if in := l.Instance(webKey, 0); !in.Exhausted || in.Retry.Leave {
			t.Errorf("the fourth failure: %+v", in)
		}
	}
	l := newLog(t) // the first order that the region has of the slot
	l.ok(testNode("n1"))
	l.ok(Command{SetLimits: &SetLimits{FeatureLevel: AttemptsLevel}})
	l.ok(order(10, first, 1, Attempts{0, used}))
	if in := l.Instance(webKey, 0); in.Failures != 2 || in.Retry.Attempts != 3 || in.Version != 1 {
		t.Errorf("%+v", in)
	}
}

// TestLeave: an instance waits to be returned until some time after its back-off, and not once it was returned.
func TestLeave(t *testing.T) {
	job := batch(func(g *Group) {
		g.Retry = &retry.Policy{Attempts: 3, Rules: []retry.Rule{{Attempts: -1, OtherRegion: true, From: time.Minute, To: time.Minute}}}
	})(1)
	l := newLog(t)
	l.ok(testNode("n1"))
	l.ok(Command{SetLimits: &SetLimits{FeatureLevel: AttemptsLevel}})
	l.ok(testOrder(0, 2, 10, job, nil))
	l.ok(testPlace("a1", 0, "n1", 1))
	l.ok(testReport("n1", AllocReport{ID: "a1", State: Failed, Reason: ReasonExited}))
	in := l.Instance(webKey, 0)
	until := in.NotBeforeUnixNano + int64(LeaveFor)
	if got := in.LeavesUntil(until - 1); got != until {
		t.Errorf("it waits until %d, want %d", got, until)
	}
	if got := in.LeavesUntil(until); got != 0 {
		t.Errorf("it waits until %d after that", got)
	}
	l.ok(Command{AnswerSlots: &AnswerSlots{Answers: []Answer{{Namespace: "default", Job: "api", Group: "web", From: 0, To: 1, Generation: 10, State: SlotReturned, Reason: ReasonOtherRegion}}}})
	if in := l.Instance(webKey, 0); in.Retry.Leave || in.Failures != 1 {
		t.Errorf("after the return: %+v", in)
	}
}
