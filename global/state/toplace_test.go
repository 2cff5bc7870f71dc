package state

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"
)

// TestPlacedRegionsAreUpToDate: the regions that are kept for the placer equal new ones, whatever
// changed. A region that has not changed is the same value.
func TestPlacedRegionsAreUpToDate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Hour
		st := New(Beginning{Epoch: "e"}, func() time.Duration { return now })
		st.GlobalLevel = 2
		revision := int64(1)
		for i := range 3 {
			st.applyRegion(fmt.Sprintf("r%d", i), &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: fmt.Sprintf("r%d", i)}, ClusterId: "c"}, revision)
		}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			before, _ := PlacedRegions(st, now)
			revision++
			name := fmt.Sprintf("r%d", rapid.IntRange(0, 4).Draw(t, "region"))
			r := st.Regions[name]
			change := rapid.SampledFrom([]string{"define", "remove", "session", "report", "charge", "blocked", "life", "acked", "level", "time", "refuse"}).Draw(t, "change")
			switch {
			case change == "time":
				now += time.Duration(rapid.IntRange(0, 100_000).Draw(t, "ms")) * time.Millisecond
			case change == "level":
				st.GlobalLevel = uint32(rapid.IntRange(0, 2).Draw(t, "level"))
			case change == "define":
				rec := &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: name, Labels: map[string]string{"a": rapid.SampledFrom([]string{"b", "c"}).Draw(t, "label")}}, ClusterId: "c"}
				rec.Cordoned, rec.Draining, rec.FeatureLevel = rapid.Bool().Draw(t, "cordoned"), rapid.Bool().Draw(t, "draining"), 2
				if rapid.Bool().Draw(t, "lost") {
					rec.LostAt = []*timestamppb.Timestamp{timestamppb.Now()}
				}
				st.applyRegion(name, rec, revision)
			case r == nil:
			case change == "remove":
				st.applyRegion(name, nil, revision)
			case change == "session" && r.Session == nil:
				r.Session = &Session{Wake: func() {}, Refuse: func(string) {}}
			case change == "session":
				r.Session = nil
			case change == "report":
				r.Reports++
				r.SetReport(&nusav1.RegionReport{NodesReady: int32(revision)}, now, false)
			case change == "charge":
				g := place.Group{Name: "g", Count: 1, Ask: place.Ask{CPUMilli: 1}}
				j := place.Job{Namespace: "n", Name: "j", Groups: []place.Group{g}}
				s := region.Slot{Namespace: "n", Job: "j", Group: "g", To: 1, Region: name, Generation: revision}
				for _, c := range place.ChargesOf(&j, &s) {
					r.account.Put(r.reported(), c)
				}
			case change == "blocked":
				r.Life.CommitBlocked += time.Second
			case change == "life":
				r.Life, _ = region.Step(st.SessionConfig(), r.Life, now, region.Hello{Stream: uint64(revision), ClusterID: "c", Level: 2, Fence: 1, Required: 1})
			case change == "acked":
				r.Life, _ = region.Step(st.SessionConfig(), r.Life, now, region.OrdersAcked{Stream: r.Life.Stream, Position: 1})
			case change == "refuse":
				r.Refusals = append(r.Refusals, Refusal{Returned: place.Returned{Region: name}})
			}
			if r != nil {
				r.Touch()
			}
			at := now + time.Duration(rapid.IntRange(0, 3000).Draw(t, "later"))*time.Millisecond
			got, returned := PlacedRegions(st, at)
			refusals := 0
			for i, name := range st.RegionNames() {
				r := st.Regions[name]
				refusals += len(r.Refusals)
				want := r.ToPlace(at)
				if st.GlobalLevel == 0 {
					want.FeatureLevel = 0
				}
				if is := aged(*got[i], at); !reflect.DeepEqual(is, want) {
					t.Fatalf("%s after %s:\n%+v, want\n%+v", name, change, is, want)
				}
			}
			if len(got) != len(st.Regions) || len(returned) != refusals {
				t.Fatalf("%d regions, %d refusals after %s", len(got), len(returned), change)
			}
			if again, _ := PlacedRegions(st, at); len(r.getLostAt()) == 0 && change == "time" && len(again) == len(before) {
				for i := range again {
					if lost := st.Regions[again[i].Name].getLostAt(); again[i] != before[i] && len(lost) == 0 {
						t.Fatalf("%s was made again, and only time has passed", again[i].Name)
					}
				}
			}
		}
	})
}

