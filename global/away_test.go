package global

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestAwayIsTakenBackOnceThereIsRoom elsewhere: what a region says may still run
// on a lost node stays its own until then, is revoked and not offered twice, and
// is believed only while it is said in the present session.
func TestAwayIsTakenBackOnceThereIsRoom(t *testing.T) {
	f := newFederation()
	s := f.start(t, "g1")
	alpha := s.joined("alpha")
	s.submit(testJob("api", 2))
	slot := alpha.waitSlot("default/api/web/0", accepted)
	beta := s.joined("beta", func(r *fakeRegion) { r.fits = 0 })
	reports := func(r *fakeRegion, fits int32) {
		r.mu.Lock()
		r.fits = fits
		rep := r.report()
		r.mu.Unlock()
		r.send(rep)
	}
	says := func(sequence uint64, generation int64) {
		alpha.summarize(sequence == 1, sequence, &nusav1.JobSummary{
			Namespace: "default", Job: "api", Incarnation: 1, Index: sequence, Version: 1, Run: slot.GetRun(),
			Groups: map[string]*nusav1.InstanceCounts{"web": {Lost: 1, Running: 1}},
			Reasons: map[string]*nusav1.GroupReasons{"web": {Reasons: []*nusav1.CountedReason{
				{Reason: nusav1.Reason_REASON_NODE_LOST, Count: 1, What: "instance", Message: "n1 has been silent for 5m and may still run it (details)"},
			}}},
			Disconnected: []*nusav1.DisconnectedInstances{{Group: "web", From: 1, To: 2, Generation: generation, Node: "n1"}},
		})
	}
	says(1, slot.GetGeneration())
	reports(alpha, 0)
	reports(beta, 0)
	s.waitJob("api", "what people are told", func(j *nusav1.Job) bool {
		g := j.GetStatus().GetGroups()["web"]
		return j.GetStatus().GetState() == nusav1.JobState_JOB_STATE_PENDING && g.GetUnowned() == 0 && g.GetCounts().GetLost() == 1 &&
			strings.HasSuffix(j.GetStatus().GetMessage(), "alpha: n1 has been silent for 5m and may still run it (details)")
	})

	// A new session: the node may be back, nothing is taken until it is said again.
	alpha.leave()
	alpha = s.joined("alpha", func(r *fakeRegion) { r.fits = 0 })
	alpha.waitSlot("default/api/web/0", accepted)
	reports(beta, 5)
	s.submit(testJob("other", 1)) // a plan later
	beta.waitSlot("default/other/web/0", accepted)
	alpha.waitSlot("default/api/web/0", func(s *nusav1.Slot) bool {
		return s.GetDesired() == nusav1.SlotDesired_SLOT_DESIRED_RUN && s.GetTo() == 2
	})
	says(2, slot.GetGeneration()+1) // of a slot that is no more
	says(3, slot.GetGeneration())
	back := alpha.waitSlot("default/api/web/1", func(s *nusav1.Slot) bool { return s.GetDesired() == nusav1.SlotDesired_SLOT_DESIRED_REVOKE })
	beta.mu.Lock()
	if beta.slots["default/api/web/1"] != nil {
		t.Error("beta has it, and alpha has not confirmed")
	}
	beta.mu.Unlock()
	// Alpha hears of it again, and keeps it; then it is away anew.
	if !back.GetUnlessHeard() {
		t.Error("it is to be given up although its node may be back")
	}
	alpha.answer(answerTo(back, nusav1.SlotState_SLOT_STATE_KEPT))
	kept := alpha.waitSlot("default/api/web/1", func(s *nusav1.Slot) bool {
		return s.GetDesired() == nusav1.SlotDesired_SLOT_DESIRED_RUN && s.GetGeneration() > back.GetGeneration()
	})
	alpha.answer(answerTo(back, nusav1.SlotState_SLOT_STATE_REVOKED)) // of before
	says(4, kept.GetGeneration())
	back = alpha.waitSlot("default/api/web/1", func(s *nusav1.Slot) bool {
		return s.GetDesired() == nusav1.SlotDesired_SLOT_DESIRED_REVOKE && s.GetGeneration() == kept.GetGeneration()
	})
	alpha.answer(answerTo(back, nusav1.SlotState_SLOT_STATE_REVOKED))
	moved := beta.waitSlot("default/api/web/1", accepted)
	if moved.GetGeneration() <= slot.GetGeneration() {
		t.Errorf("generation %d after %d", moved.GetGeneration(), slot.GetGeneration())
	}
	alpha.leave()
	beta.leave()
	s.stop()
}

