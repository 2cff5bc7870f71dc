package state

import (
	"math"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/compact"
	"github.com/nusa-scheduler/nusa/global/region"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestCanariesBeginWithTheSubmit: the transaction of a submit stores which instances are canaries. The
// next version takes over their indices, and one that takes the change back has none.
func TestCanariesBeginWithTheSubmit(t *testing.T) {
	w := newVersionWorld(t)
	w.update = &nusav1.Update{Canary: 2}
	submit := func(text string) error {
		t.Helper()
		_, err := w.submit(text, "")
		return err
	}
	want := func(what string, count, first int) {
		t.Helper()
		if g := w.st.Jobs[w.k].Place().Group("web"); g.Count != count || g.CanaryFrom != first {
			t.Errorf("%s: %d instances, canaries from %d, want %d and %d", what, g.Count, g.CanaryFrom, count, first)
		}
	}
	w.st.GlobalLevel = CanaryLevel - 1
	if err := submit("one"); err != nil {
		t.Fatal(err)
	}
	want("the first version", 1, 0)
	if err := submit("two"); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "feature level 5") {
		t.Errorf("a server of an earlier level: %v", err)
	}
	w.st.GlobalLevel = CanaryLevel
	for _, text := range []string{"two", "three"} {
		if err := submit(text); err != nil {
			t.Fatal(err)
		}
		want(text, 3, 1)
		if hold := w.st.Jobs[w.k].Place().RolloutHold; !strings.Contains(hold, "waits until its canaries are promoted") {
			t.Errorf("%s: the other instances wait because %q", text, hold)
		}
	}
	w.st, w.commit = loadedState(t, w.store)
	w.st.GlobalLevel = CanaryLevel
	want("after an election", 3, 1)
	if err := submit("one"); err != nil {
		t.Fatal(err)
	}
	want("the change is taken back", 1, 0)
	if err := submit("four"); err != nil {
		t.Fatal(err)
	}
	put := func(change func(*nusav1.RolloutRecord)) {
		t.Helper()
		w.do(func(tx *Tx) error {
			next := &nusav1.RolloutRecord{Run: tx.Rollout(w.k).GetRun(), Version: tx.Rollout(w.k).GetVersion(), Canaries: tx.Rollout(w.k).GetCanaries()}
			change(next)
			return tx.PutRollout(w.k, next)
		})
	}
	put(func(r *nusav1.RolloutRecord) { r.Promoted = true })
	want("promoted", 3, 0)
	put(func(r *nusav1.RolloutRecord) { r.Failed = "x" })
	want("failed", 1, 0)
	put(func(r *nusav1.RolloutRecord) { r.Done = true })
	want("done", 1, 0)
}

// TestDoneVersionIsKeptWhileItsCanariesStop: a version whose rollout is done is the one to go back to, although the next one
// comes before its canaries have stopped.
func TestDoneVersionIsKeptWhileItsCanariesStop(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*nusav1.RolloutRecord)
		want   int64
	}{
		"it is done":    {func(r *nusav1.RolloutRecord) { r.Promoted, r.Done = true, true }, 2},
		"it goes on":    {func(r *nusav1.RolloutRecord) { r.Promoted = true }, 1},
		"it has failed": {func(r *nusav1.RolloutRecord) { r.Promoted, r.Failed = true, "x" }, 1},
	} {
		w := newCanaryWorld(t)
		for _, text := range []string{"one", "two", "three"} {
			if _, err := w.submit(text, ""); err != nil {
				t.Fatal(err)
			}
			w.do(func(tx *Tx) error {
				rec, rev := tx.Job(w.k)
				switch text {
				case "one":
					return tx.PutHealthy(w.k, rec, rec.Run(rev))
				case "two":
					next := proto.CloneOf(tx.Rollout(w.k))
					c.change(next)
					return tx.PutRollout(w.k, next)
				}
				return nil
			})
		}
		if got := w.st.Jobs[w.k].Healthy.Version(); got != c.want {
			t.Errorf("%s: version %d is kept, want %d", name, got, c.want)
		}
	}
}

