package deadletters

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestRedriveOfAStepHasAnOutput: the name of a redrive is not that of a step, so an agent gives it no NUSA_OUTPUT.
func TestRedriveOfAStepHasAnOutput(t *testing.T) {
	config, err := structpb.NewStruct(map[string]any{"command": "sh", "args": []any{"-c", "echo 1 > ${NUSA_OUTPUT}"}})
	if err != nil {
		t.Fatal(err)
	}
	spec := &nusav1.JobSpec{Name: "flow.1--fetch", Type: nusav1.JobType_JOB_TYPE_BATCH, Groups: map[string]*nusav1.Group{
		"g": {Count: proto.Int32(5), Tasks: map[string]*nusav1.Task{"main": {Driver: "process", Config: config, Env: map[string]string{"NUSA_META_x": "1", "A": "b"}}}},
	}}
	l := &nusav1.DeadLetter{Namespace: "default", Job: "flow.1--fetch", Group: "g", Index: 3, Id: "0123456789abcdef"}
	vars := reduce(spec, l, spec.GetGroups()["g"])
	job.Default(spec)
	if err := job.Validate(spec); err != nil {
		t.Fatalf("the spec of a redrive cannot be submitted: %v", err)
	}
	complete(spec, l, vars)
	main := spec.GetGroups()["g"].GetTasks()["main"]
	const file = "${NUSA_TASK_DIR}/nusa-output"
	if got := main.GetConfig().GetFields()["args"].GetListValue().GetValues()[1].GetStringValue(); got != "echo 1 > "+file {
		t.Errorf("the task runs %q", got)
	}
	if env := main.GetEnv(); env["NUSA_OUTPUT"] != file || env["NUSA_META_x"] != "1" || env["A"] != "b" || env["NUSA_INDEX"] != "3" {
		t.Errorf("the task has the variables %v", env)
	}
}
