package deadletters

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/deadletters/plan"
	"github.com/nusa-scheduler/nusa/global/room"
	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestRemovedRegionIsForgotten: after a region is removed, nobody asks it, and no result waits for it.
func TestRemovedRegionIsForgotten(t *testing.T) {
	st := state.New(state.Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	st.Regions["here"] = &state.Region{Name: "here"}
	k, now := state.JobKey{Namespace: "default", Name: "j"}, time.Now()
	b := &Book{
		st: st, asking: map[string]bool{}, retries: map[string]retry{"gone": {time.Second, now}},
		wanted: map[string]map[state.JobKey]*ask{"here": {k: {mark{}, now}}, "gone": {k: {mark{}, now}}},
	}
	if got := b.due(now); len(got) != 1 || got[0] != "here" {
		t.Errorf("the regions to ask are %v, want only here", got)
	}
	if b.wanted["gone"] != nil || len(b.retries) != 0 {
		t.Errorf("the removed region is kept: %v, %v", b.wanted["gone"], b.retries)
	}
}

// TestCallsAreBounded: while as many regions are asked as may be, nothing is due, so the loop waits.
func TestCallsAreBounded(t *testing.T) {
	st := state.New(state.Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	k, now := state.JobKey{Namespace: "default", Name: "j"}, time.Now()
	b := &Book{st: st, asking: map[string]bool{}, wanted: map[string]map[state.JobKey]*ask{}}
	for i := range 3 * callsAtOnce {
		name := fmt.Sprintf("r%d", i)
		st.Regions[name] = &state.Region{Name: name}
		b.wanted[name] = map[state.JobKey]*ask{k: {mark{}, now}}
	}
	if n := len(b.due(now)); n != callsAtOnce {
		t.Errorf("%d regions are asked at once, want %d", n, callsAtOnce)
	}
	if n := len(b.due(now)); n != 0 {
		t.Errorf("%d further regions are asked while %d are", n, callsAtOnce)
	}
	if wait := b.untilNext(now, now.Add(tidyEvery)); wait != tidyEvery {
		t.Errorf("the loop runs again after %s, although nothing is due", wait)
	}
	for region := range b.asking {
		b.asked(region)
		break
	}
	if n := len(b.due(now)); n != 1 {
		t.Errorf("%d regions are asked after one of %d calls has ended, want 1", n, callsAtOnce)
	}
}

// TestManyRanges: every second instance of a large array has failed. The calls end, and a smaller job of the same
// region gets all its dead letters.
func TestManyRanges(t *testing.T) {
	st := state.New(state.Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	b := New(Config{Term: api.NewTerm(api.TermConfig{State: st, Log: slog.New(slog.DiscardHandler)})})
	large, small := state.JobKey{Namespace: "default", Name: "large"}, state.JobKey{Namespace: "default", Name: "small"}
	failed := map[state.JobKey]int{large: 50_000, small: 300}
	b.wanted["r"] = map[state.JobKey]*ask{large: {mark{failed: 1}, time.Now()}, small: {mark{failed: 1}, time.Now()}}
	left := map[state.JobKey]int{}
	calls := 0
	for ; len(b.wanted["r"]) > 0; calls++ {
		if calls == 200 {
			t.Fatal("the calls do not end")
		}
		asked, req := b.request("r")
		resp := &nusav1.CollectResponse{}
		for _, j := range req.GetJobs() {
			k := state.JobKey{Namespace: j.GetNamespace(), Name: j.GetName()}
			if len(j.GetCollected()) > mostSpans {
				t.Fatalf("a call names %d ranges", len(j.GetCollected()))
			}
			known := map[int32]bool{}
			for _, s := range j.GetCollected() {
				for i := s.GetFrom(); i < s.GetTo(); i++ {
					known[i] = true
				}
			}
			for n := range failed[k] {
				if i := int32(2 * n); !known[i] {
					if len(resp.GetInstances()) == mostInstances {
						resp.More = true
						break
					}
					resp.Instances = append(resp.Instances, &nusav1.DeadLetter{Namespace: k.Namespace, Job: k.Name, Group: "g", Index: i, Run: 1, JobVersion: 1})
				}
			}
		}
		b.noteAll("r", asked, resp, nil)
		for k, all := range b.pending {
			spans := b.sourceAt(sourceKey{k, 1, 1}).collected
			for _, l := range all {
				spans = plan.Add(spans, l.GetGroup(), l.GetIndex())
			}
			left[k] += len(all)
			b.applySource(sourceKey{k, 1, 1}.String(), &nusav1.DeadLetterSource{Collected: spansOf(sourceKey{k, 1, 1}, spans)})
			b.prune([]state.JobKey{k})
		}
	}
	if left[small] != failed[small] || left[large] < mostRanges || left[large] > mostRanges+mostInstances {
		t.Errorf("%d and %d dead letters after %d calls, want %d and about %d", left[small], left[large], calls, failed[small], mostRanges)
	}
}

// TestAnAttemptThatIsTriedAgainLeavesNoDeadLetter: only the last attempt of a step is asked about. While the runs of
// workflows are not read, nobody is asked, and the result of the job waits.
func TestAnAttemptThatIsTriedAgainLeavesNoDeadLetter(t *testing.T) {
	st := state.New(state.Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	b := New(Config{Term: api.NewTerm(api.TermConfig{State: st, Log: slog.New(slog.DiscardHandler)}), WakePlacer: func() {}})
	last, earlier := state.JobKey{Namespace: "default", Name: "w.1--a--r2"}, state.JobKey{Namespace: "default", Name: "w.1--a"}
	read := false
	st.Letters.Retried = func(k state.JobKey) (bool, bool) { return k == earlier, read }
	b.later = state.JobSet{last: {}, earlier: {}}
	if got := b.failed(); len(got) != 0 || !b.awaited(&state.Job{Key: last}) || !b.awaited(&state.Job{Key: earlier}) {
		t.Errorf("before the runs are read, regions are asked about %v", got)
	}
	read = true
	if _, asked := b.failed()[last]; !asked || len(b.later) != 0 || b.awaited(&state.Job{Key: earlier}) {
		t.Errorf("asked about the last attempt: %v, left: %v", asked, b.later)
	}
}

// TestReruns: open dead letters of steps that a retry of their workflow runs again, a bounded number together.
func TestReruns(t *testing.T) {
	st := state.New(state.Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	b := New(Config{Term: api.NewTerm(api.TermConfig{State: st, Log: slog.New(slog.DiscardHandler)})})
	if got := reruns(b); got != nil {
		t.Errorf("without workflows: %v", got)
	}
	asked := 0
	st.Letters.RunAgain = func(k state.JobKey) (state.JobKey, bool) {
		asked++
		return state.JobKey{Namespace: k.Namespace, Name: k.Name + "--r2"}, k.Name != "w.1--b"
	}
	const open, redriven = nusav1.DeadLetterState_DEAD_LETTER_STATE_OPEN, nusav1.DeadLetterState_DEAD_LETTER_STATE_REDRIVEN
	add := func(id, job string, state nusav1.DeadLetterState) {
		b.applyLetter(id, &nusav1.DeadLetterRecord{DeadLetter: &nusav1.DeadLetter{Id: id, Namespace: "default", Job: job, Group: "g", State: state}})
	}
	add("1", "w.1--a", open)
	add("2", "w.1--b", open)
	add("3", "w.1--a", redriven)
	add("4", "other", open)
	if got := fmt.Sprint(reruns(b)); got != "[{1 w.1--a--r2}]" || asked != 2 {
		t.Errorf("%s after %d questions", got, asked)
	}
	st.SetUsage(room.Usage{NoSpace: true})
	if got := reruns(b); got != nil {
		t.Errorf("in a full store: %v", got)
	}
	st.SetUsage(room.Usage{})
	for i := range 3 * together {
		add(fmt.Sprintf("5%03d", i), "w.1--array", open)
	}
	if got := reruns(b); len(got) != together || asked != 5 {
		t.Errorf("%d at once after %d questions", len(got), asked)
	}
}
