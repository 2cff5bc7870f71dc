package workflows

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/workflows/flow"
	"github.com/nusa-scheduler/nusa/global/workflows/semaphore"
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
	// needs are by step what it takes of semaphores. takes: a step takes something.
	needs [][]semaphore.Need
	takes bool
	// list is by step the output with its items, and lists are by step those that take their items from it.
	list  map[int]steps.Output
	lists map[int][]int
	// last are the steps with work on which no other step depends, without on_exit.
	last []int
	// byJob has the steps by the parts of the names of their jobs.
	byJob map[string]int
	// inline are the inline workflows by step.
	inline map[int]*definition
}

// define returns the definition of a valid spec.
func define(spec *nusav1.JobSpec) (*definition, error) {
	w := spec.GetWorkflow()
	g, err := job.Graph(w)
	if err != nil {
		return nil, fmt.Errorf("job %s/%s: %w", spec.GetNamespace(), spec.GetName(), err)
	}
	d := &definition{spec: spec, graph: g, list: map[int]steps.Output{}, lists: map[int][]int{}, byJob: map[string]int{}, inline: map[int]*definition{}}
	names := slices.Sorted(maps.Keys(w.GetParameters()))
	for i, of := range g.Steps {
		s := w.GetSteps()[of.Name]
		d.byJob[jobPart(of.Name)] = i
		r := flow.Rule{
			Approval: s.GetApproval(), When: s.GetWhen() != "", Items: -1, Timeout: s.GetTimeout().AsDuration(),
			Limit: int(s.GetRetry().GetLimit()), Backoff: s.GetRetry().GetBackoff().AsDuration(), Retry: retryOf(s.GetRetry()),
		}
		if f := s.GetForeach(); f != nil {
			r.Items, r.AtOnce = len(f.GetItems()), int(f.GetMaxParallel())
			if o, err := steps.ParseOutput(f.GetOutput()); err == nil {
				from, _ := g.Index(o.Step)
				d.list[i], d.lists[from] = o, append(d.lists[from], i)
			}
		}
		for _, o := range job.UsesOf(s) {
			if j, known := g.Index(o.Step); known {
				r.Uses = append(r.Uses, j)
			}
		}
		d.needs = append(d.needs, needsOf(s))
		r.Semaphores = len(d.needs[i]) > 0
		d.takes = d.takes || r.Semaphores
		var when *expr.When
		if r.When {
			if when, err = expr.CompileWhen(s.GetWhen(), names); err != nil {
				return nil, fmt.Errorf("step %s: %w", of.Name, err)
			}
		}
		if s.GetInline() != nil {
			if d.inline[i], err = define(job.InlineSpec(spec, of.Name)); err != nil {
				return nil, err
			}
		}
		if len(g.Before[i]) == 0 && i != g.OnExit && of.Job {
			d.last = append(d.last, i)
		}
		d.rules, d.steps, d.when = append(d.rules, r), append(d.steps, s), append(d.when, when)
	}
	return d, nil
}

// in returns the definition of a workflow by the name that its runs have: its own, or that of an inline one in it. Nil:
// there is none.
func (d *definition) in(workflow string) *definition {
	_, path, deeper := strings.Cut(workflow, "/")
	for d != nil && deeper {
		var step string
		step, path, deeper = strings.Cut(path, "/")
		i, _ := d.graph.Index(step)
		d = d.inline[i]
	}
	return d
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

// lists has the lists that the parameters of a run give to steps. Each is read once, because many steps may
// have the same.
type lists struct {
	params map[string]string
	read   map[string][]string // by parameter
}

func listsOf(params map[string]string) *lists { return &lists{params, map[string][]string{}} }

// of returns the items of a step.
func (l *lists) of(f *nusav1.Foreach) []string {
	name := f.GetParameter()
	if name == "" {
		return f.GetItems()
	}
	out, is := l.read[name]
	if !is {
		out, _ = job.ItemsOf(l.params[name]) // checked when the run began
		l.read[name] = out
	}
	return out
}

// size returns the number of items of all steps for a run with some parameters. A step without foreach, or with
// an empty list, counts as one.
func (d *definition) size(params map[string]string) int {
	n, l := 0, listsOf(params)
	for i, r := range d.rules {
		if r.Items < 0 {
			n++
			continue
		}
		n += max(1, len(l.of(d.steps[i].GetForeach())))
	}
	return n
}

// specID returns the name of the record of a spec: it contains a hash of the spec.
func specID(spec *nusav1.JobSpec) string {
	raw, _ := proto.MarshalOptions{Deterministic: true}.Marshal(spec) // cannot fail: it was decoded
	sum := sha256.Sum256(raw)
	return spec.GetName() + "/" + hex.EncodeToString(sum[:8])
}