func (r *Region) getLostAt() []*timestamppb.Timestamp {
	if r == nil {
		return nil
	}
	return r.Record.GetLostAt()
}

// aged returns a region with its ages at the time now.
func aged(r place.Region, now time.Duration) place.Region {
	passed := now - r.At
	r.At = now
	if r.HasReport {
		r.ReportAge += passed
	}
	if !r.Connected {
		r.DisconnectedFor += passed
	}
	if r.HealthyFor > 0 {
		r.HealthyFor += passed
	}
	return r
}

// TestRuleOfAStoredJob: the empty value stands for the default, which depends on the job. Jobs of
// earlier versions have the value capacity.
func TestRuleOfAStoredJob(t *testing.T) {
	for stored, want := range map[nusav1.Divide]place.Divide{
		nusav1.Divide_DIVIDE_UNSPECIFIED: "", nusav1.Divide_DIVIDE_CAPACITY: place.DivideCapacity, nusav1.Divide_DIVIDE_EVEN: place.DivideEven,
		nusav1.Divide_DIVIDE_WEIGHTED: place.DivideWeighted, nusav1.Divide_DIVIDE_BEST: place.DivideBest,
	} {
		if got := regionsToPlace(&nusav1.RegionsSpec{Divide: stored}).Divide; got != want {
			t.Errorf("%s: %q, want %q", stored, got, want)
		}
	}
}

// TestNotRunning: how many instances must run and do not, for a move or a drain that waits for them.
func TestNotRunning(t *testing.T) {
	type counts = nusav1.InstanceCounts
	service, batch := nusav1.JobType_JOB_TYPE_SERVICE, nusav1.JobType_JOB_TYPE_BATCH
	for _, c := range []struct {
		name     string
		kind     nusav1.JobType
		parallel int32
		sum      *counts
		want     int
		waiting  int
	}{
		{"no report", service, 0, nil, 6, 0},
		{"one starts, and one has failed", service, 0, &counts{Running: 4, Starting: 1, Failed: 1}, 2, 0},
		{"an override stops four", service, 0, &counts{Running: 1, Pending: 1, Held: 4}, 1, 0},
		{"some have ended", batch, 0, &counts{Running: 2, Complete: 2, Failed: 1, Pending: 1}, 1, 0},
		{"an array", batch, 2, &counts{Running: 2, Complete: 1, Pending: 3}, 0, 3},
		{"an array with one starting instance", batch, 2, &counts{Running: 1, Starting: 1, Pending: 4}, 1, 4},
		{"the last instances of an array", batch, 4, &counts{Running: 1, Complete: 4, Pending: 1}, 1, 1},
	} {
		spec := testJob("api", 6)
		spec.Type = c.kind
		spec.Groups["web"].Parallel = c.parallel
		j := &Job{Record: recordOfMessage(&nusav1.JobRecord{Job: &nusav1.Job{Spec: spec, Version: 1, Run: 7}}), Revision: 9}
		j.Slots.Put(&region.Slot{Namespace: "default", Job: "api", Group: "web", To: 6, Region: "alpha", Desired: region.DesiredRun, State: region.Accepted, Run: 7, JobVersion: 1})
		if c.sum != nil {
			j.Summaries.Put("alpha", &nusav1.JobSummary{Version: 1, Run: 7, Groups: map[string]*counts{"web": c.sum}, Reasons: map[string]*nusav1.GroupReasons{
				"web": {Reasons: []*nusav1.CountedReason{{Reason: nusav1.Reason_REASON_PARALLEL, Count: 9, What: "instance"}}}}})
		}
		if got := j.NotRunning(Sight{})["web"]; got != c.want {
			t.Errorf("%s: %d do not run, want %d", c.name, got, c.want)
		}
		for _, sum := range j.Reported(j.Record) {
			if got := sum.Groups["web"].Waiting; got != c.waiting {
				t.Errorf("%s: %d wait for their turn, want %d", c.name, got, c.waiting)
			}
		}
	}
}

