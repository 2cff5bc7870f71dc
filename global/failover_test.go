package global

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// cutter is a server with regions that ask for leases until the test cuts them off.
type cutter struct {
	s       *testServer
	regions map[string]*fakeRegion
	cut     map[string]bool
	granted uint64

	mu  sync.Mutex
	all []*nusav1.Event
}

// newCutter starts a server with a lease of 10 s, and regions that all fit everything. The
// caller runs in a bubble.
func newCutter(t *testing.T, names ...string) *cutter {
	t.Helper()
	c := &cutter{regions: map[string]*fakeRegion{}, cut: map[string]bool{}}
	start := time.Now()
	c.s = newFederation().start(t, "g1", func(cfg *Config) {
		cfg.Clock, cfg.Lease = func() time.Duration { return time.Since(start) }, 10*time.Second
		cfg.ReportInterval, cfg.CheckpointInterval, cfg.ElectionTTL = 0, 0, 0
	})
	c.watch()
	for _, name := range names {
		c.join(name, 1)
	}
	synctest.Wait()
	return c
}

// join connects a region that confirms each order.
func (c *cutter) join(name string, term uint64) {
	hello := helloOf(name, term)
	hello.FeatureLevel = 1
	r := c.s.join(hello, func(r *fakeRegion) { r.script = confirmEverything })
	r.wait("welcome", func() bool { return r.welcome != nil })
	synctest.Wait() // the server has the region's report
	c.regions[name] = r
	delete(c.cut, name)
}

// confirmEverything is the script of a region that has stopped everything that it must give up.
func confirmEverything(s *nusav1.Slot) []*nusav1.SlotAnswer {
	if s.GetDesired() == nusav1.SlotDesired_SLOT_DESIRED_REVOKE {
		return []*nusav1.SlotAnswer{answerTo(s, nusav1.SlotState_SLOT_STATE_REVOKED)}
	}
	return agree(s)
}

// pass lets time pass. Regions that are not cut off ask for leases each second.
func (c *cutter) pass(d time.Duration) {
	for range d / time.Second {
		time.Sleep(time.Second)
		c.granted++
		for name, r := range c.regions {
			if !c.cut[name] {
				r.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Lease{Lease: &nusav1.LeaseRequest{Id: c.granted, Granted: c.granted - 1}}})
			}
		}
	}
	synctest.Wait()
}

// owners returns the ranges of a group by region.
func (c *cutter) owners(job string) map[string]string {
	c.s.t.Helper()
	j, err := c.s.jobs().Get(c.s.t.Context(), &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: job}})
	if err != nil {
		c.s.t.Fatal(err)
	}
	out := map[string]string{}
	for _, g := range j.GetStatus().GetGroups() {
		for _, s := range g.GetSlots() {
			out[s.GetRegion()] += fmt.Sprintf("[%d,%d)", s.GetFrom(), s.GetTo())
		}
	}
	return out
}

func (c *cutter) region(name string) *nusav1.Region {
	c.s.t.Helper()
	r, err := nusav1.NewRegionsClient(c.s.conn).Get(c.s.t.Context(), &nusav1.GetRegionRequest{Name: name})
	if err != nil {
		c.s.t.Fatal(err)
	}
	return r
}

// watch collects the events of the server from now on.
func (c *cutter) watch() {
	c.s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := nusav1.NewEventsClient(c.s.conn).Watch(ctx, &nusav1.WatchEventsRequest{})
	if err != nil {
		c.s.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			e, err := stream.Recv()
			if err != nil {
				return
			}
			c.mu.Lock()
			c.all = append(c.all, e)
			c.mu.Unlock()
		}
	}()
	c.s.t.Cleanup(func() {
		cancel()
		<-ended
	})
}

// events returns the events with a type, as "subject: message".
func (c *cutter) events(kind string) (out []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.all {
		if e.GetType() == kind {
			out = append(out, e.GetSubject()+": "+e.GetMessage())
		}
	}
	return out
}

