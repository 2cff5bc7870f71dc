package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/expr"
	"github.com/nusa-scheduler/nusa/internal/lazyregexp"
	"github.com/nusa-scheduler/nusa/job/steps"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Bounds of workflows. job.proto documents them.
const (
	maxSteps      = 10_000
	maxStepName   = 32
	maxParameters = 24
	// maxStepMeta bounds the parameters and the values of a step together.
	maxStepMeta    = maxMetaNames - 6
	maxItems       = 1000
	maxParallel    = 1000
	maxStepRetries = 100
	maxBackoff     = time.Hour
	maxTimeout     = 8760 * time.Hour
	// maxSemaphores bounds the semaphores of a step.
	maxSemaphores = 8
	// minData and maxData bound how much data a step reads.
	minData, maxData = 1 << 20, 1 << 60

	// MaxSemaphoreUnits bounds the units of a semaphore.
	MaxSemaphoreUnits = 1_000_000

	workflowType = nusav1.JobType_JOB_TYPE_WORKFLOW
)

// The values that each step gets besides parameters.
const (
	ValueRun     = "workflow_run"
	ValueStep    = "step"
	ValueAttempt = "attempt"
	ValueItem    = "item"
	ValueIndex   = "item_index"
	// ValueState is how the run ended. Only the step on_exit gets it.
	ValueState = "workflow_state"
)

var ownValues = [...]string{ValueAttempt, ValueItem, ValueIndex, ValueRun, ValueState, ValueStep}

// Labels of the job of a step: the run of the workflow, and the name of the step.
const (
	LabelWorkflowRun  = "nusa-workflow-run"
	LabelWorkflowStep = "nusa-workflow-step"
)

// StepMark separates the name of a run of a workflow from the name of a step, in the name of the step's job.
const StepMark = "--"

