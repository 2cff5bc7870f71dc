package state

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/submits"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestFullRecordEqualsTheStoredRecord: the full record equals the one that was stored. A change of the full
// record does not change what is stored.
func TestFullRecordEqualsTheStoredRecord(t *testing.T) {
	rec := &nusav1.JobRecord{
		Job:   &nusav1.Job{Spec: testJob("api", 3), Version: 4, Stopped: true, Submitted: timestamppb.Now(), Run: 9, Reverted: &nusav1.Reverted{Version: 3, To: 2, Why: "failed"}},
		Purge: true, Since: map[string]int64{"web": 2}, Tag: "v1.0",
		Versions: []*nusav1.StoredVersion{{Version: 3, Submitted: timestamppb.Now(), Replaced: timestamppb.Now(), Bytes: 80, Tag: "old"}},
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
	earlier, err := Encode(want) // as an earlier version stored it
	if err != nil {
		t.Fatal(err)
	}
	var specs submits.Cache[Spec]
	for _, value := range [][]byte{stored.stored(), stored.stored(), earlier} {
		if got, err := loadRecord(store.KV{Value: value}, &specs); err != nil || !reflect.DeepEqual(got.ToPlace(1), stored.ToPlace(1)) || !bytes.Equal(got.stored(), stored.stored()) || !proto.Equal(got.Full(), want) {
			t.Errorf("loaded %+v, %v; want %+v", got, err, stored)
		}
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

// TestLoadedJobsShareASpec: jobs that differ only in their names share the parsed spec, and each has
// its own name and version. What cannot be decoded is an error.
func TestLoadedJobsShareASpec(t *testing.T) {
	var specs submits.Cache[Spec]
	var groups []place.Group
	var rest []byte
	for i, name := range []string{"a", "b", "c"} {
		rec, err := NewRecord(&nusav1.JobRecord{Job: &nusav1.Job{Spec: testJob(name, 3), Version: int64(i + 1)}})
		if err != nil {
			t.Fatal(err)
		}
		got, err := loadRecord(store.KV{Key: "k", Value: rec.stored()}, &specs)
		if err != nil || got.ToPlace(1).Name != name || got.Version() != int64(i+1) || got.Spec().GetName() != name {
			t.Fatalf("%s: %+v, %v", name, got, err)
		}
		if groups != nil && (&groups[0] != &got.spec.job.Groups[0] || &rest[0] != &got.rest[0]) {
			t.Error("the groups, or the encoded specs, are not shared")
		}
		groups, rest = got.spec.job.Groups, got.rest
		for n := range rec.stored() {
			_, _ = loadRecord(store.KV{Key: "k", Value: rec.stored()[:n]}, &specs) // does not panic
		}
		if _, err := loadRecord(store.KV{Key: "k", Value: append(rec.stored(), 0xff)}, &specs); !errors.Is(err, ErrFormat) {
			t.Errorf("a broken record: %v", err)
		}
	}
}
