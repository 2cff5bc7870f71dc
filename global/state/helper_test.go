package state

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/nusa-scheduler/nusa/global/compact"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// testJob returns a valid service with one group.
func testJob(name string, count int32) *nusav1.JobSpec {
	return &nusav1.JobSpec{
		Name: name,
		Groups: map[string]*nusav1.Group{"web": {
			Count: proto.Int32(count),
			Tasks: map[string]*nusav1.Task{"server": {
				Driver: "process", Resources: &nusav1.Resources{CpuMilli: 100, MemoryBytes: 64 << 20},
				Config: &structpb.Struct{Fields: map[string]*structpb.Value{"command": structpb.NewStringValue("/bin/true")}},
			}},
		}},
	}
}

// putAll puts summaries by region.
func putAll(to *compact.Summaries, all map[string]*nusav1.JobSummary) {
	for name, sum := range all {
		to.Put(name, sum)
	}
}

// otherWork changes what the tasks of the group do.
func otherWork(j *nusav1.JobSpec) {
	for _, t := range j.GetGroups()["web"].GetTasks() {
		t.Env = map[string]string{"STEP": "two"}
	}
}
