package state

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/eventlog"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// cutOffState has the connected region alpha, and the region tokyo, which has been silent
// for 20 s.
func cutOffState() *State {
	now := time.Hour
	st := New(Beginning{Epoch: "e", Sessions: region.Config{Lease: 15 * time.Second, ActiveUntil: 1 << 62}}, func() time.Duration { return now })
	for name, silent := range map[string]time.Duration{"alpha": 0, "tokyo": 20 * time.Second} {
		st.apply(regionKey(name), &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: name}, ClusterId: "c-" + name}, 1)
		r := st.Regions[name]
		r.Life = region.Open(st.SessionConfig(), region.Record{Name: name, ClusterID: "c-" + name}, now-silent)
	}
	alpha := st.Regions["alpha"]
	alpha.Session = &Session{Wake: func() {}}
	alpha.Life, _ = region.Step(st.SessionConfig(), alpha.Life, now, region.Hello{Stream: 1, ClusterID: "c-alpha", Incarnation: 1, Term: 1})
	return st
}

// TestNothingMayRunWhereAnOperatorSaysSo: after the statement that nothing runs in a region, no
// status says that something may run there. What a plan from before the statement says, or from
// before the return of the region, is not shown either.
func TestNothingMayRunWhereAnOperatorSaysSo(t *testing.T) {
	st := cutOffState()
	j := &Job{Record: recordOfMessage(&nusav1.JobRecord{Job: &nusav1.Job{Spec: testJob("api", 2), Version: 1, Run: 1}}), Revision: 99}
	j.Slots.Put(&region.Slot{
		Namespace: "default", Job: "api", Group: "web", To: 2, Region: "alpha", Desired: region.DesiredRun, State: region.Accepted, Run: 1, JobVersion: 1,
		Former: []region.FormerOwner{{Region: "tokyo", MayRun: true}},
	})
	tokyo := st.Regions["tokyo"]
	tokyo.Failover = &Failover{SlotFailover: SlotFailover{Message: "none of its slots moves by itself"}}
	shows := func(unknown int, note string) {
		t.Helper()
		n := len(j.Status(st.Sight()).GetGroups()["web"].GetUnknown())
		if got := tokyo.ToProto(st.Sight()).GetFailoverMessage(); n != unknown || got != note {
			t.Errorf("%d may run, note %q; want %d, %q", n, got, unknown, note)
		}
	}
	shows(1, "none of its slots moves by itself")
	tokyo.Record = proto.CloneOf(tokyo.Record)
	tokyo.Record.Fence, tokyo.Record.Lost = 1, &nusav1.LostRegion{NothingRuns: true}
	shows(0, "")
	tokyo.Failover.fence = 1
	shows(0, "none of its slots moves by itself")
	tokyo.Record.Lost, tokyo.Session = nil, &Session{Wake: func() {}}
	tokyo.Life, _ = region.Step(st.SessionConfig(), tokyo.Life, st.Clock(), region.Hello{Stream: 1, ClusterID: "c-tokyo", Incarnation: 1, Term: 1})
	shows(1, "")
}