// newCanaryWorld has two regions, and its job begins each version with one canary.
func newCanaryWorld(t *testing.T) *versionWorld {
	w := newVersionWorld(t)
	w.update = &nusav1.Update{Canary: 1}
	w.st.GlobalLevel = CanaryLevel
	w.do(putRegion("jakarta"))
	w.do(putRegion("seoul"))
	return w
}

// TestMovedInstanceKeepsTheStableVersion: while canaries wait, the order for an instance that moves has the
// spec of the version that ran before, also after an election.
func TestMovedInstanceKeepsTheStableVersion(t *testing.T) {
	w := newCanaryWorld(t)
	for _, text := range []string{"one", "two"} {
		if _, err := w.submit(text, ""); err != nil {
			t.Fatal(err)
		}
		if text == "one" {
			w.do(func(tx *Tx) error {
				rec, rev := tx.Job(w.k)
				return tx.PutHealthy(w.k, rec, rec.Run(rev))
			})
		}
	}
	slot := region.Slot{Namespace: w.k.Namespace, Job: w.k.Name, Group: "web", To: 1, Region: "jakarta", JobVersion: 1, Run: w.st.Jobs[w.k].Record.Run(0),
		State: region.Accepted, Desired: region.DesiredRun, Generation: 7}
	for _, at := range []string{"jakarta", "seoul"} {
		slot.Region = at
		w.do(func(tx *Tx) error { return tx.ChangeSlots([]region.Change{{Slot: slot}}) })
		for _, when := range []string{"before", "after"} {
			held, _ := w.st.Regions[at].Orders.Get(slot.WireKey())
			spec := &nusav1.JobSpec{}
			if err := proto.Unmarshal(SlotOrder(w.st, at, slot.WireKey(), held, math.MaxUint64).GetSpec(), spec); err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, task := range spec.GetGroups()["web"].GetTasks() {
				got = task.GetEnv()["V"]
			}
			if got != "one" {
				t.Errorf("%s gets the spec with %q %s an election", at, got, when)
			}
			stable := w.st.Jobs[w.k].ToPlace(Sight{}).Stable
			if stable == nil || stable.Version != 1 {
				t.Errorf("the stable version is %v %s an election", stable, when)
			}
			if when == "before" {
				w.st, w.commit = loadedState(t, w.store)
				w.st.GlobalLevel = CanaryLevel
			}
		}
		slot, _ = w.st.Jobs[w.k].Slots.Find(&slot)
	}
}