// inJakarta prefers jakarta, and sets after how long the work of a region that is cut off moves.
func inJakarta(after time.Duration) func(*nusav1.JobSpec) {
	return func(j *nusav1.JobSpec) {
		j.Regions = &nusav1.RegionsSpec{Prefer: []*nusav1.Preference{{Selector: &nusav1.RegionSelector{Name: "jakarta"}, Weight: 100}}}
		j.Groups["web"].Disconnect = &nusav1.Disconnect{Region: &nusav1.DisconnectLevel{After: durationpb.New(after)}}
	}
}

// TestLostRegionsWorkMoves: a region is cut off without a reset of its stream. Once its work is
// due, the region is declared lost and the work gets another owner. The region learns that when it
// returns.
func TestLostRegionsWorkMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCutter(t, "jakarta", "seoul", "tokyo")
		c.s.submit(testJob("api", 6, inJakarta(20*time.Second)))
		c.s.submit(testJob("slow", 2, inJakarta(40*time.Second)))
		c.pass(30 * time.Second)
		if got := c.owners("api"); got["jakarta"] != "[0,6)" {
			t.Fatalf("before the cut: %v", got)
		}
		c.cut["jakarta"] = true
		c.pass(19 * time.Second)
		j, err := c.s.jobs().Get(t.Context(), &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: "api"}})
		if u := j.GetStatus().GetGroups()["web"].GetUnknown(); err != nil || len(u) != 1 || u[0].GetMessage() != "would move to tokyo in 1s unless jakarta returns: disconnect.region.after is 20s" {
			t.Errorf("what is due: %v, %v", u, err)
		}
		if r := c.region("jakarta"); c.owners("api")["jakarta"] == "" || r.GetLost() != nil || r.GetMoveDue().AsDuration() > 2*time.Second {
			t.Fatalf("before it is due: %v, %v", c.owners("api"), r)
		}
		c.pass(3 * time.Second)
		r := c.region("jakarta")
		if got := c.owners("api"); got["jakarta"] != "" || r.GetLost() == nil || r.GetFence() != 1 || len(r.GetLostAt()) != 1 {
			t.Fatalf("when it is due: %v, %v, events %q", got, r, c.events("region.lost"))
		}
		if moved := c.events("slot.moved"); len(moved) != 1 || !strings.Contains(moved[0], "web[0-5] from jakarta to ") {
			t.Errorf("events: %q", moved)
		}
		if got := c.owners("slow"); got["jakarta"] != "[0,2)" {
			t.Errorf("the slow job moves when it is due itself: %v", got)
		}
		c.pass(20 * time.Second)
		if got := c.owners("slow"); got["jakarta"] != "" || c.region("jakarta").GetFence() != 1 {
			t.Errorf("the slow job: %v", got)
		}
		c.regions["jakarta"].leave()
		c.join("jakarta", 2)
		jakarta := c.regions["jakarta"]
		c.pass(3 * time.Second)
		if r := c.region("jakarta"); r.GetLost() != nil || jakarta.welcome.GetFence() != 1 || len(jakarta.grants) == 0 {
			t.Errorf("back: %v, welcome %v, %d grants", r, jakarta.welcome, len(jakarta.grants))
		}
	})
}