// TestStatusOfCutOffRegions: no count includes the last report of a region that is cut off.
// Instances that ended there before stay ended.
func TestStatusOfCutOffRegions(t *testing.T) {
	const run, version = 70, 3
	service, batch, system := nusav1.JobType_JOB_TYPE_SERVICE, nusav1.JobType_JOB_TYPE_BATCH, nusav1.JobType_JOB_TYPE_SYSTEM
	slot := func(from, to int, at string, change ...func(*region.Slot)) region.Slot {
		s := region.Slot{Namespace: "default", Job: "api", Group: "web", From: from, To: to, Region: at, Desired: region.DesiredRun, State: region.Accepted, Run: run, JobVersion: version}
		for _, c := range change {
			c(&s)
		}
		return s
	}
	stop := func(s *region.Slot) { s.Desired = region.DesiredStop }
	done := func(s *region.Slot) { s.State = region.Done }
	wasAt := func(name string, mayRun bool) func(*region.Slot) {
		return func(s *region.Slot) { s.Former = append(s.Former, region.FormerOwner{Region: name, MayRun: mayRun}) }
	}
	ofSystem := func(s *region.Slot) { s.System = true }
	says := func(c *nusav1.InstanceCounts) *nusav1.JobSummary {
		return &nusav1.JobSummary{Version: version, Run: run, Groups: map[string]*nusav1.InstanceCounts{"web": c}}
	}
	for _, c := range []struct {
		name    string
		kind    nusav1.JobType
		stopped bool
		slots   []region.Slot
		sums    map[string]*nusav1.JobSummary
		due     *SlotFailover
		want    nusav1.JobState
		message string
		// the counts and the unknown instances: "region count: message".
		running, unknown int32
		list             string
	}{
		{"a part of a service", service, false, []region.Slot{slot(0, 4, "alpha"), slot(4, 6, "tokyo")},
			map[string]*nusav1.JobSummary{"alpha": says(&nusav1.InstanceCounts{Running: 4}), "tokyo": says(&nusav1.InstanceCounts{Running: 2})},
			&SlotFailover{Moves: true, Due: time.Hour + 250*time.Second}, nusav1.JobState_JOB_STATE_PENDING,
			"2 unknown for 20s: tokyo is cut off", 4, 2, "tokyo 2: would move in 4m10s unless tokyo returns"},
		{"that does not move", service, false, []region.Slot{slot(0, 4, "alpha"), slot(4, 6, "tokyo")},
			map[string]*nusav1.JobSummary{"alpha": says(&nusav1.InstanceCounts{Running: 4})},
			&SlotFailover{Message: "stays: disconnect.region.replace is false"}, nusav1.JobState_JOB_STATE_PENDING,
			"2 unknown for 20s: tokyo is cut off", 4, 2, "tokyo 2: stays: disconnect.region.replace is false"},
		{"others wait", service, false, []region.Slot{slot(0, 3, "alpha"), slot(4, 6, "tokyo")},
			map[string]*nusav1.JobSummary{"alpha": says(&nusav1.InstanceCounts{Running: 3}), "tokyo": says(&nusav1.InstanceCounts{Running: 2})},
			nil, nusav1.JobState_JOB_STATE_PENDING, "1 of 6 instances wait; 2 unknown for 20s: tokyo is cut off", 3, 2, "tokyo 2: waits until tokyo returns"},
		{"others have failed", service, false, []region.Slot{slot(0, 4, "alpha"), slot(4, 6, "tokyo")},
			map[string]*nusav1.JobSummary{"alpha": says(&nusav1.InstanceCounts{Running: 3, Failed: 1}), "tokyo": says(&nusav1.InstanceCounts{Running: 2})},
			nil, nusav1.JobState_JOB_STATE_FAILED, "1 of 6 instances failed; 2 unknown for 20s: tokyo is cut off", 3, 2, "tokyo 2: waits until tokyo returns"},
		{"a region that was never reached", service, false, []region.Slot{slot(0, 6, "tokyo")}, nil,
			nil, nusav1.JobState_JOB_STATE_PENDING, "6 unknown for 20s: tokyo is cut off", 0, 6, "tokyo 6: waits until tokyo returns"},
		{"a stopped job", service, true, []region.Slot{slot(0, 4, "alpha", stop), slot(4, 6, "tokyo", stop)},
			map[string]*nusav1.JobSummary{"alpha": says(&nusav1.InstanceCounts{Running: 4}), "tokyo": says(&nusav1.InstanceCounts{Running: 2})},
			nil, nusav1.JobState_JOB_STATE_STOPPING,
			"4 instances are being stopped; 2 cannot be reached: tokyo has been cut off for 20s; they stop when it returns, or `nusa region lose tokyo` if it is gone for good", 0, 2,
			"tokyo 2: they stop when it returns, or `nusa region lose tokyo` if it is gone for good"},
		{"a stopped job, nothing left but not confirmed", service, true, []region.Slot{slot(4, 6, "tokyo", stop)},
			map[string]*nusav1.JobSummary{"tokyo": says(&nusav1.InstanceCounts{Stopped: 2})},
			nil, nusav1.JobState_JOB_STATE_STOPPING, "region tokyo, cut off for 20s, has not confirmed yet that its instances have stopped", 0, 0, ""},
		{"surplus instances", service, false, []region.Slot{slot(0, 6, "alpha"), slot(6, 8, "tokyo", stop)},
			map[string]*nusav1.JobSummary{"alpha": says(&nusav1.InstanceCounts{Running: 6}), "tokyo": says(&nusav1.InstanceCounts{Running: 2})},
			nil, nusav1.JobState_JOB_STATE_PENDING, "2 unknown for 20s: tokyo is cut off", 6, 2,
			"tokyo 2: they stop when it returns, or `nusa region lose tokyo` if it is gone for good"},
		{"moved away", service, false, []region.Slot{slot(0, 4, "alpha"), slot(4, 6, "alpha", wasAt("tokyo", true))},
			map[string]*nusav1.JobSummary{"alpha": says(&nusav1.InstanceCounts{Running: 6}), "tokyo": says(&nusav1.InstanceCounts{Running: 2})},
			nil, nusav1.JobState_JOB_STATE_RUNNING, "2 may still run at tokyo, cut off for 20s", 6, 0, "tokyo 2 former: may still run at tokyo, cut off for 20s"},
		{"moved away, and it cannot run", service, false, []region.Slot{slot(0, 6, "alpha", wasAt("tokyo", false))},
			map[string]*nusav1.JobSummary{"alpha": says(&nusav1.InstanceCounts{Running: 6}), "tokyo": says(&nusav1.InstanceCounts{Running: 2})},
			nil, nusav1.JobState_JOB_STATE_RUNNING, "", 6, 0, ""},
		{"moved back and forth", service, false, []region.Slot{slot(0, 6, "tokyo", wasAt("alpha", true))},
			map[string]*nusav1.JobSummary{"alpha": says(&nusav1.InstanceCounts{Running: 6}), "tokyo": says(&nusav1.InstanceCounts{Running: 2})},
			nil, nusav1.JobState_JOB_STATE_PENDING, "6 unknown for 20s: tokyo is cut off", 0, 6,
			"tokyo 6: waits until tokyo returns, alpha 6 former: may still run at alpha, which has not confirmed yet that they have stopped"},
		{"a batch job", batch, false, []region.Slot{slot(0, 2, "alpha", done), slot(2, 6, "tokyo")},
			map[string]*nusav1.JobSummary{"alpha": says(&nusav1.InstanceCounts{Complete: 2}), "tokyo": says(&nusav1.InstanceCounts{Complete: 3, Running: 1})},
			nil, nusav1.JobState_JOB_STATE_PENDING, "1 unknown for 20s: tokyo is cut off", 0, 1, "tokyo 1: waits until tokyo returns"},
		{"a batch job that has ended", batch, false, []region.Slot{slot(0, 2, "alpha", done), slot(2, 6, "tokyo", done)},
			map[string]*nusav1.JobSummary{"alpha": says(&nusav1.InstanceCounts{Complete: 2}), "tokyo": says(&nusav1.InstanceCounts{Complete: 4})},
			nil, nusav1.JobState_JOB_STATE_COMPLETE, "", 0, 0, ""},
		{"a system job", system, false, []region.Slot{slot(0, 1, "alpha", ofSystem), slot(0, 1, "tokyo", ofSystem)},
			map[string]*nusav1.JobSummary{"alpha": says(&nusav1.InstanceCounts{Running: 5}), "tokyo": says(&nusav1.InstanceCounts{Running: 3})},
			nil, nusav1.JobState_JOB_STATE_PENDING, "3 unknown for 20s: tokyo is cut off", 5, 3, "tokyo 3: waits until tokyo returns"},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := cutOffState()
			spec := testJob("api", 6)
			spec.Type = c.kind
			j := &Job{
				Record: recordOfMessage(&nusav1.JobRecord{Job: &nusav1.Job{Spec: spec, Version: version, Run: run, Stopped: c.stopped}}), Revision: 99,
			}
			putAll(&j.Summaries, c.sums)
			for _, s := range c.slots {
				j.Slots.Put(&s)
				if c.due != nil && s.Region == "tokyo" {
					st.Regions["tokyo"].Failover = &Failover{Slots: map[string]SlotFailover{s.Key(): *c.due}}
				}
			}
			got := j.Status(st.Sight())
			g := got.GetGroups()["web"]
			if got.GetState() != c.want || got.GetMessage() != c.message {
				t.Errorf("%v %q, want %v %q", got.GetState(), got.GetMessage(), c.want, c.message)
			}
			if g.GetCounts().GetRunning() != c.running || g.GetCounts().GetUnknown() != c.unknown || g.GetRegions()["tokyo"].GetRunning() != 0 {
				t.Errorf("counts %v by region %v", g.GetCounts(), g.GetRegions())
			}
			var list []string
			for _, u := range g.GetUnknown() {
				former := ""
				if u.GetFormer() {
					former = " former"
				}
				list = append(list, fmt.Sprintf("%s %d%s: %s", u.GetRegion(), u.GetCount(), former, u.GetMessage()))
			}
			if got := strings.Join(list, ", "); got != c.list {
				t.Errorf("unknown are %q, want %q", got, c.list)
			}
		})
	}
}

