package job

import (
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/job/steps"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Bounds of workflows that contain each other. job.proto documents them.
const (
	// MaxWorkflowDepth bounds how many workflows contain each other, and MaxWorkflows the different ones that a run
	// contains.
	MaxWorkflowDepth, MaxWorkflows = 8, 32

	maxOutputs = 24
	// maxScheduledStepName bounds the names of steps, because the names of runs of a schedule are longer.
	maxScheduledStepName = 24
)

// What `meta` of a step that runs another workflow for each item may have.
const (
	itemReference  = "${item}"
	indexReference = "${item_index}"
)

// SubWorkflows returns the names of the workflows that the steps of a workflow run, sorted, each once.
func SubWorkflows(spec *nusav1.JobSpec) (out []string) {
	for _, s := range spec.GetWorkflow().GetSteps() {
		if s.GetWorkflow() != "" {
			out = append(out, s.GetWorkflow())
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// StepOf returns the first step of a workflow that runs another one, or "".
func StepOf(spec *nusav1.JobSpec, workflow string) string {
	for _, name := range sorted(spec.GetWorkflow().GetSteps()) {
		if spec.GetWorkflow().GetSteps()[name].GetWorkflow() == workflow {
			return name
		}
	}
	return ""
}

// WithItem replaces the references to the item in a value of a step with foreach. expand is called for what stands
// between them, because an item is no reference itself.
func WithItem(text, item, index string, expand func(string) (string, error)) (string, error) {
	parts := strings.Split(text, itemReference)
	for i, part := range parts {
		var err error
		if parts[i], err = expand(strings.ReplaceAll(part, indexReference, index)); err != nil {
			return "", err
		}
	}
	return strings.Join(parts, item), nil
}

// checkSub validates a step that runs another workflow.
func checkSub(c *checker, at string, spec *nusav1.JobSpec, s *nusav1.Step) {
	switch name := s.GetWorkflow(); {
	case name == "":
	case !ValidName(name) || len(name) > maxTemplateName:
		c.fail(c.join(at, "workflow"), "%q is no name of a workflow: up to %d characters", clip(name), maxTemplateName)
	case name == spec.GetName():
		c.fail(c.join(at, "workflow"), "workflow %s contains itself", name)
	case s.GetRegions() != nil:
		c.fail(c.join(at, "regions"), "not together with workflow: the steps of %s say where they run", name)
	case s.GetData() != nil:
		c.fail(c.join(at, "data"), "not together with workflow: the steps of %s say what they read", name)
	}
}

// checkOutputs validates what a run writes.
func checkOutputs(c *checker, w *nusav1.Workflow) {
	c.count("workflow.outputs", len(w.GetOutputs()), maxOutputs, "outputs")
	for _, name := range sorted(w.GetOutputs()) {
		at := c.join("workflow.outputs", name)
		if !metaName.MatchString(name) {
			c.fail(at, "not a name: 1 to 63 of letters, digits and _, starting with a letter")
		}
		checkValue(c, at, w.GetOutputs()[name])
		uses, err := steps.Outputs(w.GetOutputs()[name])
		if err != nil {
			c.fail(at, "%s", err)
		}
		for _, o := range uses {
			if w.GetSteps()[o.Step] == nil {
				c.fail(at, "there is no step %q%s", clip(o.Step), didYouMean(o.Step, sorted(w.GetSteps())))
			}
		}
	}
}

// checkScheduled validates a workflow that a schedule runs.
func checkScheduled(c *checker, spec *nusav1.JobSpec) {
	if spec.GetSchedule() == nil {
		return
	}
	checkSchedule(c, "schedule", spec.GetSchedule())
	w := spec.GetWorkflow()
	for _, name := range sorted(w.GetParameters()) {
		if p := w.GetParameters()[name]; p == nil || p.Default == nil {
			c.fail(c.join(c.join("workflow.parameters", name), "default"), "is missing: the runs of a schedule are given no parameters")
		}
	}
	for _, name := range sorted(w.GetSteps()) {
		if len(name) > maxScheduledStepName {
			c.fail(c.join("workflow.steps", name), "%d characters, with schedule the limit is %d: the names of its runs are longer", len(name), maxScheduledStepName)
			return
		}
	}
}
