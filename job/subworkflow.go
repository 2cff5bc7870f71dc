package job

import (
	"iter"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

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

// Inside yields a workflow and the inline workflows in it, each with the path of its steps below `workflow.steps`. Of
// a job that is no workflow it yields nothing.
func Inside(spec *nusav1.JobSpec) iter.Seq2[string, *nusav1.JobSpec] {
	return func(yield func(string, *nusav1.JobSpec) bool) { inside("", spec, yield) }
}

func inside(at string, spec *nusav1.JobSpec, yield func(string, *nusav1.JobSpec) bool) bool {
	if spec.GetWorkflow() == nil {
		return true
	}
	if !yield(at, spec) {
		return false
	}
	for _, name := range inlineSteps(spec.GetWorkflow()) {
		if !inside(at+name+".inline.steps.", InlineSpec(spec, name), yield) {
			return false
		}
	}
	return true
}

// inlineSteps returns the names of the steps with inline, sorted.
func inlineSteps(w *nusav1.Workflow) (out []string) {
	for name, s := range w.GetSteps() {
		if s.GetInline() != nil {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// InlineSpec returns the workflow that a step has inline, as if it were one of its own. It shares most messages with
// the outer one, so neither may be changed.
func InlineSpec(spec *nusav1.JobSpec, name string) *nusav1.JobSpec {
	s := spec.GetWorkflow().GetSteps()[name]
	of := shallow(s.GetInline())
	of.Parameters = map[string]*nusav1.WorkflowParameter{}
	for k := range withMeta(spec).GetWorkflow().GetParameters() {
		of.Parameters[k] = &nusav1.WorkflowParameter{} // the outer run gives it
	}
	for k := range s.GetMeta() {
		of.Parameters[k] = &nusav1.WorkflowParameter{}
	}
	for k, p := range s.GetInline().GetParameters() {
		if of.Parameters[k] == nil {
			of.Parameters[k] = p
		}
	}
	return &nusav1.JobSpec{
		Name: spec.GetName(), Namespace: spec.GetNamespace(), Type: workflowType, Priority: spec.Priority, Labels: spec.GetLabels(),
		Regions: spec.GetRegions(), Workflow: of, Parameterized: payloadOf(spec.GetParameterized()),
	}
}

// payloadOf returns what `parameterized` says of the payload.
func payloadOf(p *nusav1.Parameterized) *nusav1.Parameterized {
	if p == nil {
		return nil
	}
	return &nusav1.Parameterized{Payload: p.GetPayload(), PayloadFile: p.GetPayloadFile()}
}

// shallow returns a copy of a workflow that shares its messages and maps.
func shallow(w *nusav1.Workflow) *nusav1.Workflow {
	out := &nusav1.Workflow{}
	w.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		out.ProtoReflect().Set(f, v)
		return true
	})
	return out
}

// withMeta returns a workflow whose parameters have the meta values of `parameterized`, too.
func withMeta(spec *nusav1.JobSpec) *nusav1.JobSpec {
	p, w := spec.GetParameterized(), spec.GetWorkflow()
	if w == nil || len(p.GetMetaRequired())+len(p.GetMetaOptional()) == 0 {
		return spec
	}
	of := shallow(w)
	of.Parameters = maps.Clone(w.GetParameters())
	takeMeta(p, of)
	return &nusav1.JobSpec{
		Name: spec.GetName(), Namespace: spec.GetNamespace(), Type: spec.GetType(), Priority: spec.Priority, Labels: spec.GetLabels(),
		Regions: spec.GetRegions(), Schedule: spec.GetSchedule(), Workflow: of, Parameterized: p,
	}
}

// takeMeta adds the meta values of `parameterized` to the parameters of a workflow.
func takeMeta(p *nusav1.Parameterized, w *nusav1.Workflow) {
	if w.Parameters == nil {
		w.Parameters = map[string]*nusav1.WorkflowParameter{}
	}
	for _, k := range p.GetMetaRequired() {
		if w.Parameters[k] == nil {
			w.Parameters[k] = &nusav1.WorkflowParameter{}
		}
	}
	for _, k := range p.GetMetaOptional() {
		if w.Parameters[k] == nil {
			w.Parameters[k] = &nusav1.WorkflowParameter{Default: new(string)}
		}
	}
}

// leaveMeta is the opposite of takeMeta.
func leaveMeta(p *nusav1.Parameterized, w *nusav1.Workflow) {
	for _, k := range p.GetMetaRequired() {
		if of := w.GetParameters()[k]; of != nil && of.Default == nil {
			delete(w.Parameters, k)
		}
	}
	for _, k := range p.GetMetaOptional() {
		if of := w.GetParameters()[k]; of != nil && of.Default != nil && of.GetDefault() == "" {
			delete(w.Parameters, k)
		}
	}
}

// checkTaken validates `parameterized` of a workflow.
func checkTaken(c *checker, spec *nusav1.JobSpec) {
	p := spec.GetParameterized()
	if p == nil {
		return
	}
	checkParameterized(c, "parameterized", p)
	if spec.GetSchedule() != nil {
		c.fail("parameterized", "not together with schedule: a schedule gives its runs no payload and no meta values")
	}
	if p.GetHistory() != nil {
		c.fail("parameterized.history", "a workflow has workflow.history")
	}
	if p.GetPayload() == nusav1.Payload_PAYLOAD_REQUIRED && FirstStep(spec, (*nusav1.Step).GetPayload) == "" {
		c.fail("parameterized.payload", "no step would get it: let one have payload: true")
	}
	for _, list := range [][]string{p.GetMetaRequired(), p.GetMetaOptional()} {
		for _, k := range list {
			of := spec.GetWorkflow().GetParameters()[k]
			switch required := slices.Contains(p.GetMetaRequired(), k); {
			case of != nil && required && of.Default != nil:
				c.fail(c.join(c.join("workflow.parameters", k), "default"), "is never used: parameterized.meta_required has %s", k)
			case of != nil && !required && of.Default == nil:
				c.fail(c.join("workflow.parameters", k), "has no default, so it is required: name it in parameterized.meta_required")
			}
		}
	}
}

// checkInside bounds the inline workflows of a workflow. more: they can be looked at.
func checkInside(c *checker, spec *nusav1.JobSpec) (more bool) {
	total := 0
	var deeper func(at string, w *nusav1.Workflow, depth int) bool
	deeper = func(at string, w *nusav1.Workflow, depth int) bool {
		if total += len(w.GetSteps()); depth > MaxWorkflowDepth {
			c.fail(at, "more than %d workflows contain each other", MaxWorkflowDepth)
			return false
		}
		for _, name := range inlineSteps(w) {
			if !deeper(c.under(c.join(at, name), ".inline.steps"), w.GetSteps()[name].GetInline(), depth+1) {
				return false
			}
		}
		return true
	}
	if !deeper("workflow.steps", spec.GetWorkflow(), 1) {
		return false
	}
	if total > maxSteps {
		c.fail("workflow.steps", "%d steps with those of inline workflows: at most %d are allowed", total, maxSteps)
	}
	return total <= maxSteps
}

// SubWorkflows returns the workflows that the steps of a workflow run, sorted, each once: those of others by their
// names, and an inline one as at/STEP.
func SubWorkflows(at string, spec *nusav1.JobSpec) (out []string) {
	for name, s := range spec.GetWorkflow().GetSteps() {
		switch {
		case s.GetWorkflow() != "":
			out = append(out, s.GetWorkflow())
		case s.GetInline() != nil:
			out = append(out, InlineName(at, name))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// InlineName returns the name of the inline workflow of a step.
func InlineName(workflow, step string) string { return workflow + "/" + step }

// Contained returns the workflows that a workflow contains, also inside others, by the names of SubWorkflows; with
// itself. find returns a workflow of this name. Nil: there is none yet. The error of a cycle names its path.
func Contained(spec *nusav1.JobSpec, find func(name string) (*nusav1.JobSpec, error)) (map[string]*nusav1.JobSpec, error) {
	specs := map[string]*nusav1.JobSpec{spec.GetName(): spec}
	_, err := steps.Contained(spec.GetName(), func(name string) (inside []string, err error) {
		if specs[name] == nil {
			if outer, step, inline := cutInline(name); inline {
				specs[name] = InlineSpec(specs[outer], step)
			} else if specs[name], err = find(name); err != nil {
				return nil, err
			}
		}
		return SubWorkflows(name, specs[name]), nil
	}, MaxWorkflows, MaxWorkflowDepth)
	return specs, err
}

// cutInline returns the outer workflow and the step of an inline one.
func cutInline(name string) (outer, step string, inline bool) {
	i := strings.LastIndexByte(name, '/')
	if i < 0 {
		return "", "", false
	}
	return name[:i], name[i+1:], true
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

// checkSub validates a step that runs another workflow, and whether a step may have the payload.
func checkSub(c *checker, at string, spec *nusav1.JobSpec, name string) {
	s := present(spec.GetWorkflow().GetSteps()[name])
	switch of := s.GetWorkflow(); {
	case s.GetInline() != nil:
		checkInline(c, at, spec, name)
	case of == "":
	case !ValidName(of) || len(of) > maxTemplateName:
		c.fail(c.join(at, "workflow"), "%q is no name of a workflow: up to %d characters", clip(of), maxTemplateName)
	case of == spec.GetName():
		c.fail(c.join(at, "workflow"), "workflow %s contains itself", of)
	case s.GetRegions() != nil:
		c.fail(c.join(at, "regions"), "not together with workflow: the steps of %s say where they run", of)
	case s.GetData() != nil:
		c.fail(c.join(at, "data"), "not together with workflow: the steps of %s say what they read", of)
	}
	switch p := spec.GetParameterized(); {
	case !s.GetPayload():
	case s.GetInline() != nil:
		c.fail(c.join(at, "payload"), "not together with inline: give it to the steps inside")
	case p == nil || p.GetPayload() == nusav1.Payload_PAYLOAD_FORBIDDEN:
		c.fail(c.join(at, "payload"), "the workflow takes no payload: add parameterized: {payload: optional}")
	}
}

// checkInline validates an inline workflow.
func checkInline(c *checker, at string, spec *nusav1.JobSpec, name string) {
	s := spec.GetWorkflow().GetSteps()[name]
	in := c.join(at, "inline")
	if s.GetRegions() != nil {
		c.fail(c.join(at, "regions"), "not together with inline: give them to the steps inside")
	}
	if s.GetInline().GetHistory() != nil {
		c.fail(c.join(in, "history"), "the run is forgotten with the outer one: leave it out")
	}
	for _, k := range sorted(s.GetInline().GetParameters()) {
		_, given := s.GetMeta()[k]
		if p := s.GetInline().GetParameters()[k]; !given && spec.GetWorkflow().GetParameters()[k] == nil && (p == nil || p.Default == nil) {
			c.fail(c.join(c.join(in, "parameters"), k), "is given by nobody: give the step meta with it, or a default")
		}
	}
	for _, p := range validate(InlineSpec(spec, name)) {
		if of, is := strings.CutPrefix(p.Field, "workflow."); is { // the other fields are those of the outer workflow
			c.fail(c.under(in, "."+of), "%s", p.Message)
		}
	}
}

// checkOutputs validates what a run writes.
func checkOutputs(c *checker, w *nusav1.Workflow) {
	c.count("workflow.outputs", len(w.GetOutputs()), maxOutputs, "outputs")
	for _, name := range sorted(w.GetOutputs()) {
		at := c.join("workflow.outputs", name)
		if !metaName().MatchString(name) {
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