// TestSilenceIsNoticedOnce: a long silence of a region is announced once, and so is the region's
// return. A short reconnect is not announced.
func TestSilenceIsNoticedOnce(t *testing.T) {
	now := time.Hour
	st := cutOffState()
	st.Clock = func() time.Duration { return now }
	j := st.job(JobKey{"default", "api"})
	s := region.Slot{Namespace: "default", Job: "api", Group: "web", To: 2, Region: "tokyo"}
	j.Slots.Put(&s)
	tokyo := st.Regions["tokyo"]
	tokyo.Life.Met = true
	notice := func() (events []string, woken bool) {
		watch, err := eventlog.NewWatch(t.Context(), st.Events.Window, st.Events, "", 0)
		if err != nil {
			t.Fatal(err)
		}
		stamp := j.Stamp
		st.NoticeSilence()
		st.Events.Release()
		all, _, err := watch.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			events = append(events, fmt.Sprintf("%s %s: %s", e.GetType(), e.GetSubject(), e.GetMessage()))
		}
		return events, j.Stamp != stamp
	}
	for _, step := range []struct {
		name   string
		silent time.Duration
		want   []string
	}{
		{"just lost", time.Second, nil},
		{"for long", 6 * time.Second, []string{"region.silent tokyo: no message for 6s: what its instances do is unknown (jobs: 1)"}},
		{"longer", 60 * time.Second, nil},
		{"due", 61 * time.Second, []string{}},
		{"due a bit later", 61*time.Second + 500*time.Millisecond, nil},
		{"back", 0, []string{"region.back tokyo: after 1m of silence"}},
		{"still there", 0, nil},
	} {
		now = 2*time.Hour + step.silent
		if step.silent == 0 {
			now = 2*time.Hour + time.Minute
			tokyo.Life, _ = region.Step(st.SessionConfig(), tokyo.Life, now, region.Hello{Stream: 2, ClusterID: "c-tokyo", Incarnation: 1, Term: 1})
		} else {
			tokyo.Life = region.Open(st.SessionConfig(), region.Record{Name: "tokyo", ClusterID: "c-tokyo"}, 2*time.Hour)
			tokyo.Life.Met = true
		}
		alpha := st.Regions["alpha"]
		alpha.Life, _ = region.Step(st.SessionConfig(), alpha.Life, now, region.Received{Stream: 1})
		if strings.HasPrefix(step.name, "due") {
			tokyo.Failover = &Failover{SlotFailover: SlotFailover{Moves: true, Due: now + time.Minute}}
		}
		events, woken := notice()
		if !slices.Equal(events, step.want) || woken != (step.want != nil) {
			t.Errorf("%s: events %q, watches woken %v, want %q", step.name, events, woken, step.want)
		}
	}
}