// TestBoundWorkMovesLater: work that the region's lease binds moves when the lease and the
// stop time are over, and its new owner's lease binds it from the start.
func TestBoundWorkMovesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCutter(t, "jakarta", "seoul", "tokyo")
		c.s.submit(testJob("db", 1, inJakarta(10*time.Second), func(j *nusav1.JobSpec) {
			j.Groups["web"].Disconnect.Region.Running = nusav1.Running_RUNNING_STOP
			j.Groups["web"].Tasks["server"].KillTimeout = durationpb.New(5 * time.Second)
		}))
		c.pass(5 * time.Second)
		c.cut["jakarta"] = true
		c.pass(16 * time.Second)
		if got := c.owners("db"); got["jakarta"] != "[0,1)" || c.region("jakarta").GetLost() != nil {
			t.Fatalf("16 s after the last lease: %v, %v", got, c.region("jakarta"))
		}
		c.pass(2 * time.Second)
		if got := c.owners("db"); got["jakarta"] != "" || len(got) != 1 {
			t.Fatalf("18 s after the last lease: %v", got)
		}
		j, err := c.s.jobs().Get(t.Context(), &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: "db"}})
		if err != nil {
			t.Fatal(err)
		}
		slot := j.GetStatus().GetGroups()["web"].GetSlots()[0]
		if slot.GetUnbound() || slot.GetStopTime().AsDuration() != 5*time.Second || len(slot.GetFormer()) != 1 || slot.GetFormer()[0].GetMayRun() || slot.GetHome() != "jakarta" {
			t.Errorf("the moved slot: %v", slot)
		}
	})
}

// TestRemoveRegionThatMayRunMovedWork: the name of a lost region is free only after an operator
// has stated that nothing runs there.
func TestRemoveRegionThatMayRunMovedWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCutter(t, "jakarta", "seoul", "tokyo")
		regions := nusav1.NewRegionsClient(c.s.conn)
		c.s.submit(testJob("api", 6, inJakarta(15*time.Second)))
		c.pass(5 * time.Second)
		c.regions["jakarta"].leave()
		delete(c.regions, "jakarta")
		c.pass(20 * time.Second)
		if got := c.owners("api"); got["jakarta"] != "" || len(got) == 0 {
			t.Fatalf("after the loss: %v", got)
		}
		remove := func() error {
			_, err := regions.Remove(t.Context(), &nusav1.GetRegionRequest{Name: "jakarta"})
			return err
		}
		if err := remove(); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "nusa region lose jakarta") {
			t.Errorf("before the statement: %v", err)
		}
		if _, err := regions.Lose(t.Context(), &nusav1.LoseRegionRequest{Name: "jakarta", Confirm: "jakarta"}); err != nil {
			t.Fatal(err)
		}
		if err := remove(); err != nil {
			t.Errorf("after the statement: %v", err)
		}
	})
}

// TestReturningRegionKeepsItsWork: nothing moves when a region returns in time.
func TestReturningRegionKeepsItsWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCutter(t, "jakarta", "seoul")
		c.s.submit(testJob("api", 6, inJakarta(20*time.Second)))
		c.pass(5 * time.Second)
		for range 3 {
			c.cut["jakarta"] = true
			c.pass(15 * time.Second)
			c.regions["jakarta"].leave()
			c.join("jakarta", 1)
			c.pass(10 * time.Second)
		}
		if got := c.owners("api"); got["jakarta"] != "[0,6)" || len(c.events("region.lost")) > 0 {
			t.Errorf("owners %v, events %q", got, c.events("region.lost"))
		}
	})
}

// TestNoRoomForLostWork: work that no other region has room for stays with the lost region. The
// region keeps the work if it returns. The status says why.
func TestNoRoomForLostWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCutter(t, "jakarta", "seoul")
		c.regions["seoul"].fits = 0
		c.regions["seoul"].send(c.regions["seoul"].report())
		c.s.submit(testJob("api", 6, inJakarta(20*time.Second)))
		c.pass(5 * time.Second)
		c.cut["jakarta"] = true
		c.pass(30 * time.Second)
		j, err := c.s.jobs().Get(t.Context(), &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: "api"}})
		if err != nil {
			t.Fatal(err)
		}
		unknown := j.GetStatus().GetGroups()["web"].GetUnknown()
		if got := c.owners("api"); got["jakarta"] != "[0,6)" || len(unknown) != 1 || !strings.Contains(unknown[0].GetMessage(), "no other region takes it") {
			t.Fatalf("owners %v, unknown %v", got, unknown)
		}
		c.regions["seoul"].fits = 100
		c.regions["seoul"].send(c.regions["seoul"].report())
		c.pass(time.Second)
		if got := c.owners("api"); got["seoul"] != "[0,6)" {
			t.Errorf("with room: %v", got)
		}
	})
}

