package uplink

import (
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/sets"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestOrdersCompleteJobs: a command includes a job version that is stored without a field, once, when the servers know the
// field, and no version that has all its fields.
func TestOrdersCompleteJobs(t *testing.T) {
	group := func() *nusav1.Group {
		return &nusav1.Group{Count: proto.Int32(1), Tasks: map[string]*nusav1.Task{"main": {Driver: "exec"}}}
	}
	spec := &nusav1.JobSpec{Name: "api", Namespace: "default", Type: nusav1.JobType_JOB_TYPE_SERVICE, Groups: map[string]*nusav1.Group{"web": group()}}
	for _, with := range []bool{false, true} {
		if with {
			spec.Groups["web"].Retry = &nusav1.Retry{Attempts: proto.Int32(3), Rules: []*nusav1.RetryRule{{Other: nusav1.RetryOther_RETRY_OTHER_REGION}}}
		}
		b, err := proto.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		fsm := raftlog.NewFSM()
		level := func(n uint32) { committed(t, fsm, state.Command{SetLimits: &state.SetLimits{FeatureLevel: n}}) }
		revision := int64(0)
		order := func() bool {
			revision++
			w := &nusav1.SlotOrder{Revision: revision, Spec: b, Slot: &nusav1.Slot{
				Namespace: "default", Job: "api", Group: "web", To: 1, Generation: revision, JobVersion: 1, Desired: nusav1.SlotDesired_SLOT_DESIRED_RUN,
			}}
			change := link.Change[*nusav1.SlotOrder]{Position: link.Position{Sequence: uint64(revision)}}
			change.Upserts = append(change.Upserts, link.Item[*nusav1.SlotOrder]{Key: "api/web/0", Value: w})
			cmds := orderCommands(fsm.View(), change)
			committed(t, fsm, state.Command{ApplyOrders: cmds[0]})
			return cmds[0].Orders[0].Job != nil
		}
		level(state.AttemptsLevel - 1)
		got := []bool{order(), order()}
		level(state.FieldsLevel)
		got = append(got, order(), order())
		if want := []bool{true, false, with, false}; !slices.Equal(got, want) {
			t.Errorf("with a retry policy %v: the job is in the commands %v, want %v", with, got, want)
		}
		if j, _ := fsm.View().Job(state.JobKey{Namespace: "default", Job: "api"}, 1); with && !j.Groups[0].Retry.Rules[0].OtherRegion {
			t.Errorf("stored is %+v", j.Groups[0].Retry)
		}
	}
}

// TestKnownOrdersCountOnlyAtTheirLevels: the hash of the orders is known after a whole set, while the region has the
// feature level of that session.
func TestKnownOrdersCountOnlyAtTheirLevels(t *testing.T) {
	fsm, u := raftlog.NewFSM(), &Uplink{}
	committed(t, fsm, state.Command{SetLimits: &state.SetLimits{FeatureLevel: 1}})
	committed(t, fsm, state.Command{ApplyOrders: &state.ApplyOrders{Position: state.Position{Epoch: "e", Sequence: 7}, Orders: []state.SlotOrder{
		{Slot: state.Slot{Namespace: "default", Job: "api", Group: "web", To: 1, Generation: 6, Revision: 7, JobVersion: 1, Desired: state.Run}},
	}}})
	want := sets.HashOrders(5, maps.All(map[string]int64{"default/api/web/0": 7}))
	got := []uint64{knownOrders(u, fsm.View())}
	u.whole = wholeOrders{known: true, level: 1, global: 5}
	got = append(got, knownOrders(u, fsm.View()))
	committed(t, fsm, state.Command{SetLimits: &state.SetLimits{FeatureLevel: 2}})
	got = append(got, knownOrders(u, fsm.View()))
	if !slices.Equal(got, []uint64{0, want, 0}) {
		t.Errorf("the hashes are %v, want 0, %d, 0", got, want)
	}
}
