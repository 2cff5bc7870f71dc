package workflows

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/workflows/flow"
	"github.com/nusa-scheduler/nusa/job"
	"github.com/nusa-scheduler/nusa/job/steps"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// mostRunBytes bounds the outputs of a run, and mostBytes those of all runs that are not forgotten, in
	// bytes.
	mostRunBytes, mostBytes = 8 << 20, 256 << 20
	// mostListed bounds the items of a step: see job.ItemsOfOutput.
	mostListed = 1000
)

// output is the output of a part of a job. name is that of its record.
type output struct {
	name, group string
	from        int32
	text        string
}

// applyOutput notes a stored record. The lock is held.
func applyOutput(b *Book, name string, m proto.Message) {
	parts := strings.SplitN(name, "/", 4)
	if len(parts) != 4 {
		return
	}
	k := state.JobKey{Namespace: parts[0], Name: parts[1]}
	all := slices.DeleteFunc(slices.Clone(b.outputs[k]), func(o output) bool { return o.name == name })
	if rec, _ := m.(*nusav1.WorkflowOutputRecord); rec != nil {
		all = append(all, output{name, rec.GetGroup(), rec.GetFrom(), rec.GetOutput()})
		slices.SortFunc(all, func(x, y output) int {
			if c := strings.Compare(x.group, y.group); c != 0 {
				return c
			}
			return int(x.from - y.from)
		})
	}
	b.outputs[k] = all
	if len(all) == 0 {
		delete(b.outputs, k)
	}
}

// takeOutput moves the output of a job into the record of its step.
func takeOutput(b *Book, t *state.Tx, r *run, k state.JobKey, to *nusav1.WorkflowStepRecord) error {
	for i, o := range b.outputs[k] {
		if err := state.DeleteOther(t, state.OtherKey(state.OutputKind, o.name)); err != nil {
			return err
		}
		text := strings.TrimRight(o.text, "\r\n")
		if i > 0 {
			continue
		}
		if why := noRoom(b, r, text); why != "" {
			to.Message = why
		} else {
			to.Output = text
		}
	}
	return nil
}

// unclaimed returns the outputs of jobs that belong to no active step. The lock is held.
func unclaimed(b *Book) (names []string) {
	for k, all := range b.outputs {
		if r := b.runs[runOf(k)]; r != nil {
			if _, active := r.jobs[k.Name]; active {
				continue
			}
		}
		for _, o := range all[:min(len(all), together)] {
			names = append(names, o.name)
		}
		if len(names) >= together {
			return names
		}
	}
	return names
}

func notEnded(step string) string {
	return "it needs the output of step " + step + ", which has not ended"
}

// outputOf returns the output of a step. The output of a step with foreach is the
// JSON list of the outputs of its items.
func (r *run) outputOf(o steps.Output) (string, error) {
	i, known := r.def.graph.Index(o.Step)
	if !known {
		return "", fmt.Errorf("there is no step %s", o.Step)
	}
	st := &r.snap.Steps[i]
	text := r.recs[i][0].GetOutput()
	switch {
	case st.End == steps.None:
		return "", errors.New(notEnded(o.Step))
	case r.items[i] != nil && st.End == steps.Succeeded:
		all, size := make([]string, len(r.items[i])), 0
		for item := range all {
			all[item] = r.recs[i][item].GetOutput()
			if size += len(all[item]); size > state.MaxOutput {
				return "", fmt.Errorf("it needs the outputs of the items of step %s, which have more than %d bytes", o.Step, state.MaxOutput)
			}
		}
		raw, _ := json.Marshal(all) // cannot fail: a list of texts
		text = string(raw)
	case text == "":
		why := "it wrote none to $NUSA_OUTPUT, or its agent, region or a server is of an earlier version"
		if st.End != steps.Succeeded {
			why = "it " + flow.Past(st.End)
		} else if m := r.recs[i][0].GetMessage(); m != "" {
			why = m
		}
		return "", fmt.Errorf("it needs the output of step %s, which has none: %s", o.Step, why)
	}
	v, err := steps.Pick(text, o.Key)
	if err != nil {
		return "", fmt.Errorf("it needs the output of step %s, which %w", o.Step, err)
	}
	return v, nil
}

// written returns what a run that has succeeded wrote for the step that began it: see Workflow.outputs. dropped says
// why there is nothing although a step wrote something.
func (r *run) written() (text, dropped string, err error) {
	declared := r.def.spec.GetWorkflow().GetOutputs()
	values := maps.Clone(declared)
	if err := r.expand(values); err != nil {
		return "", "", err
	}
	if len(declared) == 0 {
		values = map[string]string{}
		for _, i := range r.def.last {
			name := r.def.graph.Steps[i].Name
			if text, err := r.outputOf(steps.Output{Step: name}); err == nil && r.wrote(i) {
				values[name] = text
			}
		}
	}
	if len(declared) == 0 && len(r.def.last) == 1 {
		for _, text = range values {
			return text, "", nil
		}
	}
	if len(values) == 0 {
		return "", "", nil
	}
	raw, _ := json.Marshal(values) // cannot fail: a map of texts
	switch {
	case len(raw) <= state.MaxOutput:
		return string(raw), "", nil
	case len(declared) == 0:
		return "", fmt.Sprintf("the outputs of its last steps were dropped: they have %d bytes, at most %d are allowed", len(raw), state.MaxOutput), nil
	}
	return "", "", status.Errorf(codes.FailedPrecondition, "its outputs have %d bytes, at most %d are allowed", len(raw), state.MaxOutput)
}

