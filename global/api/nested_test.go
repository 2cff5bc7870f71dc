package api

import (
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestWorkflowsThatContainEachOther: a submit is refused with the way around, also if another workflow closes it.
func TestWorkflowsThatContainEachOther(t *testing.T) {
	st := state.New(state.Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	workflow := func(name, inside string) *nusav1.JobSpec {
		spec := &nusav1.JobSpec{Name: name, Workflow: &nusav1.Workflow{Steps: map[string]*nusav1.Step{"a": {Workflow: inside}}}}
		job.Default(spec)
		return spec
	}
	for _, spec := range []*nusav1.JobSpec{workflow("etl", "train"), workflow("fit", "etl")} {
		rec, err := state.NewRecord(&nusav1.JobRecord{Job: &nusav1.Job{Spec: spec}})
		if err != nil {
			t.Fatal(err)
		}
		k := state.JobKey{Namespace: "default", Name: spec.GetName()}
		st.Jobs[k] = &state.Job{Key: k, Record: rec}
	}
	term := NewTerm(TermConfig{State: st})
	for inside, want := range map[string]string{
		"fit": "workflow.steps.a.workflow: workflows contain each other: train → fit → etl → train", "later": "",
	} {
		got := ""
		if problems := nestedWrongly(term, workflow("train", inside)); len(problems) > 0 {
			got = problems.Error()
		}
		if !strings.HasSuffix(got, want) || want == "" && got != "" {
			t.Errorf("%s: %q, want %q", inside, got, want)
		}
	}
}
