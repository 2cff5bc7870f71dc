package global

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestLoseRegion: an operator states that nothing runs in a region any more.
func TestLoseRegion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCutter(t, "jakarta", "seoul", "tokyo")
		regions := nusav1.NewRegionsClient(c.s.conn)
		c.s.submit(testJob("api", 6, inJakarta(time.Hour), func(j *nusav1.JobSpec) {
			j.Groups["web"].Disconnect.Region.Replace = proto.Bool(false)
		}))
		c.s.submit(testJob("old", 3, inJakarta(time.Hour)))
		c.pass(5 * time.Second)
		if got := c.owners("api"); got["jakarta"] != "[0,6)" {
			t.Fatalf("before: %v", got)
		}
		for _, bad := range []struct {
			req  *nusav1.LoseRegionRequest
			code codes.Code
			says string
		}{
			{&nusav1.LoseRegionRequest{Name: "mars", Confirm: "mars"}, codes.NotFound, "mars"},
			{&nusav1.LoseRegionRequest{Name: "jakarta"}, codes.InvalidArgument, "must be the name of the region"},
			{&nusav1.LoseRegionRequest{Name: "jakarta", Confirm: "jakarta", Why: strings.Repeat("x", 257)}, codes.InvalidArgument, "at most 256"},
			{&nusav1.LoseRegionRequest{Name: "jakarta", Confirm: "jakarta"}, codes.FailedPrecondition, "is connected"},
		} {
			if _, err := regions.Lose(t.Context(), bad.req); status.Code(err) != bad.code || !strings.Contains(err.Error(), bad.says) {
				t.Errorf("%v: %v", bad.req, err)
			}
		}
		c.regions["jakarta"].leave()
		delete(c.regions, "jakarta")
		c.pass(time.Minute)
		if got := c.owners("api"); got["jakarta"] != "[0,6)" {
			t.Fatalf("without a statement: %v", got)
		}
		if _, err := c.s.jobs().Stop(t.Context(), &nusav1.StopJobRequest{Job: &nusav1.JobRef{Name: "old"}}); err != nil {
			t.Fatal(err)
		}
		c.pass(2 * time.Second)
		if got := c.owners("old"); got["jakarta"] != "[0,3)" {
			t.Errorf("a stopped job waits for the region: %v", got)
		}
		r, err := regions.Lose(t.Context(), &nusav1.LoseRegionRequest{Name: "jakarta", Confirm: "jakarta", By: "ayu", Why: "burnt down"})
		if err != nil || r.GetLost().GetBy() != "ayu" || r.GetLost().GetWhy() != "burnt down" || !r.GetLost().GetNothingRuns() || r.GetFence() != 1 || len(r.GetLostAt()) > 0 {
			t.Fatalf("%v, %v", r, err)
		}
		c.pass(2 * time.Second)
		if got := c.owners("api"); got["jakarta"] != "" {
			t.Errorf("after: %v", got)
		}
		if got := c.owners("old"); len(got) > 0 {
			t.Errorf("the stopped job: %v", got)
		}
		if lost := c.events("region.lost"); len(lost) != 1 || !strings.Contains(lost[0], "by ayu, who states that nothing runs there any more: burnt down") {
			t.Errorf("events %q", lost)
		}
		// Another cluster takes the name. The fence is kept.
		hello := helloOf("jakarta", 1)
		hello.ClusterId = "cluster-new"
		fresh := c.s.join(hello)
		fresh.wait("welcome", func() bool { return fresh.welcome != nil })
		if r := c.region("jakarta"); r.GetLost() != nil || r.GetClusterId() != "cluster-new" || fresh.welcome.GetFence() != 1 || len(fresh.slots) > 0 {
			t.Errorf("the new cluster: %v, %v", r, fresh.welcome)
		}
	})
}

// TestLoseOfASilentRegion: the session of a silent region is still open. The refusal of the statement
// says so in the words of the list, and when to try again.
func TestLoseOfASilentRegion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCutter(t, "jakarta", "seoul")
		c.pass(5 * time.Second)
		c.cut["jakarta"] = true
		c.pass(8 * time.Second)
		lose := func() error {
			_, err := nusav1.NewRegionsClient(c.s.conn).Lose(t.Context(), &nusav1.LoseRegionRequest{Name: "jakarta", Confirm: "jakarta", By: "ayu"})
			return err
		}
		err := lose()
		wait := rpcerr.From(err).RetryAfter
		if status.Code(err) != codes.FailedPrecondition || wait == 0 ||
			!strings.Contains(err.Error(), "is disconnected, silent for 8s; its session is still open: nothing has changed; run the command again in ") {
			t.Fatalf("%v, again in %s", err, wait)
		}
		c.pass(wait)
		if err := lose(); err != nil {
			t.Error(err)
		}
		delete(c.regions, "jakarta")
		c.pass(2 * time.Second)
		c.join("jakarta", 2)
		if got := c.events("region.returned"); len(got) != 1 || !strings.Contains(got[0], "although ayu stated that nothing runs there any more") {
			t.Errorf("events %q", got)
		}
	})
}