// TestMassLossMovesNothing: three of five regions fall silent together.
func TestMassLossMovesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCutter(t, "jakarta", "osaka", "pusan", "seoul", "tokyo")
		c.s.submit(testJob("api", 6, inJakarta(20*time.Second)))
		c.pass(5 * time.Second)
		for _, name := range []string{"jakarta", "osaka", "pusan"} {
			c.cut[name] = true
			c.pass(2 * time.Second)
		}
		c.pass(5 * time.Minute)
		if got := c.owners("api"); got["jakarta"] != "[0,6)" || len(c.events("region.lost")) > 0 || len(c.events("failover.paused")) != 1 {
			t.Fatalf("owners %v, events %q %q", got, c.events("region.lost"), c.events("failover.paused"))
		}
		if r := c.region("jakarta"); !strings.Contains(r.GetFailoverMessage(), "mass loss") {
			t.Errorf("jakarta: %v", r)
		}
		c.regions["pusan"].leave()
		c.join("pusan", 1)
		c.pass(5 * time.Second)
		if got := c.owners("api"); got["jakarta"] != "[0,6)" || len(c.events("failover.resumed")) != 1 {
			t.Errorf("when one is back: %v", got)
		}
		c.pass(15 * time.Second)
		if got := c.owners("api"); got["jakarta"] != "" {
			t.Errorf("a lease later: %v", got)
		}
	})
}

// TestMassLossResignsOnce: the active server resigns, since another server may reach the regions.
// If that server does not reach them either, it stays active and waits.
func TestMassLossResignsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFederation()
		start := time.Now()
		change := func(cfg *Config) {
			cfg.Clock, cfg.Lease = func() time.Duration { return time.Since(start) }, 10*time.Second
			cfg.ReportInterval, cfg.CheckpointInterval, cfg.ElectionTTL = 0, 0, 0
		}
		first := f.start(t, "g1", change)
		c := &cutter{regions: map[string]*fakeRegion{}, cut: map[string]bool{}, s: first}
		names := []string{"jakarta", "osaka", "pusan", "seoul", "tokyo"}
		for _, name := range names {
			c.join(name, 1)
		}
		c.s.submit(testJob("api", 6, inJakarta(20*time.Second)))
		c.pass(10 * time.Second)
		second := f.start(t, "g2", change)
		c.pass(10 * time.Second) // the active server has counted the candidates
		for _, name := range names[:3] {
			c.cut[name] = true
		}
		c.pass(15 * time.Second)
		waitActive(t, second)
		c.s = second
		if got := c.resigned(f); !strings.Contains(got, "3 of 5 regions fell silent within 10s of one another") {
			t.Errorf("recorded: %q", got)
		}
		waitInfo(t, second, "active with the alarm", func(i *nusav1.InfoResponse) bool { return len(i.GetAlarms()) == 1 })
		if r := c.region("jakarta"); !strings.Contains(r.GetFailoverMessage(), "mass loss") {
			t.Errorf("right after the election: %v", r)
		}
		c.join("seoul", 2)
		c.join("tokyo", 2)
		c.pass(3 * time.Minute)
		waitActive(t, second)
		if got := c.owners("api"); got["jakarta"] != "[0,6)" || c.resigned(f) == "" {
			t.Errorf("owners %v, recorded %q", got, c.resigned(f))
		}
		for _, name := range names[:3] {
			c.join(name, 2)
		}
		c.pass(5 * time.Second)
		if got := c.resigned(f); got != "" {
			t.Errorf("after the mass loss is recorded: %q", got)
		}
	})
}

