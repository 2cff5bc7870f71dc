package workflows

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/golden"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const dispatched = `name: orders
parameterized: {meta_required: [customer], meta_optional: [env], payload_file: in.json}
workflow:
  history: {age: 1h}
  parameters: {env: {default: prod}}
  steps:
    plain: {groups: &work {main: {tasks: {main: {driver: process, config: {command: x, args: ['${NUSA_META_customer}', '${NUSA_META_env}']}}}}}}
    wants: {payload: true, groups: *work}
    other: {payload: true, ref: load}
    sub: {inline: {steps: {fit: {payload: true, groups: *work}, no: {groups: *work}}}}
    named: {workflow: inner, payload: true}
    without: {workflow: inner}
    gate: {approval: true}
    late: {depends: gate.succeeded, payload: true, groups: *work}
`

// jobs describes the jobs of steps: the values and the payload that each one has.
func (x *term) jobs() string {
	synctest.Wait()
	x.book.st.Lock()
	defer x.book.st.Unlock()
	names := map[string]string{}
	for k, j := range x.book.st.Jobs {
		_, step, is := strings.Cut(k.Name, "--")
		if !is || j.Record == nil {
			continue
		}
		path := step
		if r := x.book.runs[runOf(k)]; r != nil && outerOf(x.book, r) != nil {
			_, at := pathOf(x.book, r)
			path = at + "/" + step
		}
		text := ""
		for _, g := range j.Record.Spec().GetGroups() {
			for _, t := range g.GetTasks() {
				text += fmt.Sprint(t.GetConfig().AsMap()["args"])
				for _, f := range t.GetTemplates() {
					text += fmt.Sprintf(" %s=%s", f.GetTo(), f.GetText())
				}
				if f := t.GetEnv()["NUSA_PAYLOAD_FILE"]; f != "" {
					text += " " + f
				}
			}
		}
		names[path] = text
	}
	var out strings.Builder
	for _, path := range slices.Sorted(maps.Keys(names)) {
		fmt.Fprintf(&out, "  %s %s\n", path, names[path])
	}
	return out.String()
}

// TestDispatchesOfWorkflows tells what becomes of meta values and payloads.
func TestDispatchesOfWorkflows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := store.NewMemory()
		x := elect(t, mem)
		defer func() { x.stop() }()
		var out strings.Builder
		dispatch := func(req *nusav1.DispatchJobRequest, name string) string {
			req.Job = &nusav1.JobRef{Name: name}
			run, err := x.schedules.Dispatch(context.Background(), req)
			synctest.Wait()
			if err != nil {
				fmt.Fprintf(&out, "%s %v %.20q: %s\n", name, req.GetMeta(), req.GetPayload(), status.Convert(err).Message())
				return ""
			}
			return run.GetName()
		}
		x.submit("name: load\nparameterized: {payload: required}\ngroups: {main: {tasks: {main: {driver: process, config: {command: x, args: [load]}}}}}\n")
		x.submit("name: inner\nparameterized: {meta_optional: [customer]}\nworkflow: {steps: {fit: {payload: true, groups: {main: {tasks: {main: {driver: process, config: {command: x, args: ['${NUSA_META_customer}']}}}}}}}}\n")
		x.submit("name: plain\nworkflow: {steps: {a: {ref: x}}}\n")
		x.submit("name: deaf\nparameterized: {}\nworkflow: {steps: {a: {ref: x}}}\n")
		x.submit("name: greedy\nparameterized: {payload: required}\nworkflow: {steps: {a: {ref: x, payload: true}}}\n")
		x.submit("name: outer\nworkflow: {steps: {a: {workflow: greedy}}}\n")
		x.submit("name: wrong\nparameterized: {}\nworkflow: {steps: {a: {workflow: plain, payload: true}}}\n")
		x.submit(dispatched)
		acme := map[string]string{"customer": "acme"}
		dispatch(&nusav1.DispatchJobRequest{}, "plain")
		dispatch(&nusav1.DispatchJobRequest{Payload: []byte("x")}, "deaf")
		dispatch(&nusav1.DispatchJobRequest{}, "greedy")
		dispatch(&nusav1.DispatchJobRequest{}, "outer")
		dispatch(&nusav1.DispatchJobRequest{}, "wrong")
		dispatch(&nusav1.DispatchJobRequest{}, "orders")
		dispatch(&nusav1.DispatchJobRequest{Meta: map[string]string{"customer": "acme", "size": "2"}}, "orders")
		dispatch(&nusav1.DispatchJobRequest{Meta: acme, Payload: []byte("\xff")}, "orders")
		dispatch(&nusav1.DispatchJobRequest{Meta: acme, Payload: make([]byte, 64<<10+1)}, "orders")
		_, err := x.begin("outer", nil)
		fmt.Fprintf(&out, "run outer: %s\n", status.Convert(err).Message())
		x.submit("name: yearly\ntype: batch\nschedule: {cron: ['0 0 1 7 *']}\ngroups: {main: {count: 1, tasks: {main: {driver: process, config: {command: x}}}}}\n")
		dispatch(&nusav1.DispatchJobRequest{}, "yearly")
		for _, name := range []string{"yearly", "load"} { // no workflows
			_, err := x.begin(name, nil)
			fmt.Fprintf(&out, "run %s: %s\n", name, status.Convert(err).Message())
		}

		name := dispatch(&nusav1.DispatchJobRequest{Meta: acme, Payload: []byte("{}"), IdempotencyKey: "1"}, "orders")
		if again := dispatch(&nusav1.DispatchJobRequest{Meta: acme, Payload: []byte("{}"), IdempotencyKey: "1"}, "orders"); again != name || name == "" {
			t.Errorf("the same key begins %s and %s", name, again)
		}
		r, err := x.flows.Run(context.Background(), &nusav1.RunWorkflowRequest{Job: &nusav1.JobRef{Name: "orders"}, Parameters: acme, Payload: []byte("{}"), IdempotencyKey: "1"})
		if err != nil || r.GetName() != name || r.GetPayloadBytes() != 2 {
			t.Errorf("the same key in Run: %v %v", r, err)
		}
		dispatch(&nusav1.DispatchJobRequest{Meta: acme, Payload: []byte("{1}"), IdempotencyKey: "1"}, "orders")
		x.stop()
		x = elect(t, mem) // the next server has the payload, too
		if err := x.approve(name, "gate", false); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "jobs\n%s", x.jobs())
		if _, err := x.flows.Cancel(context.Background(), &nusav1.CancelWorkflowRequest{Run: &nusav1.JobRef{Name: name}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		x.book.st.Lock()
		if r := x.book.runs[state.JobKey{Namespace: "default", Name: name}]; r != nil || len(x.book.payloads) != 0 || x.book.bytes != 0 {
			t.Errorf("left of a forgotten run: %v, %d payloads, %d bytes", r, len(x.book.payloads), x.book.bytes)
		}
		x.book.st.Unlock()
		golden.File(t, "testdata/dispatches.txt", out.String())
	})
}

// TestPayloadBytes: payloads of runs that one transaction begins count before it is committed.
func TestPayloadBytes(t *testing.T) {
	changes := func(yield func(string, proto.Message) bool) {
		_ = yield("default/a", &nusav1.WorkflowPayloadRecord{Payload: make([]byte, 10)}) && yield("default/gone", nil) &&
			yield("default/b", &nusav1.WorkflowPayloadRecord{Payload: make([]byte, 5)})
	}
	if n := payloadBytes(changes); n != 15 {
		t.Errorf("%d bytes, want 15", n)
	}
}
