package global

import (
	"strings"
	"testing"

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
