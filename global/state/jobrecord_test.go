package state

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestFullRecordEqualsTheStoredRecord: the full record equals the one that was stored. A change of the full
// record does not change what is stored.
func TestFullRecordEqualsTheStoredRecord(t *testing.T) {
	rec := &nusav1.JobRecord{
		Job:   &nusav1.Job{Spec: testJob("api", 3), Version: 4, Stopped: true, Submitted: timestamppb.Now(), Run: 9, Reverted: &nusav1.Reverted{Version: 3, To: 2, Why: "failed"}},
		Purge: true, Since: map[string]int64{"web": 2},
	}
	rec.Job.Spec.Labels = map[string]string{"team": "a"}
	for f := range rec.ProtoReflect().Descriptor().Fields().Len() { // a new field must be in this test
		if field := rec.ProtoReflect().Descriptor().Fields().Get(f); !rec.ProtoReflect().Has(field) {
			t.Errorf("the record has no %s", field.Name())
		}
	}
	want := proto.CloneOf(rec)
	stored, err := newJobRecord(rec, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := stored.Full(); !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	read := &nusav1.JobRecord{}
	if err := Decode(store.KV{Value: stored.stored()}, read); err != nil || !proto.Equal(read, want) {
		t.Errorf("another server reads %v, %v; want %v", read, err, want)
	}
	changed := stored.Full()
	changed.Purge, changed.Job.Stopped, changed.Job.Spec.Name, changed.Job.Run = false, false, "other", 1
	if !proto.Equal(stored.Full(), want) || !proto.Equal(rec, want) {
		t.Errorf("changed to %v", stored.Full())
	}
	if stored.Version() != 4 || !stored.Stopped() || !stored.Purge() || stored.Run(1) != 9 || stored.Labels()["team"] != "a" || !stored.HasGroup("web") || stored.HasGroup("api") {
		t.Errorf("%+v", stored)
	}
	var none *Record
	if none.Full() != nil || none.Spec() != nil || none.Version() != 0 || none.Run(7) != 7 || none.Stopped() || none.Purge() || none.HasGroup("web") {
		t.Error("a missing record")
	}
}
