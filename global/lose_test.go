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
		// Another cluster takes the name. The fence stays.
		hello := helloOf("jakarta", 1)
		hello.ClusterId = "cluster-new"
		fresh := c.s.join(hello)
		fresh.wait("welcome", func() bool { return fresh.welcome != nil })
		if r := c.region("jakarta"); r.GetLost() != nil || r.GetClusterId() != "cluster-new" || fresh.welcome.GetFence() != 1 || len(fresh.slots) > 0 {
			t.Errorf("the new cluster: %v, %v", r, fresh.welcome)
		}
	})
}

// TestLoseWaitsForReconnects: a region that has just disconnected, or that a new active server
// has not met yet, may be connected again in a moment, so a statement about it is refused.
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
		lose("reconnecting since 1s, so its work may run")
		second := f.start(t, "g2", change)
		c.s.stop()
		c.s = second
		waitActive(t, second)
		active := time.Now()
		lose("reconnecting since the election 0s ago")
		c.pass(6*time.Second - time.Since(active))
		lose("run the command again in 5s")
		c.pass(10*time.Second - time.Since(active))
		lose("")
	})
}