// TestOnlyAnOverrideOverACanaryHoldsItsRollout: a region that holds other instances does not keep healthy canaries
// from their promotion, nor a canary elsewhere from its deadline.
func TestOnlyAnOverrideOverACanaryHoldsItsRollout(t *testing.T) {
	w := newCanaryWorld(t)
	for _, text := range []string{"one", "two"} {
		if _, err := w.submit(text, ""); err != nil {
			t.Fatal(err)
		}
	}
	j := w.st.Jobs[w.k]
	run := j.Record.Run(j.Revision)
	slot := region.Slot{Namespace: w.k.Namespace, Job: w.k.Name, Group: "web", To: 1, Region: "jakarta", JobVersion: 1, Run: run, State: region.Accepted, Desired: region.DesiredRun, Generation: 7}
	canary := slot
	canary.From, canary.To, canary.Region, canary.JobVersion = 1, 2, "seoul", 2
	w.do(func(tx *Tx) error { return tx.ChangeSlots([]region.Change{{Slot: slot}, {Slot: canary}}) })
	for _, c := range []struct {
		name, holds string
		running     int32
		want        string
	}{
		{"nothing is held, the canary starts", "", 0, ""},
		{"the canary is held", "seoul", 0, "an override of region seoul may keep a canary stopped"},
		{"another instance is held, the canary starts", "jakarta", 0, ""},
		{"another instance is held, the canary is healthy", "jakarta", 1, ""},
		{"the region of a healthy canary holds others", "seoul", 1, ""},
	} {
		for _, name := range []string{"jakarta", "seoul"} {
			sum := &nusav1.JobSummary{Namespace: w.k.Namespace, Job: w.k.Name, Version: slot.JobVersion, Run: run, Groups: map[string]*nusav1.InstanceCounts{"web": {}}}
			if name == "seoul" {
				sum.Version, sum.Groups["web"].Running = 2, c.running
			}
			if name == c.holds {
				sum.Groups["web"].Held, sum.Override = 1, &nusav1.Override{Region: name, Held: 1}
			}
			w.st.ApplySummary(w.st.Regions[name], sum, compact.Encode(sum))
		}
		if got := j.DeadlinesHeld(Sight{}); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestRetryingCanaries: how many canaries wait in their back-off, by what their region reports. A back-off that may be
// that of an instance of the earlier version does not count.
func TestRetryingCanaries(t *testing.T) {
	w := newCanaryWorld(t)
	for _, text := range []string{"one", "two"} {
		if _, err := w.submit(text, ""); err != nil {
			t.Fatal(err)
		}
	}
	j := w.st.Jobs[w.k]
	run := j.Record.Run(j.Revision)
	slot := region.Slot{Namespace: w.k.Namespace, Job: w.k.Name, Group: "web", To: 1, Region: "seoul", JobVersion: 1, Run: run, State: region.Accepted, Desired: region.DesiredRun, Generation: 7}
	canary := slot
	canary.From, canary.To, canary.JobVersion = 1, 2, 2
	w.do(func(tx *Tx) error { return tx.ChangeSlots([]region.Change{{Slot: slot}, {Slot: canary}}) })
	type newer = nusav1.NewerInstances
	for _, c := range []struct {
		name             string
		version          int64
		running, pending int32
		newer            *newer
		backoff          int32
		want             int32
	}{
		{"the region does not know the version", 1, 1, 0, nil, 0, 0},
		{"the canary waits for a node", 1, 1, 1, &newer{Version: 2}, 0, 0},
		{"the canary is in its back-off", 1, 1, 1, &newer{Version: 2}, 1, 1},
		{"the canary waits for a node, or the other instance does", 1, 0, 2, &newer{Version: 2}, 1, 0},
		{"both are in a back-off", 1, 0, 2, &newer{Version: 2}, 2, 1},
		{"the canary starts, the other one is in its back-off", 1, 0, 1, &newer{Version: 2, Starting: 1}, 1, 0},
		{"a region of an earlier version of Nusa", 1, 1, 1, nil, 1, 0},
		{"the region has nothing else", 2, 0, 1, nil, 1, 1},
	} {
		sum := &nusav1.JobSummary{Namespace: w.k.Namespace, Job: w.k.Name, Version: c.version, Run: run,
			Groups:  map[string]*nusav1.InstanceCounts{"web": {Running: c.running, Pending: c.pending}},
			Reasons: map[string]*nusav1.GroupReasons{"web": {}}}
		if c.newer != nil {
			sum.Newer = map[string]*newer{"web": c.newer}
		}
		if c.backoff > 0 {
			sum.Reasons["web"].Reasons = []*nusav1.CountedReason{{Reason: nusav1.Reason_REASON_BACKOFF, Count: c.backoff, What: "instance", Message: "last failure: task main exited with code 3"}}
		}
		w.st.ApplySummary(w.st.Regions["seoul"], sum, compact.Encode(sum))
		if got := j.RetryingCanaries(j.PresentRollout(), "web", "", Sight{}); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
		shown := j.Status(Sight{}).GetGroups()["web"].GetPending()
		shows := len(shown) == 1 && shown[0].GetCount() == c.want && shown[0].GetMessage() == "seoul: last failure: task main exited with code 3"
		if c.version == 1 && (c.want > 0) != shows {
			t.Errorf("%s: the status says %v", c.name, shown)
		}
	}
	if got := j.Retrying("web", 2, map[string]*nusav1.InstanceCounts{"seoul": {Pending: 1}}); got != 1 {
		t.Errorf("after the rollout: %d retry", got)
	}
	if got := j.Retrying("web", 3, map[string]*nusav1.InstanceCounts{"seoul": {Pending: 1}}); got != 0 {
		t.Errorf("%d retry of a version that the region has not reported", got)
	}
	for auto, want := range map[bool]string{true: "version 2 waits until its canaries are healthy", false: "version 2 waits until its canaries are promoted"} {
		if got := withCanaries(j.stored(), j.PresentRollout(), auto).RolloutHold; got != want {
			t.Errorf("auto_promote %v: %q", auto, got)
		}
	}
}
