package workflows

import (
	"context"
	"iter"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/schedules"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const payloadKind = "workflow-payloads"

func payloadKey(k state.JobKey) string { return state.OtherKey(payloadKind, k.String()) }

// applyPayload notes a stored record. The lock is held.
func applyPayload(b *Book, name string, m proto.Message) {
	namespace, id, _ := strings.Cut(name, "/")
	k := state.JobKey{Namespace: namespace, Name: id}
	b.bytes -= len(b.payloads[k])
	delete(b.payloads, k)
	if rec, _ := m.(*nusav1.WorkflowPayloadRecord); rec != nil {
		b.payloads[k] = rec.GetPayload()
		b.bytes += len(rec.GetPayload())
	}
}

// payloadBytes returns the bytes of the payloads that a transaction stores. Book.bytes has them only once it is
// committed, and one transaction begins many runs.
func payloadBytes(changes iter.Seq2[string, proto.Message]) (n int) {
	for _, m := range changes {
		if rec, _ := m.(*nusav1.WorkflowPayloadRecord); rec != nil {
			n += len(rec.GetPayload())
		}
	}
	return n
}

// payloadOf returns the payload that the steps of a run may get. A run inside another has the payload of the outermost
// run. It has none if one of the steps between them does not pass the payload on. The lock is held.
func payloadOf(b *Book, r *run) []byte {
	for outer := outerOf(b, r); outer != nil; r, outer = outer, outerOf(b, outer) {
		i, _ := outer.def.graph.Index(r.rec.GetRun().GetParentStep())
		if outer.def.inline[i] == nil && !outer.def.steps[i].GetPayload() {
			return nil
		}
	}
	return b.payloads[r.key]
}

// checkPayload checks the payload of a run that a caller begins.
func checkPayload(spec *nusav1.JobSpec, payload []byte) error {
	switch p := spec.GetParameterized(); {
	case p == nil && len(payload) > 0:
		return invalid("payload", "workflow %s takes none: add parameterized: {payload: optional} and let a step have payload: true, or give parameters", spec.GetName())
	case p == nil:
		return nil
	case len(payload) > 0 && p.GetPayload() != nusav1.Payload_PAYLOAD_FORBIDDEN && job.FirstStep(spec, (*nusav1.Step).GetPayload) == "":
		return invalid("payload", "no step of workflow %s would get it: let one have payload: true, or give parameters", spec.GetName())
	default:
		return schedules.CheckPayload(p.GetPayload(), payload)
	}
}

// checkInnerPayload refuses a run that a step begins if the other workflow and the payload do not fit. The lock is held.
func checkInnerPayload(b *Book, r *run, i int, def *definition) error {
	if r.def.inline[i] == nil && def.spec.GetParameterized().GetPayload() == nusav1.Payload_PAYLOAD_REQUIRED && len(payloadOf(b, r)) == 0 {
		return status.Errorf(codes.FailedPrecondition, "workflow %s requires a payload, and the run has none", def.spec.GetName())
	}
	return nil
}

// dispatch begins a run of a workflow with parameterized: meta values are parameters.
func dispatch(ctx context.Context, b *Book, k state.JobKey, req *nusav1.DispatchJobRequest) (*nusav1.JobRun, error) {
	if err := state.AwaitRecords(ctx, b.term.Context.Done(), b.ready); err != nil {
		return nil, err
	}
	record, spec, err := b.workflow(k)
	switch {
	case err != nil:
		return nil, err
	case spec.GetParameterized() == nil:
		return nil, status.Errorf(codes.FailedPrecondition, "workflow %s has no parameterized: it takes no dispatch; begin a run with nusa workflow run %s", k, k.Name)
	}
	r, err := b.runBy(ctx, k, record, spec, given{field: "meta", params: req.GetMeta(), payload: req.GetPayload(), key: req.GetIdempotencyKey()})
	if err != nil {
		return nil, err
	}
	out := &nusav1.JobRun{Name: r.GetName(), Time: r.GetBegan(), Trigger: nusav1.JobRunTrigger_JOB_RUN_TRIGGER_DISPATCH, Began: r.GetBegan(), Ended: r.GetEnded()}
	b.st.Lock()
	defer b.st.Unlock()
	out.State, out.Message, _, _ = resultOf(b, state.JobKey{Namespace: k.Namespace, Name: r.GetName()})
	return out, nil
}
