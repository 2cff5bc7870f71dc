package global

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestDeclinedWorkBacksOff: by the region's count the work fits, but every agent of the only region
// declines it or lacks a capability for it. Such work is offered less and less often. A new version
// is offered at once.
func TestDeclinedWorkBacksOff(t *testing.T) {
	for _, why := range []nusav1.Reason{nusav1.Reason_REASON_DECLINED, nusav1.Reason_REASON_CAPABILITY_MISSING, nusav1.Reason_REASON_NOT_ALLOWED} {
		t.Run(why.String(), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { declinedFor(t, why) }) })
	}
}

func declinedFor(t *testing.T, why nusav1.Reason) {
	f := newFederation()
	start := time.Now()
	s := f.start(t, "g1", func(c *Config) {
		c.Clock = func() time.Duration { return time.Since(start) }
		c.ReportInterval = 0 // the default, 5 s
	})
	var offers atomic.Int32
	r := s.joined("alpha", func(r *fakeRegion) {
		r.script = func(s *nusav1.Slot) []*nusav1.SlotAnswer {
			offers.Add(1)
			a := answerTo(s, nusav1.SlotState_SLOT_STATE_RETURNED)
			a.Reason = why
			return []*nusav1.SlotAnswer{a}
		}
	})
	s.submit(testJob("api", 1))
	pass := func(d time.Duration) {
		for id := range uint64(d / (5 * time.Second)) {
			time.Sleep(5 * time.Second)
			r.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Lease{Lease: &nusav1.LeaseRequest{Id: id + 1}}})
			r.mu.Lock()
			rep := r.report()
			r.mu.Unlock()
			r.send(rep)
		}
		synctest.Wait()
	}
	pass(time.Hour)
	// The waits are 5, 10, 20 ... 160 s, then 5 min each: about 6 + 11 offers, while
	// 720 reports came.
	if n := offers.Load(); n < 12 || n > 20 {
		t.Errorf("offered %d times in an hour", n)
	}
	before := offers.Load()
	s.submit(testJob("api", 1, func(j *nusav1.JobSpec) { j.Priority = proto.Int32(60) }))
	pass(10 * time.Second)
	if n := offers.Load() - before; n < 1 || n > 3 {
		t.Errorf("the new version was offered %d times in 10 s", n)
	}
	r.leave()
	s.stop()
}

// TestSubscriptionsHaveCapabilities: regions count with the capabilities that
// drivers need, so that a region without them gets no offer.
func TestSubscriptionsHaveCapabilities(t *testing.T) {
	s := newFederation().start(t, "g1")
	r := s.joined("alpha")
	s.submit(testJob("api", 1, func(j *nusav1.JobSpec) {
		j.Groups["web"].Tasks["server"].Check = &nusav1.Check{Kind: &nusav1.Check_Command{Command: &nusav1.CommandCheck{Command: []string{"/bin/true"}}}}
		j.Groups["web"].Tasks["server"].Secrets = []string{"key"}
	}))
	r.wait("the capabilities", func() bool {
		return slices.ContainsFunc(r.shapes.GetAsks(), func(a *nusav1.ShapeSubscription) bool {
			return slices.Equal(a.GetCapabilities(), []string{"process/exec", "process/secrets"})
		})
	})
}

// TestManyWaitingJobs: more jobs than one plan takes, which fit nowhere and are more
// urgent than another job, do not keep that job from being placed.
func TestManyWaitingJobs(t *testing.T) {
	s := newFederation().start(t, "g1")
	r := s.joined("alpha")
	const jobs = 2048 + 10 // more than one plan takes
	many, err := s.jobs().SubmitMany(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		for range jobs {
			if resp, err := many.Recv(); err != nil || resp.GetCode() != 0 {
				answered <- fmt.Errorf("%v, %w", resp, err)
				return
			}
		}
		answered <- nil
	}()
	for i := range jobs {
		spec := testJob(fmt.Sprintf("waits-%d", i), 1, func(j *nusav1.JobSpec) {
			j.Priority = proto.Int32(90)
			j.Regions = &nusav1.RegionsSpec{Allow: []*nusav1.RegionSelector{{Labels: map[string]string{"is": "nowhere"}}}}
		})
		if err := many.Send(&nusav1.SubmitRequest{Spec: spec}); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	if err := many.CloseSend(); err != nil {
		t.Fatal(err)
	}
	s.submit(testJob("api", 1))
	r.waitSlot("default/api/web/0", accepted)
}