var (
	stepName = lazyregexp.New(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	// reserved are words that CEL keeps for itself.
	reserved = strings.Fields("as break const continue else false for function if import in let loop null package namespace return true var void while")
)

// StepSpec returns the job of a step with groups, with its defaults, as if it were to be dispatched: it takes
// the values of a run as meta values.
func StepSpec(spec *nusav1.JobSpec, name string) *nusav1.JobSpec {
	out := stepSpec(spec, name)
	if out.Regions == nil {
		out.Regions = proto.CloneOf(spec.GetRegions())
	}
	return out
}

func stepSpec(spec *nusav1.JobSpec, name string) *nusav1.JobSpec {
	s := spec.GetWorkflow().GetSteps()[name]
	out := proto.CloneOf(&nusav1.JobSpec{
		Name: spec.GetName(), Namespace: spec.GetNamespace(), Type: nusav1.JobType_JOB_TYPE_BATCH, Priority: spec.Priority,
		Labels: spec.GetLabels(), Regions: s.GetRegions(), Groups: s.GetGroups(),
	})
	values := map[string]bool{}
	for _, of := range []iter.Seq[string]{maps.Keys(withMeta(spec).GetWorkflow().GetParameters()), maps.Keys(s.GetMeta()), slices.Values(ownValues[:])} {
		for k := range of {
			values[k] = true
		}
	}
	out.Parameterized = &nusav1.Parameterized{Payload: nusav1.Payload_PAYLOAD_FORBIDDEN, MetaOptional: sorted(values)}
	if s.GetPayload() {
		out.Parameterized.Payload, out.Parameterized.PayloadFile = nusav1.Payload_PAYLOAD_OPTIONAL, spec.GetParameterized().GetPayloadFile()
	}
	Default(out)
	return out
}

// Steps yields the job of each step with groups, also of inline workflows, by its path below `workflow.steps`. Of a
// job that is no workflow it yields nothing.
func Steps(spec *nusav1.JobSpec) iter.Seq2[string, *nusav1.JobSpec] {
	return func(yield func(string, *nusav1.JobSpec) bool) {
		for at, of := range Inside(spec) {
			for _, name := range sorted(of.GetWorkflow().GetSteps()) {
				if len(of.GetWorkflow().GetSteps()[name].GetGroups()) > 0 && !yield(at+name, StepSpec(of, name)) {
					return
				}
			}
		}
	}
}

// Refs returns the names of the jobs and workflows that the steps of a workflow run, sorted, each once.
func Refs(spec *nusav1.JobSpec) (out []string) {
	for _, of := range Inside(spec) {
		for _, s := range of.GetWorkflow().GetSteps() {
			if s.GetRef() != "" {
				out = append(out, s.GetRef())
			}
			if s.GetWorkflow() != "" {
				out = append(out, s.GetWorkflow())
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// ofSteps returns the problems of the steps of a workflow.
func ofSteps(spec *nusav1.JobSpec, find func(*nusav1.JobSpec) Errors) (out Errors) {
	for name, step := range Steps(spec) {
		for _, p := range find(step) {
			p.Field = "workflow.steps." + name + "." + p.Field
			out = append(out, p)
		}
	}
	return out
}

// Graph returns which steps of a valid workflow depend on which others.
func Graph(w *nusav1.Workflow) (*steps.Graph, error) {
	all := make([]steps.Step, 0, len(w.GetSteps()))
	for name, s := range w.GetSteps() {
		depends, err := steps.Parse(s.GetDepends())
		if err != nil {
			return nil, fmt.Errorf("workflow.steps.%s.depends: %w", name, err)
		}
		all = append(all, steps.Step{
			Name: name, Depends: depends, When: s.GetWhen() != "", Job: s.GetRef() != "" || s.GetWorkflow() != "" || s.GetInline() != nil || len(s.GetGroups()) > 0, Timeout: s.GetTimeout() != nil,
		})
	}
	g, wrong := steps.New(all, w.GetOnExit())
	if len(wrong) > 0 {
		return nil, fmt.Errorf("workflow.steps.%s: %s", wrong[0].Step, wrong[0].Message)
	}
	return g, nil
}

// checkWorkflow validates a workflow.
func checkWorkflow(c *checker, spec *nusav1.JobSpec) {
	w := spec.GetWorkflow()
	switch {
	case w == nil:
		c.fail("workflow", "is missing: a job of type workflow has steps")
		return
	case spec.GetType() != workflowType && spec.GetType() != nusav1.JobType_JOB_TYPE_UNSPECIFIED:
		c.fail("type", "a job with workflow has the type workflow")
	case len(spec.GetGroups()) > 0 || len(spec.GetColocate()) > 0:
		c.fail("groups", "a workflow has its groups in its steps")
	}
	checkTaken(c, spec)
	spec = withMeta(spec)
	w = spec.GetWorkflow()
	if n := len(spec.GetName()); n > maxTemplateName {
		c.fail("name", "%d characters, with workflow the limit is %d: the names of its runs are longer", n, maxTemplateName)
	}
	c.count("labels", len(spec.GetLabels()), MaxLabels-spareLabels, "labels, besides those of runs")
	if n := w.GetMaxParallel(); n != 0 {
		c.number("workflow.max_parallel", n, 1, maxParallel)
	}
	checkRunHistory(c, "workflow.history", w.GetHistory())
	c.count("workflow.parameters", len(w.GetParameters()), maxParameters, "parameters")
	for _, name := range sorted(w.GetParameters()) {
		at := c.join("workflow.parameters", name)
		switch {
		case !metaName().MatchString(name):
			c.fail(at, "not a name: 1 to 63 of letters, digits and _, starting with a letter")
		case slices.Contains(ownValues[:], name):
			c.fail(at, "each step has a value of this name already")
		}
		checkValue(c, c.join(at, "default"), w.GetParameters()[name].GetDefault())
	}
	checkOutputs(c, w)
	checkScheduled(c, spec)
	if n := len(w.GetSteps()); n == 0 || n > maxSteps {
		c.fail("workflow.steps", "%d steps: a workflow has 1 to %d", n, maxSteps)
		return
	}
	if !checkInside(c, spec) {
		return
	}
	before := c.wrong
	c.wrong = false
	all := make([]steps.Step, 0, len(w.GetSteps()))
	for _, name := range sorted(w.GetSteps()) {
		all = append(all, checkStep(c, spec, name))
	}
	if !c.wrong {
		checkDependencies(c, w, all)
	}
	c.wrong = c.wrong || before
}

// checkValue validates a text that steps get.
func checkValue(c *checker, at, text string) {
	c.text(at, text, MaxMeta)
	if strings.Contains(text, "${NUSA_") {
		c.fail(at, "contains ${NUSA_, which the agent would replace")
	}
}

// checkStep validates one step, and returns what the graph needs of it.
func checkStep(c *checker, spec *nusav1.JobSpec, name string) steps.Step {
	w := spec.GetWorkflow()
	s, at := present(w.GetSteps()[name]), c.join("workflow.steps", name)
	if !stepName().MatchString(name) || len(name) > maxStepName || slices.Contains(reserved, name) {
		c.fail(at, "not a name of a step: 1 to %d of a-z, 0-9 and _, starting with a letter, without __ and _ at the end, and no word of CEL", maxStepName)
	}
	kinds := one(len(s.GetGroups()) > 0) + one(s.GetRef() != "") + one(s.GetWorkflow() != "") + one(s.GetInline() != nil)
	work := kinds > 0
	checkSub(c, at, spec, name)
	switch {
	case kinds > 1:
		c.fail(at, "has several of groups, ref, workflow and inline: give one")
	case !work && !s.GetApproval():
		c.fail(at, "does nothing: give groups, ref, workflow, inline or approval")
	case !work && (s.GetPayload() || s.GetRetry() != nil || s.GetForeach() != nil || len(s.GetMeta()) > 0 || s.GetRegions() != nil || len(s.GetSemaphores()) > 0 || s.GetData() != nil):
		c.fail(at, "an approval alone has only depends, when and timeout")
	case s.GetApproval() && s.GetForeach() != nil:
		c.fail(c.join(at, "approval"), "not together with foreach: let another step wait for it")
	case s.GetRef() != "" && !ValidName(s.GetRef()):
		c.fail(c.join(at, "ref"), "%q is no name of a job", clip(s.GetRef()))
	case name == w.GetOnExit() && (s.GetDepends() != "" || s.GetWhen() != "" || s.GetApproval()):
		c.fail(at, "is on_exit, which always runs: leave depends, when and approval out")
	}
	depends, err := steps.Parse(s.GetDepends())
	if err != nil {
		c.fail(c.join(at, "depends"), "%s", err)
		depends, _ = steps.Parse("")
	}
	if s.GetWhen() != "" {
		if _, err := expr.CompileWhen(s.GetWhen(), sorted(w.GetParameters())); err != nil {
			c.fail(c.join(at, "when"), "%s", strings.TrimPrefix(err.Error(), expr.ErrCompile.Error()+": "))
		}
	}
	c.duration(c.join(at, "timeout"), s.GetTimeout(), time.Second, maxTimeout)
	checkStepValues(c, at, w, name)
	checkStepNeeds(c, at, w, name)
	if r := s.GetRetry(); r != nil {
		c.number(c.under(at, ".retry.limit"), r.GetLimit(), 1, maxStepRetries)
		c.duration(c.under(at, ".retry.backoff"), r.GetBackoff(), 0, maxBackoff)
		for _, on := range r.GetOn() {
			c.known(c.under(at, ".retry.on"), on)
		}
	}
	if len(s.GetGroups()) > 0 {
		for _, p := range validate(stepSpec(spec, name)) {
			c.fail(c.under(at, "."+p.Field), "%s", p.Message)
		}
	} else if s.GetRegions() != nil {
		c.regions(c.join(at, "regions"), s.GetRegions())
	}
	return steps.Step{Name: name, Depends: depends, When: s.GetWhen() != "", Job: work, Timeout: s.GetTimeout() != nil}
}

func one(is bool) int { return map[bool]int{true: 1}[is] }

// checkUse refuses the use of an output of a step that need not have ended.
func checkUse(c *checker, at string, w *nusav1.Workflow, name, of string) {
	depends, err := steps.Parse(w.GetSteps()[name].GetDepends())
	switch {
	case w.GetSteps()[of] == nil:
		c.fail(at, "there is no step %q%s", clip(of), didYouMean(of, sorted(w.GetSteps())))
	case name == w.GetOnExit() && of != name:
	case err == nil && !slices.Contains(depends.Steps(), of):
		c.fail(at, "takes something from step %s: name it in depends, such as %s.succeeded", of, of)
	}
}

// checkStepNeeds validates the semaphores and the data of a step.
func checkStepNeeds(c *checker, at string, w *nusav1.Workflow, name string) {
	s := present(w.GetSteps()[name])
	if (s.GetWorkflow() != "" || s.GetInline() != nil) && (len(s.GetSemaphores()) > 0 || s.GetData() != nil) {
		c.fail(at, "runs a workflow: give semaphores and data to the steps of that workflow")
	}
	c.count(c.join(at, "semaphores"), len(s.GetSemaphores()), maxSemaphores, "semaphores")
	seen := map[string]bool{}
	for i, of := range s.GetSemaphores() {
		p := fmt.Sprintf("%s.semaphores[%d]", at, i)
		c.name(c.join(p, "name"), of.GetName())
		if n := of.GetUnits(); n != 0 {
			c.number(c.join(p, "units"), n, 1, MaxSemaphoreUnits)
		}
		if seen[of.GetName()] {
			c.fail(c.join(p, "name"), "%s is there twice: add the units", of.GetName())
		}
		seen[of.GetName()] = true
	}
	if d := s.GetData(); d != nil {
		checkData(c, c.join(c.join(at, "data"), "size"), d.GetSizeBytes())
		checkUse(c, c.join(c.join(at, "data"), "from"), w, name, d.GetFrom())
	}
}

// checkData validates how much data is to be read.
func checkData(c *checker, at string, size int64) {
	if size < minData || size > maxData {
		c.fail(at, "%s is not within %s..%s", FormatBytes(size), FormatBytes(minData), FormatBytes(maxData))
	}
}

// UsesOf returns the outputs that a step uses: in its values, and for its items.
func UsesOf(s *nusav1.Step) (out []steps.Output) {
	for _, k := range sorted(s.GetMeta()) {
		uses, _ := steps.Outputs(s.GetMeta()[k]) // a valid step
		out = append(out, uses...)
	}
	if f := s.GetForeach().GetOutput(); f != "" {
		o, _ := steps.ParseOutput(f)
		out = append(out, o)
	}
	return out
}

// FirstStep returns the path below `workflow.steps` of the first step of a workflow, also of inline ones, that is so.
// "": none is.
func FirstStep(spec *nusav1.JobSpec, is func(*nusav1.Step) bool) string {
	for at, of := range Inside(spec) {
		for _, name := range sorted(of.GetWorkflow().GetSteps()) {
			if is(of.GetWorkflow().GetSteps()[name]) {
				return at + name
			}
		}
	}
	return ""
}

// checkStepValues validates the values and the items of a step.
func checkStepValues(c *checker, at string, w *nusav1.Workflow, name string) {
	s := present(w.GetSteps()[name])
	names := map[string]bool{}
	for k := range w.GetParameters() {
		names[k] = true
	}
	for _, k := range sorted(s.GetMeta()) {
		names[k] = true
		p := c.join(c.join(at, "meta"), k)
		if !metaName().MatchString(k) || slices.Contains(ownValues[:], k) {
			c.fail(p, "not a name of a value: letters, digits and _, starting with a letter, and none that each step has")
		}
		checkValue(c, p, s.GetMeta()[k])
		switch uses, err := steps.Outputs(s.GetMeta()[k]); {
		case err != nil:
			c.fail(p, "%s", err)
		default:
			for _, o := range uses {
				checkUse(c, p, w, name, o.Step)
			}
		}
	}
	c.count(c.join(at, "meta"), len(names), maxStepMeta, "values with the parameters")
	f := s.GetForeach()
	if f == nil {
		return
	}
	at = c.join(at, "foreach")
	if n := f.GetMaxParallel(); n != 0 {
		c.number(c.join(at, "max_parallel"), n, 1, maxParallel)
	}
	switch p := w.GetParameters()[f.GetParameter()]; {
	case one(len(f.GetItems()) > 0)+one(f.GetParameter() != "")+one(f.GetOutput() != "") != 1:
		c.fail(at, "give either items, parameter or output")
	case f.GetOutput() != "":
		if o, err := steps.ParseOutput(f.GetOutput()); err != nil {
			c.fail(c.join(at, "output"), "%s", err)
		} else {
			checkUse(c, c.join(at, "output"), w, name, o.Step)
		}
	case f.GetParameter() != "" && p == nil:
		c.fail(c.join(at, "parameter"), "there is no parameter %q%s", clip(f.GetParameter()), didYouMean(f.GetParameter(), sorted(w.GetParameters())))
	case f.GetParameter() != "" && p.Default != nil:
		if _, err := ItemsOf(p.GetDefault()); err != nil {
			c.fail(c.join(at, "parameter"), "the default of %s %s", f.GetParameter(), err)
		}
	}
	c.count(c.join(at, "items"), len(f.GetItems()), maxItems, "items")
	for i, item := range f.GetItems()[:min(len(f.GetItems()), maxItems)] {
		checkValue(c, fmt.Sprintf("%s.items[%d]", at, i), item)
	}
}

// ItemsOf reads the list of a parameter of foreach.
func ItemsOf(text string) (out []string, err error) {
	if json.Unmarshal([]byte(text), &out) != nil {
		return nil, errors.New(`is no JSON list of texts, such as ["eu", "us"]`)
	}
	if len(out) > maxItems {
		return nil, fmt.Errorf("has %d items, at most %d are allowed", len(out), maxItems)
	}
	for _, item := range out {
		if err := CheckValue(item); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// ItemsOfOutput reads the list in an output of a step.
func ItemsOfOutput(text string) ([]string, error) {
	out, err := steps.List(text, maxItems)
	if err != nil {
		return nil, err
	}
	for i, item := range out {
		if err := CheckValue(item); err != nil {
			return nil, fmt.Errorf("has an item %d that %w", i, err)
		}
	}
	return out, nil
}

// CheckValue refuses a text that steps cannot get.
func CheckValue(text string) error {
	switch {
	case len(text) > MaxMeta:
		return fmt.Errorf("has %d bytes, at most %d are allowed", len(text), MaxMeta)
	case !utf8.ValidString(text) || strings.ContainsRune(text, 0):
		return errors.New("is not UTF-8 text")
	case strings.Contains(text, "${NUSA_"):
		return errors.New("contains ${NUSA_, which the agent would replace")
	}
	return nil
}

// checkDependencies refuses steps that depend on each other in a way that cannot be.
func checkDependencies(c *checker, w *nusav1.Workflow, all []steps.Step) {
	if name := w.GetOnExit(); name != "" && w.GetSteps()[name] == nil {
		c.fail("workflow.on_exit", "there is no step %q%s", clip(name), didYouMean(name, sorted(w.GetSteps())))
		return
	}
	_, wrong := steps.New(all, w.GetOnExit())
	for _, p := range wrong {
		c.fail(c.join(c.join("workflow.steps", p.Step), "depends"), "%s", p.Message)
	}
}