// TestAwayIsNews only when a region says something else than before: a summary
// that repeats it is no reason to plan again.
func TestAwayIsNews(t *testing.T) {
	st := &State{Pending: map[JobKey]struct{}{}}
	r, k := &Region{}, JobKey{"default", "api"}
	one := &nusav1.DisconnectedInstances{Group: "web", From: 0, To: 1, Generation: 7, Node: "n1"}
	two := &nusav1.DisconnectedInstances{Group: "web", From: 1, To: 2, Generation: 7, Node: "n2"}
	for i, step := range []struct {
		away []*nusav1.DisconnectedInstances
		news bool
	}{
		{nil, false},
		{[]*nusav1.DisconnectedInstances{one}, true},
		{[]*nusav1.DisconnectedInstances{proto.CloneOf(one)}, false},
		{[]*nusav1.DisconnectedInstances{one, two}, true},
		{[]*nusav1.DisconnectedInstances{two}, true},
		{nil, false}, // the node is back
		{[]*nusav1.DisconnectedInstances{two}, true},
	} {
		if got := st.setDisconnected(r, k, &nusav1.JobSummary{Disconnected: step.away}); got != step.news || len(r.Disconnected[k]) != len(step.away) {
			t.Errorf("step %d: news %t, want %t; held %v", i, got, step.news, r.Disconnected[k])
		}
	}
}

// TestWhatWasGivenUpComesFirst for a while: only what was revoked, the latest
// word of each index, bounded.
func TestWhatWasGivenUpComesFirst(t *testing.T) {
	now := time.Duration(0)
	st := New("e", func() time.Duration { return now }, time.Second)
	key := JobKey{"default", "api"}
	j := &Job{Spec: place.Job{Groups: []place.Group{{Name: "web"}, {Name: "db"}}}}
	st.Jobs[key] = j
	says := func(name, from string, state region.SlotState, a, b int) {
		st.RecordReleased(from, region.Answer{Namespace: "default", Job: name, Group: "web", From: a, To: b, State: state})
	}
	expect := func(want ...place.Released) {
		t.Helper()
		groups := j.Groups(now)
		if !slices.Equal(groups[0].Released, want) || groups[1].Released != nil {
			t.Errorf("%+v, want %+v", groups, want)
		}
		if j.Spec.Groups[0].Released != nil {
			t.Error("the job's own record was written to")
		}
	}
	says("nosuch", "a", region.Revoked, 0, 1)
	says("api", "a", region.Returned, 0, 1)
	expect()
	says("api", "a", region.Revoked, 0, 2)
	now += releasedFor / 2
	says("api", "b", region.Revoked, 2, 3)
	expect(place.Released{Region: "a", From: 0, To: 2}, place.Released{Region: "b", From: 2, To: 3})
	says("api", "b", region.Revoked, 2, 3) // said twice
	now += releasedFor / 2
	expect(place.Released{Region: "b", From: 2, To: 3})
	now += releasedFor
	expect()
	for i := range MaxDisconnected + 2 {
		says("api", "a", region.Revoked, i, i+1)
	}
	if got := j.Groups(now)[0].Released; len(got) != MaxDisconnected || got[0].From != 2 || len(j.Released) != MaxDisconnected {
		t.Errorf("%d ranges from %v, %d remembered", len(got), got[0], len(j.Released))
	}
}