// TestRegionAwaitedAfterAnElection: after an election a region is reconnecting, and its counts are
// those from before the election, until the region is back or counts as cut off. How long it has
// been silent is not known.
func TestRegionAwaitedAfterAnElection(t *testing.T) {
	now := time.Hour
	st := cutOffState()
	st.Clock = func() time.Duration { return now }
	tokyo := st.Regions["tokyo"]
	tokyo.Life = region.Open(st.SessionConfig(), tokyo.Life.Record, now)
	j := st.job(JobKey{"default", "api"})
	j.Record = recordOfMessage(&nusav1.JobRecord{Job: &nusav1.Job{Spec: &nusav1.JobSpec{Name: "api", Type: nusav1.JobType_JOB_TYPE_SERVICE, Groups: map[string]*nusav1.Group{"web": {Count: proto.Int32(2)}}}}})
	s := region.Slot{Namespace: "default", Job: "api", Group: "web", To: 2, Region: "tokyo", Desired: region.DesiredRun, State: region.Accepted}
	j.Slots.Put(&s)
	j.Summaries.Put("tokyo", &nusav1.JobSummary{Groups: map[string]*nusav1.InstanceCounts{"web": {Running: 2}}})
	for _, c := range []struct {
		after                    time.Duration
		region, absence, message string
	}{
		{2 * time.Second, "awaited for 2s", "reconnecting since the election 2s ago", "counts from before the election 2s ago: tokyo"},
		{7 * time.Second, "silent for 7s, awaited for 7s", "cut off since the election 7s ago, or for longer", "2 unknown for 7s: tokyo is cut off"},
		{0, "", "reconnecting for 0s", ""},
	} {
		stamp := j.Stamp
		now = time.Hour + c.after
		if c.after == 0 {
			now = time.Hour + 8*time.Second
			tokyo.Life, _ = region.Step(st.SessionConfig(), tokyo.Life, now, region.Hello{Stream: 2, ClusterID: "c-tokyo", Incarnation: 1, Term: 1})
		}
		st.NoticeSilence()
		var shown []string
		r := tokyo.ToProto(st.Sight())
		if r.GetSilent() != nil && !tokyo.Life.Connected() {
			shown = append(shown, fmt.Sprintf("silent for %s", r.GetSilent().AsDuration()))
		}
		if r.GetAwaited() != nil {
			shown = append(shown, fmt.Sprintf("awaited for %s", r.GetAwaited().AsDuration()))
		}
		if got := strings.Join(shown, ", "); got != c.region {
			t.Errorf("after %s: region %q, want %q", c.after, got, c.region)
		}
		if got := st.Sight().Absence("tokyo"); got != c.absence {
			t.Errorf("after %s: absence %q, want %q", c.after, got, c.absence)
		}
		if got := j.Status(st.Sight()).GetMessage(); got != c.message {
			t.Errorf("after %s: job %q, want %q", c.after, got, c.message)
		}
		if j.Stamp == stamp {
			t.Errorf("after %s: the watches of the job were not woken", c.after)
		}
	}
}

