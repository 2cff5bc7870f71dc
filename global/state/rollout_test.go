package state

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/region"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestOrderBeginsWithTheSubmit: the transaction of a submit stores the beginning of a rollout in an order of
// regions, if a region has an earlier version. The stored ends of regions, and the pause after the latest one,
// are the same after an election. A version that is taken back has no order and no pause.
func TestOrderBeginsWithTheSubmit(t *testing.T) {
	w := newVersionWorld(t)
	w.update = &nusav1.Update{Regions: &nusav1.UpdateRegions{Order: []string{"osaka", "tokyo"}, PauseBetween: durationpb.New(time.Hour)}}
	submit := func(text string) error {
		t.Helper()
		_, err := w.submit(text, "")
		return err
	}
	job := func() *Job { return w.st.Jobs[w.k] }
	w.st.GlobalLevel = OrderLevel - 1
	for _, text := range []string{"one", "two"} { // nothing runs an earlier version
		err := submit(text)
		if err != nil || job().StoredRollout != nil {
			t.Fatalf("%v, %v", job().StoredRollout, err)
		}
	}
	w.do(func(tx *Tx) error {
		return tx.ChangeSlots([]region.Change{{Slot: region.Slot{Namespace: w.k.Namespace, Job: w.k.Name, Group: "web", To: 1, Region: "osaka",
			State: region.Accepted, Desired: region.DesiredRun, JobVersion: 2, Run: job().Record.Run(job().Revision)}}})
	})
	err := submit("three")
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "update.regions needs feature level 6") {
		t.Errorf("a server of an earlier level: %v", err)
	}
	w.st.GlobalLevel = OrderLevel
	if err := submit("three"); err != nil {
		t.Fatal(err)
	}
	if r := job().PresentRollout(); r.GetVersion() != 3 || len(r.GetCanaries()) != 0 || r.GetDone() {
		t.Fatalf("stored is %v", r)
	}
	w.do(func(tx *Tx) error {
		next := proto.CloneOf(tx.Rollout(w.k))
		next.Regions = map[string]*nusav1.RegionEnd{
			"osaka": {At: timestamppb.New(time.Now().Add(-50 * time.Minute))}, "kobe": {At: timestamppb.New(time.Now().Add(-2 * time.Hour)), Failed: "2 failed"},
		}
		return tx.PutRollout(w.k, next)
	})
	w.st, w.commit = loadedState(t, w.store)
	w.st.GlobalLevel = OrderLevel
	got := job().ToPlace(w.st.Sight()).RegionOrder
	if !got.Stored || got.Ended["kobe"] != "2 failed" || got.Ended["osaka"] != "" || len(got.Ended) != 2 || got.After != "osaka" ||
		got.PauseLeft <= 0 || got.PauseLeft > 10*time.Minute || !slices.Equal(got.First, []string{"osaka", "tokyo"}) {
		t.Errorf("after an election: %+v", got)
	}
	at, failedIn := job().RegionsOfRollout(job().PresentRollout())
	if !slices.Equal(at.Waiting, []string{"osaka"}) || len(at.Updating) != 0 || failedIn != "" { // kobe has no instance
		t.Errorf("regions: %+v", at)
	}
	begun := func() *nusav1.Rollout {
		out := &nusav1.JobStatus{}
		job().addRollout(out, w.st.Sight())
		return out.GetRollout()
	}
	if got := begun(); got.GetPauseLeft() == nil || got.GetMessage() != "" {
		t.Errorf("in the pause: %v", got)
	}
	w.do(func(tx *Tx) error { // an operator ends the pause
		next := proto.CloneOf(tx.Rollout(w.k))
		next.Unpaused = timestamppb.Now()
		return tx.PutRollout(w.k, next)
	})
	if left, _ := job().PauseLeft(job().PresentRollout()); left != 0 {
		t.Errorf("the pause lasts for %s", left)
	}
	w.do(func(tx *Tx) error {
		next := proto.CloneOf(tx.Rollout(w.k))
		next.Unpaused, next.Regions["osaka"].At = nil, timestamppb.New(time.Now().Add(-61*time.Minute))
		return tx.PutRollout(w.k, next)
	})
	if got := begun(); got.GetPauseLeft() != nil || got.GetMessage() != "the pause after region osaka is over, the next region follows" {
		t.Errorf("after the pause, before the next plan: %v", got)
	}
	job().EditNotes().RolloutDue = w.st.Clock() + time.Minute
	if got := begun(); got.GetDeadline() == nil || got.GetMessage() != "" {
		t.Errorf("after the pause: %v", got)
	}
	w.do(func(tx *Tx) error {
		rec, rev := tx.Job(w.k)
		_, err := tx.Replace(w.k, rec, rev, rec, &nusav1.Reverted{Version: 3, To: 2, Why: "x"})
		return err
	})
	if got := job().Place().RegionOrder; got.MaxParallel != 1 || len(got.First) != 0 || got.PauseBetween != 0 {
		t.Errorf("a version that is taken back: %+v", got)
	}
}