// TestMassLossOutlivesItsServer: a successor shows the alarm at once and keeps it until the regions
// are back.
func TestMassLossOutlivesItsServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFederation()
		start := time.Now()
		change := func(cfg *Config) {
			cfg.Clock, cfg.Lease = func() time.Duration { return time.Since(start) }, 10*time.Second
			cfg.ReportInterval, cfg.CheckpointInterval, cfg.ElectionTTL = 0, 0, 0
		}
		c := &cutter{regions: map[string]*fakeRegion{}, cut: map[string]bool{}, s: f.start(t, "g1", change)}
		for _, name := range []string{"jakarta", "seoul", "tokyo"} {
			c.join(name, 1)
		}
		c.s.submit(testJob("api", 6, inJakarta(20*time.Second)))
		c.pass(5 * time.Second)
		c.cut["jakarta"], c.cut["seoul"], c.cut["tokyo"] = true, true, true
		c.pass(15 * time.Second)
		alarms := func() []string {
			info, err := nusav1.NewSystemClient(c.s.conn).Info(t.Context(), &nusav1.InfoRequest{})
			if err != nil {
				t.Fatal(err)
			}
			return info.GetAlarms()
		}
		before := alarms()
		if len(before) != 1 || !strings.Contains(before[0], "3 of 3 regions fell silent") {
			t.Fatalf("before: %q", before)
		}
		c.s.stop()
		second := f.start(t, "g2", change)
		c.s = second
		waitActive(t, second)
		synctest.Wait() // until the history is read
		c.watch()
		for range 4 {
			if now := alarms(); !slices.Equal(now, before) {
				t.Errorf("after the election: %q", now)
			}
			c.pass(5 * time.Second)
		}
		for _, name := range []string{"jakarta", "seoul", "tokyo"} {
			c.join(name, 2)
		}
		c.pass(5 * time.Second)
		if now := alarms(); len(now) > 0 || len(c.events("failover.resumed")) != 1 {
			t.Errorf("when the regions are back: %q", now)
		}
	})
}

// resigned returns why a server resigned, as it is stored.
func (c *cutter) resigned(f *federation) string {
	c.s.t.Helper()
	mem := f.mem.Client()
	defer mem.Close()
	kv, _, _, err := mem.Get(c.s.t.Context(), "/nusa/v1/leadership")
	rec := new(nusav1.LeadershipRecord)
	if err == nil {
		err = state.Decode(kv, rec)
	}
	if err != nil {
		c.s.t.Fatal(err)
	}
	return rec.GetResigned()
}

// TestElectionCountsSilenceAgain: a new active server does not know when a region last sent a
// message. It counts the silence from the beginning of its own term.
func TestElectionCountsSilenceAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFederation()
		start := time.Now()
		change := func(cfg *Config) {
			cfg.Clock, cfg.Lease = func() time.Duration { return time.Since(start) }, 10*time.Second
			cfg.ReportInterval, cfg.CheckpointInterval, cfg.ElectionTTL = 0, 0, 0
		}
		c := &cutter{regions: map[string]*fakeRegion{}, cut: map[string]bool{}, s: f.start(t, "g1", change)}
		c.join("jakarta", 1)
		c.join("seoul", 1)
		c.s.submit(testJob("api", 6, inJakarta(20*time.Second)))
		c.pass(5 * time.Second)
		second := f.start(t, "g2", change)
		c.cut["jakarta"] = true
		c.pass(15 * time.Second)
		before := time.Now() // the stop may take seconds after the election
		c.s.stop()
		c.s = second
		waitActive(t, second)
		active := time.Now()
		c.join("seoul", 2)
		c.pass(18*time.Second - time.Since(before))
		if got := c.owners("api"); got["jakarta"] != "[0,6)" {
			t.Errorf("33 s after the cut, 18 s after the election: %v", got)
		}
		c.pass(23*time.Second - time.Since(active))
		if got := c.owners("api"); got["seoul"] != "[0,6)" {
			t.Errorf("22 s after the election: %v", got)
		}
	})
}