// TestJobWithoutStoredCountsAfterAnElection: the instances of a job without stored counts may
// run. The status does not call them waiting before the region has reconnected.
func TestJobWithoutStoredCountsAfterAnElection(t *testing.T) {
	now := time.Hour
	st := cutOffState()
	st.Clock = func() time.Duration { return now }
	tokyo := st.Regions["tokyo"]
	tokyo.Life = region.Open(st.SessionConfig(), tokyo.Life.Record, now)
	j := st.job(JobKey{"default", "api"})
	j.Record = recordOfMessage(&nusav1.JobRecord{Job: &nusav1.Job{Spec: testJob("api", 2)}})
	s := region.Slot{Namespace: "default", Job: "api", Group: "web", To: 2, Region: "tokyo", Desired: region.DesiredRun, State: region.Accepted}
	j.Slots.Put(&s)
	now += 2 * time.Second
	is := j.Status(st.Sight())
	if c := is.GetGroups()["web"].GetCounts(); c.GetUnknown() != 2 || c.GetPending() != 0 || strings.Contains(is.GetMessage(), "wait") {
		t.Errorf("%v, %q", c, is.GetMessage())
	}
	tokyo.Life, _ = region.Step(st.SessionConfig(), tokyo.Life, now, region.Hello{Stream: 2, ClusterID: "c-tokyo", Incarnation: 1, Term: 1})
	if c := j.Status(st.Sight()).GetGroups()["web"].GetCounts(); c.GetUnknown() != 0 || c.GetPending() != 2 {
		t.Errorf("after the region is back: %v", c)
	}
}

// TestAlarms: a mass loss and a store that was restored from an old copy are alarms.
func TestAlarms(t *testing.T) {
	st := cutOffState()
	if all := st.Alarms(); len(all) != 0 {
		t.Errorf("alarms without a cause: %q", all)
	}
	st.FailoverPaused = "2 of 4 regions fell silent"
	st.Leadership = &nusav1.LeadershipRecord{Conflict: &nusav1.RevisionConflict{Region: "tokyo", Known: 90, Stored: 70}}
	all := st.Alarms()
	if len(all) != 2 || all[0] != st.FailoverPaused || !strings.Contains(all[1], "tokyo") || !strings.Contains(all[1], "`nusa server recover`") {
		t.Errorf("alarms: %q", all)
	}
}