// TestHeldVersionDoesNotChooseRegions: while a failed version is held, other instances get the earlier version. A region
// that accepts only the config of the earlier version may take them.
func TestHeldVersionDoesNotChooseRegions(t *testing.T) {
	st := New(Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	for i, name := range []string{"oslo", "rome"} {
		st.apply(RegionPrefix+name, &nusav1.Region{ClusterId: name}, int64(i+1))
		field := map[string]string{"oslo": "image", "rome": "kernel"}[name]
		st.Forms.Set(name, &nusav1.DriverForms{Drivers: []*nusav1.DriverForm{{Driver: "vm", Forms: []*nusav1.ConfigSchema{
			{Fields: []*nusav1.ConfigField{{Name: field, Type: nusav1.ConfigType_CONFIG_TYPE_TEXT}}},
		}}}})
	}
	record := func(version int64, field string) *nusav1.JobRecord {
		spec := testJob("api", 1)
		spec.Type = nusav1.JobType_JOB_TYPE_SERVICE
		task := spec.Groups["web"].Tasks["server"]
		task.Driver, task.Config = "vm", &structpb.Struct{Fields: map[string]*structpb.Value{field: structpb.NewStringValue("x")}}
		return &nusav1.JobRecord{Job: &nusav1.Job{Spec: spec, Version: version, Run: 3}, Since: map[string]int64{"web": version}}
	}
	k := JobKey{"default", "api"}
	st.apply(jobPrefix+k.String(), record(2, "kernel"), 4)
	st.apply(HealthyPrefix+k.String(), record(1, "image"), 5)
	for what, c := range map[string]struct {
		rollout        *nusav1.RolloutRecord
		refuse, stable []string
	}{
		"rolls out": {&nusav1.RolloutRecord{Run: 3, Version: 2}, []string{"oslo"}, nil},
		"failed":    {&nusav1.RolloutRecord{Run: 3, Version: 2, Failed: "it crashes"}, []string{"oslo"}, []string{"rome"}},
		"paused":    {&nusav1.RolloutRecord{Run: 3, Version: 2, Paused: true}, []string{"oslo"}, []string{"rome"}},
	} {
		st.apply(rolloutPrefix+k.String(), c.rollout, 6)
		got := st.Jobs[k].ToPlace(st.Sight())
		g := &got.Groups[0]
		refuse, stable := slices.Sorted(maps.Keys(g.Refused)), slices.Sorted(maps.Keys(g.RefusedStable))
		if !slices.Equal(refuse, c.refuse) || !slices.Equal(stable, c.stable) {
			t.Errorf("%s: the regions %v refuse it, and %v the earlier version, want %v and %v", what, refuse, stable, c.refuse, c.stable)
		}
	}
}
