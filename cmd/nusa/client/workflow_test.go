package client

import (
	"strings"
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestWorkflowCommands: workflow run submits the one workflow of a file, with the values of its variables. The commands say
// what a running step waits for, and what follows a failure.
func TestWorkflowCommands(t *testing.T) {
	const file = `variables: {command: env, note: none}
name: etl
type: workflow
workflow: {steps: {fetch: {groups: {main: {tasks: {main: {driver: process, config: {command: "${var.command}"}}}}}}}}
`
	f := newFake(t)
	for _, c := range []struct {
		stdin, line, want string
		code              int
	}{
		{file, "workflow run --detach --var command=date -", "default/etl.1 runs; follow it with: nusa workflow status etl.1", 0},
		{file, "workflow run --detach --var comand=date -", "comand is not a variable of the job file", 1},
		{file + "---\n" + strings.Replace(file, "etl", "two", 1), "workflow run --detach -", "- has 2 jobs: submit them with nusa job run", 1},
		{"", "workflow run --detach etl", "default/etl.1 runs", 0},
		{"", "workflow run broken", "what it wrote:   nusa workflow logs broken.1 fit\nto run it again: nusa workflow retry broken.1 --from fit\n", 3},
		{"", "workflow status release.1", "running        0  1 of 1 instances wait: last failure: exit code 4", 0},
		{"", "workflow submit etl.yaml", "unknown command \"submit\" of nusa workflow, did you mean `nusa workflow run`?", 1},
		{"", "stop web", "did you mean `nusa job stop`?", 1},
		{"", "workflow list nosuch", "job default/nosuch does not exist", 1},
		{"", "workflow list api", "no run; begin one with: nusa workflow run FILE", 0},
		{"", "workflow run --detach etl --var a=b", "--var 'a=b': these are values of variables of a job file, and etl is a stored workflow: --param gives it parameters", 1},
	} {
		out, errOut, code := f.run(t.Context(), c.stdin, append(strings.Fields(c.line), "--addr="+f.addr)...)
		if code != c.code || !strings.Contains(out+errOut, c.want) {
			t.Errorf("%s: exit code %d, want %d and %q\n%s%s", c.line, code, c.code, c.want, out, errOut)
		}
	}
	submit, ok := f.taken()[0].(*nusav1.SubmitRequest)
	task := submit.GetSpec().GetWorkflow().GetSteps()["fetch"].GetGroups()["main"].GetTasks()["main"]
	if !ok || task.GetConfig().GetFields()["command"].GetStringValue() != "date" {
		t.Errorf("the command is %v", task.GetConfig())
	}
}