// wrote reports whether an item of a step wrote an output.
func (r *run) wrote(i int) bool {
	return slices.ContainsFunc(r.recs[i], func(rec *nusav1.WorkflowStepRecord) bool { return rec.GetOutput() != "" })
}

// takeWritten puts what the run of an item wrote into the record of its step. The lock is held.
func takeWritten(b *Book, r *run, i, item int, to *nusav1.WorkflowStepRecord) {
	in := innerRun(b, r, i, item)
	if in == nil || to.GetState() != nusav1.StepState_STEP_STATE_SUCCEEDED {
		return
	}
	text, dropped, err := in.written()
	if err == nil && dropped == "" {
		dropped = noRoom(b, r, text)
	}
	to.Message = dropped
	if dropped == "" && err == nil {
		to.Output = text
	}
}

// noRoom says why an output cannot be stored. The lock is held.
func noRoom(b *Book, r *run, text string) string {
	switch {
	case r.bytes+len(text) > mostRunBytes:
		return fmt.Sprintf("its output was dropped: those of a run may have %d bytes", mostRunBytes)
	case b.bytes+len(text) > mostBytes:
		return fmt.Sprintf("its output was dropped: those of all runs may have %d bytes", mostBytes)
	}
	return ""
}

// maxExpanded bounds the values of a step with the outputs in them, in bytes.
const maxExpanded = 64 << 10

// expand replaces the references to outputs in values.
func (r *run) expand(values map[string]string) error {
	sum := 0
	for k, text := range values {
		if !strings.Contains(text, "${steps.") {
			continue
		}
		v, err := steps.Expand(text, r.outputOf)
		sum += len(v)
		switch {
		case err != nil:
			return status.Error(codes.FailedPrecondition, err.Error())
		case len(v) > state.MaxOutput || sum > maxExpanded:
			return status.Errorf(codes.FailedPrecondition, "the value %s with the outputs in it is too large: at most %d bytes, and %d for all values", k, state.MaxOutput, maxExpanded)
		case strings.Contains(v, "${NUSA_"):
			return status.Errorf(codes.FailedPrecondition, "the value %s with the outputs in it contains ${NUSA_, which the agent would replace", k)
		case strings.ContainsRune(v, 0):
			return status.Errorf(codes.FailedPrecondition, "the value %s with the outputs in it contains a zero byte", k)
		}
		values[k] = v
	}
	return nil
}

// resolve sets the items of a step that takes them from the output of another one.
func (r *run) resolve(i int) {
	o, rule := r.def.list[i], &r.snap.Rules[i]
	from, _ := r.def.graph.Index(o.Step)
	if r.snap.Steps[from].End == steps.None {
		rule.Wrong = notEnded(o.Step) // the items stay, so that a retry resets them
		return
	}
	text, err := r.outputOf(o)
	var list []string
	if err == nil {
		if list, err = job.ItemsOfOutput(text); err != nil {
			err = fmt.Errorf("its items are the output %s, which %w", o, err)
		}
	}
	n := max(1, len(list))
	if size := r.total() - len(r.snap.Steps[i].Items) + n; err == nil && size > maxSize {
		err = fmt.Errorf("the output %s has %d items, with which the run would have %d: at most %d are allowed", o, len(list), size, maxSize)
	}
	if err != nil {
		list, n, rule.Wrong = nil, 1, err.Error()
	} else {
		rule.Wrong = ""
	}
	r.items[i], rule.Items = append([]string{}, list...), len(list)
	r.resize(i, n, r.roundOf(from))
}

// roundOf returns the round in which a step was carried out at the latest.
func (r *run) roundOf(i int) (round int32) {
	for _, rec := range append([]*nusav1.WorkflowStepRecord{r.whole[i]}, r.recs[i]...) {
		round = max(round, rec.GetRound())
	}
	return round
}

// resize gives a step so many items. Records from before a round do not count any more, except for the number
// of attempts.
func (r *run) resize(i, n int, round int32) {
	st := &r.snap.Steps[i]
	r.grow(n - len(st.Items))
	for item := n; item < len(st.Items); item++ {
		r.setItem(i, item, flow.Item{}, int(r.recs[i][item].GetAttempts()))
	}
	r.hasRoom(i, n-1)
	st.Items = slices.Grow(st.Items, n)[:n]
	for item := range st.Items {
		rec := r.recs[i][item]
		it := flow.Item{}
		if whole := r.whole[i]; whole != nil && whole.GetRound() >= round {
			it = itemOf(whole)
		} else if rec.GetRound() >= round {
			it = itemOf(rec)
		}
		r.setItem(i, item, it, int(rec.GetAttempts()))
	}
	r.summarize(i)
}

// hasRoom reports whether a step can have an item, and makes room for its record.
func (r *run) hasRoom(i, item int) bool {
	_, grows := r.def.list[i]
	if n := item + 1 - len(r.recs[i]); grows && n > 0 && item < mostListed {
		r.recs[i] = append(r.recs[i], make([]*nusav1.WorkflowStepRecord, n)...)
	}
	return item < len(r.recs[i])
}