// TestLoseWaitsForReconnects: a statement is refused about a region that has just disconnected, or
// that a new active server has not met yet. The region may connect again in a moment.
func TestLoseWaitsForReconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFederation()
		start := time.Now()
		change := func(cfg *Config) {
			cfg.Clock, cfg.Lease = func() time.Duration { return time.Since(start) }, 10*time.Second
			cfg.ReportInterval, cfg.CheckpointInterval, cfg.ElectionTTL = 0, 0, 0
		}
		c := &cutter{regions: map[string]*fakeRegion{}, cut: map[string]bool{}, s: f.start(t, "g1", change)}
		c.join("jakarta", 1)
		c.pass(5 * time.Second)
		lose := func(says string) {
			t.Helper()
			_, err := nusav1.NewRegionsClient(c.s.conn).Lose(t.Context(), &nusav1.LoseRegionRequest{Name: "jakarta", Confirm: "jakarta"})
			switch {
			case says == "":
				if err != nil {
					t.Error(err)
				}
			case status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), says) || rpcerr.From(err).RetryAfter == 0:
				t.Errorf("%v, want %q", err, says)
			}
		}
		c.regions["jakarta"].leave()
		delete(c.regions, "jakarta")
		c.pass(time.Second)
		lose("may reconnect and run its work (reconnecting for 1s)")
		second := f.start(t, "g2", change)
		c.s.stop()
		c.s = second
		waitActive(t, second)
		active := time.Now()
		lose("reconnecting since the election 0s ago")
		c.pass(6*time.Second - time.Since(active))
		lose("run the command again in ")
		c.pass(10*time.Second - time.Since(active))
		lose("")
	})
}

// TestEndedWorkKeepsNoRegion: a part of a batch job has ended in a region that is gone for good.
// After the operator's statement the slot has no region any more, and the region can be removed.
// Ended instances do not run again, also not in a cluster that takes the name.
func TestEndedWorkKeepsNoRegion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCutter(t, "jakarta", "seoul")
		regions := nusav1.NewRegionsClient(c.s.conn)
		c.s.submit(testJob("etl", 3, inJakarta(time.Hour), func(j *nusav1.JobSpec) { j.Type = nusav1.JobType_JOB_TYPE_BATCH }))
		c.pass(5 * time.Second)
		ended := func(name, job string) {
			var done []*nusav1.SlotAnswer
			r := c.regions[name]
			r.mu.Lock()
			for _, o := range r.slots {
				if o.GetSlot().GetJob() == job {
					done = append(done, answerTo(o.GetSlot(), nusav1.SlotState_SLOT_STATE_DONE))
				}
			}
			r.mu.Unlock()
			r.answer(done...)
		}
		ended("jakarta", "etl")
		c.pass(5 * time.Second)
		c.regions["jakarta"].leave()
		delete(c.regions, "jakarta")
		c.pass(20 * time.Second)
		remove := func() error {
			_, err := regions.Remove(t.Context(), &nusav1.GetRegionRequest{Name: "jakarta"})
			return err
		}
		if err := remove(); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "1, of instances that have ended; `nusa region lose jakarta`") {
			t.Errorf("before the statement: %v", err)
		}
		if _, err := regions.Lose(t.Context(), &nusav1.LoseRegionRequest{Name: "jakarta", Confirm: "jakarta"}); err != nil {
			t.Fatal(err)
		}
		c.pass(3 * time.Second)
		if err := remove(); err != nil {
			t.Errorf("after the statement: %v", err)
		}
		hello := helloOf("jakarta", 1)
		hello.ClusterId = "cluster-new"
		fresh := c.s.join(hello)
		fresh.wait("welcome", func() bool { return fresh.welcome != nil })
		c.pass(5 * time.Second)
		j, err := c.s.jobs().Get(t.Context(), &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: "etl"}})
		if err != nil {
			t.Fatal(err)
		}
		if got := j.GetStatus(); got.GetState() != nusav1.JobState_JOB_STATE_COMPLETE || got.GetGroups()["web"].GetCounts().GetComplete() != 3 || len(fresh.slots) > 0 {
			t.Errorf("the new cluster has %v, the job is %v", fresh.slots, got)
		}
		if got := c.owners("etl"); got["seoul"] != "" || got["jakarta"] != "" {
			t.Errorf("owners: %v", got)
		}
		if _, err := c.s.jobs().Stop(t.Context(), &nusav1.StopJobRequest{Job: &nusav1.JobRef{Name: "etl"}, Purge: true}); err != nil {
			t.Fatal(err)
		}
		c.pass(2 * time.Second)
		if _, err := c.s.jobs().Get(t.Context(), &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: "etl"}}); status.Code(err) != codes.NotFound {
			t.Errorf("after the purge: %v", err)
		}
	})
}
