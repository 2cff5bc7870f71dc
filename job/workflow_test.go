package job

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestWorkflowsThatAreRefused: wrong steps, cycles and steps that never start are refused, with the field and
// the reason.
func TestWorkflowsThatAreRefused(t *testing.T) {
	const work = "groups: {g: {tasks: {t: {driver: process, config: {command: x}}}}}"
	var out strings.Builder
	for _, text := range []string{
		"workflow: {}",
		"type: workflow",
		"type: batch\nworkflow: {steps: {a: {ref: x}}}",
		"workflow: {steps: {a: {ref: x}}}\n" + work,
		"workflow: {steps: {a: {ref: x}}}\nparameterized: {history: {count: 1}}\nschedule: {every: 1m}",
		"workflow: {parameters: {a: {default: b}, c: {}}, steps: {a: {ref: x, payload: true}}}\nparameterized: {meta_required: [a, step], meta_optional: [c], payload: forbidden}",
		"workflow: {steps: {a: {ref: x, payload: true}, b: {approval: true, payload: true}}}",
		"workflow: {steps: {b: {inline: {history: {count: 1}, steps: {c: {workflow: a}, d: {ref: x, depends: e.succeeded}}}, regions: {}, data: {from: b, size: 1GiB}}}}",
		"workflow: {steps: {b: {payload: true, inline: {steps: {c: {ref: x, payload: true}}}}, c: {ref: x, inline: {steps: {d: {ref: x}}}}}}\nparameterized: {}",
		"workflow: {parameters: {day: {}}, steps: {b: {inline: {parameters: {day: {}, size: {}}, steps: {c: {ref: x, when: 'params.day == params.dey'}}}}}}",
		"workflow: {steps: {b: {inline: {}}, c: {inline: {steps: {d: {" + work + ", foreach: {items: []}}}}}}}",
		"workflow: {steps: {b: {" + strings.Repeat("inline: {steps: {b: {", MaxWorkflowDepth) + "ref: x" + strings.Repeat("}}}", MaxWorkflowDepth) + "}}}",
		"workflow: {parameters: {day: {}}, steps: {a: {ref: x}}}\nschedule: {every: 1m}",
		"workflow: {steps: {a_step_with_a_name_of_27_ab: {ref: x}}}\nschedule: {every: 1m}",
		"workflow: {steps: {a: {ref: x}}}\nschedule: {cron: [x]}",
		"workflow: {steps: {b: {workflow: a}}}",
		"workflow: {steps: {b: {workflow: A_B}, c: {workflow: x, ref: x}, d: {workflow: x, regions: {allow: [{name: eu}]}}}}",
		"workflow: {outputs: {b: '${steps.c.output}', 'd e': x, f: '${steps.a}'}, steps: {a: {workflow: x}}}",
		"workflow: {steps: {a: {}}}",
		"workflow: {steps: {a: {ref: x, " + work + "}}}",
		"workflow: {steps: {a-b: {ref: x}, a__b: {ref: x}, in: {ref: x}, A: {ref: x}}}",
		"workflow: {steps: {a: {ref: x, depends: b.succeeded}}}",
		"workflow: {steps: {a: {ref: x, depends: c.succeeded}, b: {ref: x, depends: a.succeeded}, c: {ref: x, depends: b.failed}}}",
		"workflow: {steps: {a: {ref: x}, b: {ref: x, depends: a.skipped}}}",
		"workflow: {steps: {a: {ref: x}, b: {ref: x, depends: a.done}}}",
		"workflow: {steps: {a: {ref: x, when: params.size > 3}}}",
		"workflow: {steps: {a: {ref: x, when: 'true &&'}}}",
		"workflow: {parameters: {n: {default: '1'}}, steps: {a: {ref: x, when: 'params.n.map(x, x) == []'}}}",
		"workflow: {parameters: {step: {}, 'a b': {}}, steps: {a: {ref: x}}}",
		"workflow: {parameters: {n: {default: '${NUSA_X}'}}, steps: {a: {ref: x}}}",
		"workflow: {on_exit: b, steps: {a: {ref: x}}}",
		"workflow: {on_exit: a, steps: {a: {ref: x, when: 'true', depends: b.failed}, b: {ref: x}}}",
		"workflow: {steps: {a: {ref: x, foreach: {}}}}",
		"workflow: {steps: {a: {ref: x, foreach: {items: [b], parameter: c}}}}",
		"workflow: {parameters: {c: {default: x}}, steps: {a: {ref: x, foreach: {parameter: c, max_parallel: 1001}}}}",
		"workflow: {steps: {a: {ref: x}, b: {ref: x, depends: a.succeeded, foreach: {output: a, items: [c]}}}}",
		"workflow: {steps: {a: {ref: x}, b: {ref: x, foreach: {output: a.files}}}}",
		"workflow: {steps: {a: {ref: x}, b: {ref: x, depends: a.succeeded, foreach: {output: 'a files'}}}}",
		"workflow: {steps: {a: {ref: x}, b: {ref: x, depends: a.succeeded, meta: {d: '${steps.c.output}', e: '${steps.a.state}', f: '${steps.a.output'}}}}",
		"workflow: {steps: {a: {ref: x, meta: {b: '${steps.a.output}'}}}}",
		"workflow: {on_exit: a, steps: {a: {ref: x, meta: {b: '${steps.a.output}'}}, c: {ref: x}}}",
		"workflow: {steps: {a: {ref: x, semaphores: [{name: L}, {name: b, units: -1}, {name: b}]}}}",
		"workflow: {steps: {a: {ref: x, data: {from: b, size: 1KiB}}, b: {ref: x}, c: {approval: true, semaphores: [{name: b}]}, d: {workflow: x, semaphores: [{name: b}]}}}",
		"workflow: {steps: {a: {approval: true, retry: {limit: 3}}}}",
		"workflow: {steps: {a: {ref: x, retry: {limit: 101, backoff: 2h}, timeout: 1ms}}}",
		"workflow: {max_parallel: 1001, history: {count: 1001}, steps: {a: {ref: x}}}",
		"workflow: {steps: {a: {groups: {g: {tasks: {t: {driver: process, config: {command: '${NUSA_META_x}'}}}}}}}}",
		"workflow: {steps: {a: {groups: {g: {count: -1, tasks: {}}}}}}",
	} {
		_, err := Parse([]byte("name: a\n"+text), "")
		if err == nil {
			t.Errorf("accepted: %s", text)
			continue
		}
		out.WriteString(text + "\n\t" + strings.ReplaceAll(err.Error(), "\n", "\n\t") + "\n")
	}
	checkGolden(t, "workflows_refused.txt", out.String())
}

