package global

import (
	"strings"
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestDisconnectedInstancesAreRevokedWhenThereIsRoom: instances that may still run
// on a lost node belong to their region until another region has room. Then they
// are revoked, and they are not offered twice. Only reports of the present session
// count.
func TestDisconnectedInstancesAreRevokedWhenThereIsRoom(t *testing.T) {
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
	s.waitJob("api", "pending with the reason", func(j *nusav1.Job) bool {
		g := j.GetStatus().GetGroups()["web"]
		return j.GetStatus().GetState() == nusav1.JobState_JOB_STATE_PENDING && g.GetUnowned() == 0 && g.GetCounts().GetLost() == 1 &&
			strings.HasSuffix(j.GetStatus().GetMessage(), "alpha: n1 has been silent for 5m and may still run it (details)")
	})

	// A new session: the node may be back, so nothing is revoked before the region
	// reports the instances again.
	alpha.leave()
	alpha = s.joined("alpha", func(r *fakeRegion) { r.fits = 0 })
	alpha.waitSlot("default/api/web/0", accepted)
	reports(beta, 5)
	s.submit(testJob("other", 1)) // the region waits for another plan
	beta.waitSlot("default/other/web/0", accepted)
	alpha.waitSlot("default/api/web/0", func(s *nusav1.Slot) bool {
		return s.GetDesired() == nusav1.SlotDesired_SLOT_DESIRED_RUN && s.GetTo() == 2
	})
	says(2, slot.GetGeneration()+1) // the generation belongs to no slot
	says(3, slot.GetGeneration())
	back := alpha.waitSlot("default/api/web/1", func(s *nusav1.Slot) bool { return s.GetDesired() == nusav1.SlotDesired_SLOT_DESIRED_REVOKE })
	beta.mu.Lock()
	if beta.slots["default/api/web/1"] != nil {
		t.Error("beta owns the instance before alpha has confirmed")
	}
	beta.mu.Unlock()
	// Alpha's node comes back, and alpha keeps the instance. Then the node is lost
	// again.
	if !back.GetUnlessHeard() {
		t.Error("the revocation does not depend on the node being lost")
	}
	alpha.answer(answerTo(back, nusav1.SlotState_SLOT_STATE_KEPT))
	kept := alpha.waitSlot("default/api/web/1", func(s *nusav1.Slot) bool {
		return s.GetDesired() == nusav1.SlotDesired_SLOT_DESIRED_RUN && s.GetGeneration() > back.GetGeneration()
	})
	alpha.answer(answerTo(back, nusav1.SlotState_SLOT_STATE_REVOKED)) // an answer to the first revocation
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