// TestReportsShareWhatIsEqual: a report with the same fits, reasons and bins as the earlier one shares these, and any
// other report has its own. Sharing changes no value.
func TestReportsShareWhatIsEqual(t *testing.T) {
	report := func(change func(*nusav1.RegionShape)) *nusav1.RegionReport {
		shape := &nusav1.RegionShape{
			Fits: []*nusav1.FitCount{{Ask: 1, Count: 5}, {Ask: 2, Reason: nusav1.Reason_REASON_NO_FITTING_NODE, Message: "no node has 9 GPUs"}, {Ask: 3}},
			Bins: []*nusav1.ShapeBin{{Nodes: 2, Free: &nusav1.Resources{CpuMilli: 4000}}, {Nodes: 1, Pool: "spare"}},
		}
		change(shape)
		return &nusav1.RegionReport{Shape: shape, NodesReady: 3, QueueLength: int32(len(shape.GetFits()))}
	}
	earlier := report(func(*nusav1.RegionShape) {})
	was := reportToPlace("oslo", earlier, nil, &place.Region{})
	for _, c := range []struct {
		name       string
		change     func(*nusav1.RegionShape)
		fits, bins bool // shared
	}{
		{"equal", func(*nusav1.RegionShape) {}, true, true},
		{"a count", func(s *nusav1.RegionShape) { s.Fits[0].Count = 4 }, false, true},
		{"another ask", func(s *nusav1.RegionShape) { s.Fits[2].Ask = 4 }, false, true},
		{"an ask twice", func(s *nusav1.RegionShape) { s.Fits[2] = &nusav1.FitCount{Ask: 1, Count: 5} }, false, true},
		{"no bins", func(s *nusav1.RegionShape) { s.Bins = nil }, true, false},
		{"one ask less", func(s *nusav1.RegionShape) { s.Fits = s.Fits[:2] }, false, true},
		{"a message", func(s *nusav1.RegionShape) { s.Fits[1].Message = "no node has 8 GPUs" }, false, true},
		{"a reason", func(s *nusav1.RegionShape) { s.Fits[1].Reason = nusav1.Reason_REASON_NO_NODES }, false, true},
		{"no reason", func(s *nusav1.RegionShape) { s.Fits[1].Reason = 0 }, false, true},
		{"one more reason", func(s *nusav1.RegionShape) { s.Fits[2].Reason = nusav1.Reason_REASON_NO_FITTING_NODE }, false, true},
		{"a bin", func(s *nusav1.RegionShape) { s.Bins[1].Free = &nusav1.Resources{DiskBytes: 1} }, true, false},
		{"a pool", func(s *nusav1.RegionShape) { s.Bins[1].Pool = "" }, true, false},
		{"one bin less", func(s *nusav1.RegionShape) { s.Bins = s.Bins[:1] }, true, false},
	} {
		rep := report(c.change)
		got := reportToPlace("oslo", rep, earlier, was)
		if want := reportToPlace("oslo", rep, nil, &place.Region{}); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, want)
		}
		got.Fits[99] = 1
		if _, shared := was.Fits[99]; shared != c.fits {
			t.Errorf("%s: fits are shared: %t", c.name, shared)
		}
		delete(was.Fits, 99)
		if shared := len(got.Bins) > 0 && &got.Bins[0] == &was.Bins[0]; shared != c.bins {
			t.Errorf("%s: bins are shared: %t", c.name, shared)
		}
	}
}
