package workflows

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/workflows/flow"
	"github.com/nusa-scheduler/nusa/internal/expr"
	"github.com/nusa-scheduler/nusa/job"
	"github.com/nusa-scheduler/nusa/job/steps"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// definition is one version of a workflow. It is never changed.
type definition struct {
	spec  *nusav1.JobSpec
	graph *steps.Graph
	rules []flow.Rule    // by step; Items is 0 for a list that a run gives
	steps []*nusav1.Step // by step
	when  []*expr.When   // by step; nil: none
}

// define returns the definition of a valid spec.
func define(spec *nusav1.JobSpec) (*definition, error) {
	w := spec.GetWorkflow()
	g, err := job.Graph(w)
	if err != nil {
		return nil, fmt.Errorf("job %s/%s: %w", spec.GetNamespace(), spec.GetName(), err)
	}
	d := &definition{spec: spec, graph: g}
	names := slices.Sorted(maps.Keys(w.GetParameters()))
	for _, of := range g.Steps {
		s := w.GetSteps()[of.Name]
		r := flow.Rule{
			Approval: s.GetApproval(), When: s.GetWhen() != "", Items: -1, Timeout: s.GetTimeout().AsDuration(),
			Limit: int(s.GetRetry().GetLimit()), Backoff: s.GetRetry().GetBackoff().AsDuration(), Retry: retryOf(s.GetRetry()),
		}
		if f := s.GetForeach(); f != nil {
			r.Items, r.AtOnce = len(f.GetItems()), int(f.GetMaxParallel())
		}
		var when *expr.When
		if r.When {
			if when, err = expr.CompileWhen(s.GetWhen(), names); err != nil {
				return nil, fmt.Errorf("step %s: %w", of.Name, err)
			}
		}
		d.rules, d.steps, d.when = append(d.rules, r), append(d.steps, s), append(d.when, when)
	}
	return d, nil
}

func retryOf(r *nusav1.StepRetry) map[steps.End]bool {
	if r == nil {
		return nil
	}
	if len(r.GetOn()) == 0 {
		return map[steps.End]bool{steps.Failed: true, steps.Lost: true, steps.TimedOut: true}
	}
	ends := map[nusav1.RetryReason]steps.End{
		nusav1.RetryReason_RETRY_REASON_FAILED: steps.Failed, nusav1.RetryReason_RETRY_REASON_LOST: steps.Lost,
		nusav1.RetryReason_RETRY_REASON_TIMED_OUT: steps.TimedOut,
	}
	out := map[steps.End]bool{}
	for _, on := range r.GetOn() {
		out[ends[on]] = true
	}
	return out
}

// items returns the items of a step for a run with some parameters.
func (d *definition) items(i int, params map[string]string) []string {
	f := d.steps[i].GetForeach()
	if f.GetParameter() == "" {
		return f.GetItems()
	}
	out, _ := job.ItemsOf(params[f.GetParameter()]) // checked when the run began
	return out
}

// specID returns the name of the record of a spec: it contains a hash of the spec.
func specID(spec *nusav1.JobSpec) string {
	raw, _ := proto.MarshalOptions{Deterministic: true}.Marshal(spec) // cannot fail: it was decoded
	sum := sha256.Sum256(raw)
	return spec.GetName() + "/" + hex.EncodeToString(sum[:8])
}
