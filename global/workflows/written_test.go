package workflows

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestWhatARunWrites: the outputs that the workflow names, or else those of its last steps.
func TestWhatARunWrites(t *testing.T) {
	for _, c := range []struct {
		steps, outputs string
		wrote          map[string]string
		want           string
	}{
		{"a: {ref: x}, b: {ref: x, depends: a.succeeded}", "", map[string]string{"a": "1", "b": "2"}, "2"},
		{"a: {ref: x}, b: {ref: x, depends: a.succeeded}", "", map[string]string{"a": "1"}, ""},
		{"a: {ref: x}, b: {ref: x}", "", map[string]string{"a": "1", "b": "2"}, `{"a":"1","b":"2"}`},
		{"a: {ref: x}, b: {ref: x}", "", map[string]string{"b": "2"}, `{"b":"2"}`},
		{"a: {ref: x}, b: {approval: true}, c: {ref: x, foreach: {items: [d]}}", "", map[string]string{"c": "3"}, `{"c":"[\"3\"]"}`},
		{"a: {ref: x}, b: {ref: x, depends: a.succeeded}", "{sum: 'a ${steps.a.output.n}', b: '${steps.b.output}'}", map[string]string{"a": `{"n": 7}`, "b": "2"}, `{"b":"2","sum":"a 7"}`},
		{"a: {ref: x}, b: {ref: x, depends: a.succeeded}", "{b: '${steps.b.output}'}", map[string]string{"a": "1"}, "error: it needs the output of step b, which has none"},
		{"a: {ref: x}, b: {ref: x}", "", map[string]string{"a": strings.Repeat("x", 9000), "b": strings.Repeat("x", 9000)}, "dropped: the outputs of its last steps were dropped: they have 18015 bytes"},
		{"a: {ref: x}, b: {ref: x}", "{a: '${steps.a.output}', b: '${steps.b.output}'}", map[string]string{"a": strings.Repeat("x", 9000), "b": strings.Repeat("x", 9000)}, "error: its outputs have 18015 bytes"},
	} {
		text := "name: w\nworkflow:\n  steps: {" + c.steps + "}\n"
		if c.outputs != "" {
			text += "  outputs: " + c.outputs + "\n"
		}
		spec, err := job.Parse([]byte(text), "w.yaml")
		if err != nil {
			t.Fatal(err)
		}
		job.Default(spec)
		d, err := define(spec)
		if err != nil {
			t.Fatal(err)
		}
		r := fresh(d, "w.1")
		for i, s := range d.graph.Steps {
			r.set(i, 0, &nusav1.WorkflowStepRecord{State: nusav1.StepState_STEP_STATE_SUCCEEDED, Attempts: 1, Output: c.wrote[s.Name]})
		}
		got, dropped, err := r.written()
		switch {
		case err != nil:
			got = "error: " + status.Convert(err).Message()
		case dropped != "":
			got = "dropped: " + dropped
		}
		if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s, outputs %s: got %s, want %s", c.steps, c.outputs, got, c.want)
		}
	}
}

// TestWhatAnInnerRunGets: the parameters that it knows, the values of the step, and the item. An item is no reference.
func TestWhatAnInnerRunGets(t *testing.T) {
	spec, err := job.Parse([]byte(`name: w
workflow:
  parameters: {day: {default: monday}, secret: {default: x}, files: {default: '["a", "${steps.list.output}", "${item}"]'}}
  steps:
    list: {ref: x}
    part:
      workflow: inner
      depends: list.succeeded
      foreach: {parameter: files}
      meta: {file: '${item} (${item_index}) of ${steps.list.output}', day: sunday}
`), "w.yaml")
	if err != nil {
		t.Fatal(err)
	}
	job.Default(spec)
	d, err := define(spec)
	if err != nil {
		t.Fatal(err)
	}
	r := fresh(d, "w.1")
	list, _ := d.graph.Index("list")
	part, _ := d.graph.Index("part")
	r.set(list, 0, &nusav1.WorkflowStepRecord{State: nusav1.StepState_STEP_STATE_SUCCEEDED, Attempts: 1, Output: "<${item}>"})
	known := map[string]*nusav1.WorkflowParameter{"day": {}, "file": {}, "files": {}}
	for item, want := range []string{"a (0) of <${item}>", "${steps.list.output} (1) of <${item}>", "${item} (2) of <${item}>"} {
		got, err := r.passed(part, item, known)
		if err != nil || got["file"] != want || got["day"] != "sunday" || len(got) != 3 {
			t.Errorf("item %d: %v, %v, want %s", item, fmt.Sprint(got), err, want)
		}
	}
}
