package compact

import (
	"testing"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestAppendField: encoded summaries that are appended as fields are those of the message, with the
// names of their jobs.
func TestAppendField(t *testing.T) {
	want := &nusav1.CheckpointRecord{Summaries: []*nusav1.JobSummary{
		{Namespace: "default", Job: "empty"},
		{
			Namespace: "data", Job: "etl@here", Local: true, Incarnation: 3, Index: 1 << 40, Version: -1,
			Groups: map[string]*nusav1.InstanceCounts{"web": {Running: 300}, "": {Pending: 1}},
		},
	}}
	var list Summaries
	var fields []byte
	for _, sum := range want.GetSummaries() {
		list.Put("here", sum)
		fields = AppendField(fields, 3, sum.GetNamespace(), sum.GetJob(), list.Encoded("here"))
	}
	got := new(nusav1.CheckpointRecord)
	if err := proto.Unmarshal(fields, got); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if list.Encoded("there") != nil {
		t.Error("a region without a summary has one")
	}
}