// TestTooManySteps: a workflow of 10,001 steps is refused, and one of 10,000 is not.
func TestTooManySteps(t *testing.T) {
	spec := &nusav1.JobSpec{Name: "a", Workflow: &nusav1.Workflow{Steps: map[string]*nusav1.Step{}}}
	for i := range maxSteps {
		spec.Workflow.Steps[fmt.Sprintf("s%d", i)] = &nusav1.Step{Ref: "x"}
	}
	Default(spec)
	if err := Validate(spec); err != nil {
		t.Errorf("10,000 steps: %v", err)
	}
	spec.Workflow.Steps["one_more"] = &nusav1.Step{Ref: "x"}
	if err := Validate(spec); err == nil || !strings.Contains(err.Error(), "10001 steps") {
		t.Errorf("10,001 steps: %v", err)
	}
	delete(spec.Workflow.Steps, "s0")
	spec.Workflow.Steps["one_more"] = &nusav1.Step{Inline: &nusav1.Workflow{Steps: map[string]*nusav1.Step{"fit": {Ref: "x"}}}}
	if err := Validate(spec); err == nil || !strings.Contains(err.Error(), "10001 steps with those of inline workflows") {
		t.Errorf("10,000 steps with one more inside: %v", err)
	}
}

// TestExampleWorkflows: the examples are valid and supported, and stay the same when they are written and read.
func TestExampleWorkflows(t *testing.T) {
	files, err := filepath.Glob("../examples/workflows/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no example", err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range strings.Split(string(text), "\n---\n") {
			checkExample(t, f, part)
		}
	}
}

func checkExample(t *testing.T, f, text string) {
	t.Helper()
	spec, err := Parse([]byte(text), f)
	if err != nil {
		t.Fatal(err)
	}
	Default(spec)
	if wrong := Unsupported(spec); len(wrong) > 0 {
		t.Error(wrong)
	}
	for _, step := range Steps(spec) {
		if err := Validate(step); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
}
