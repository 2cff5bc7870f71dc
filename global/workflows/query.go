package workflows

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/nusa-scheduler/nusa/global/workflows/flow"
	"github.com/nusa-scheduler/nusa/internal/filter"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/job/steps"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// maxPage bounds a page, and pageBytes the outputs in it.
const maxPage, pageBytes = 1000, 1 << 20

func pageOf(limit int32) (int, error) {
	if limit < 0 || limit > maxPage {
		return 0, invalid("limit", "must be 0..%d", maxPage)
	}
	return int(cmp.Or(limit, maxPage)), nil
}

// List implements nusav1.WorkflowsServer.
func (s *Service) List(ctx context.Context, req *nusav1.ListWorkflowRunsRequest) (*nusav1.ListWorkflowRunsResponse, error) {
	limit, err := pageOf(req.GetLimit())
	if err != nil {
		return nil, err
	}
	if err := filter.CheckEnum(req.GetStates()); err != nil {
		return nil, err
	}
	b, err := s.book(ctx)
	if err != nil {
		return nil, err
	}
	call := rights.Of(ctx)
	filtered := call.Filtered()
	b.st.Lock()
	defer b.st.Unlock()
	found := filter.NewFirst[*run](limit+1, req.GetPageToken())
	for k, runs := range b.byWorkflow {
		if req.GetNamespace() != "" && k.Namespace != req.GetNamespace() || req.GetWorkflow() != "" && k.Name != req.GetWorkflow() {
			continue
		}
		if filtered && !call.May(k.Namespace, "") {
			continue
		}
		for _, r := range runs {
			if r.forgetting || req.GetParent() != r.rec.GetRun().GetParent() || !selected(req, r) {
				continue
			}
			if key := r.key.String(); found.Wants(key) {
				found.Add(key, r)
			}
		}
	}
	out := &nusav1.ListWorkflowRunsResponse{}
	first, next := found.Page()
	for _, r := range first {
		out.Runs = append(out.Runs, messageOf(b, r))
	}
	out.NextPageToken = next
	return out, nil
}

// selected reports whether a run has a state and the labels that a request asks for. The lock is held.
func selected(req *nusav1.ListWorkflowRunsRequest, r *run) bool {
	is := r.rec.GetRun().GetState()
	every := req.GetState() == 0 && len(req.GetStates()) == 0
	return (every || is == req.GetState() || slices.Contains(req.GetStates(), is)) && filter.Labels(r.def.spec.GetLabels(), req.GetLabels())
}

// Get implements nusav1.WorkflowsServer.
func (s *Service) Get(ctx context.Context, req *nusav1.GetWorkflowRunRequest) (*nusav1.WorkflowRunStatus, error) {
	limit, err := pageOf(req.GetLimit())
	if err != nil {
		return nil, err
	}
	b, r, err := s.found(ctx, req.GetRun())
	if err != nil {
		return nil, err
	}
	first, from, to := 0, 0, len(r.def.graph.Steps)
	if token := req.GetPageToken(); token != "" {
		if n, err := fmt.Sscanf(token, "%d.%d", &from, &first); n != 2 || err != nil || from < 0 || first < 0 {
			return nil, rpcerr.NoPage("page_token", token)
		}
	}
	b.st.Lock()
	defer b.st.Unlock()
	if req.GetStep() != "" {
		var step string
		if r, step, err = at(b, r, "step", req.GetStep()); err != nil {
			return nil, err
		}
		i, _ := r.def.graph.Index(step)
		from, to = max(from, i), i+1
	}
	bytes := 0
	out := &nusav1.WorkflowRunStatus{Run: messageOf(b, r)}
	if r.rec.GetRun().GetState() == nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_SUCCEEDED {
		out.Run.Output, _, _ = r.written() // an error shows at the step that began the run
	}
	for i := from; i < to; i++ {
		for item := first; item < len(r.snap.Steps[i].Items); item++ {
			st := r.status(i, item)
			if why := waitsFor(b, r, i, item); why != "" {
				st.Message = why
			}
			if req.GetState() != 0 && st.GetState() != req.GetState() {
				continue
			}
			if len(out.GetSteps()) == limit {
				out.NextPageToken = strconv.Itoa(i) + "." + strconv.Itoa(item)
				return out, nil
			}
			if bytes += len(st.GetOutput()); bytes > pageBytes && len(out.GetSteps()) > 0 {
				out.NextPageToken = strconv.Itoa(i) + "." + strconv.Itoa(item)
				return out, nil
			}
			out.Steps = append(out.Steps, st)
			if st.Index == nil {
				break
			}
		}
		first = 0
	}
	return out, nil
}

// status returns an item of a step. A step whose items share one record has a status without an index. The
// lock is held.
func (r *run) status(i, item int) *nusav1.StepStatus {
	rec := r.recs[i][item]
	out := &nusav1.StepStatus{Step: r.def.graph.Steps[i].Name}
	if whole := r.whole[i]; whole != nil {
		rec = whole
	} else if len(r.items[i]) > 0 {
		index := int32(item)
		out.Index, out.Item = &index, r.items[i][item]
	}
	out.State, out.Message, out.Attempts, out.Began, out.Ended, out.Until = rec.GetState(), rec.GetMessage(), rec.GetAttempts(), rec.GetBegan(), rec.GetEnded(), rec.GetUntil()
	out.Output = rec.GetOutput()
	if out.GetState() == nusav1.StepState_STEP_STATE_UNSPECIFIED {
		out.State = nusav1.StepState_STEP_STATE_PENDING
	}
	if out.GetState() == nusav1.StepState_STEP_STATE_PENDING && r.past(i) {
		out.State, out.Message = nusav1.StepState_STEP_STATE_CANCELED, "did not run: the run was canceled"
		if out.GetAttempts() > 0 {
			out.Message = "did not run again: the run was canceled"
		}
	}
	switch {
	case out.GetAttempts() > 0 && r.inner(i):
		out.Run = r.childName(i, item, int(out.GetAttempts()))
	case out.GetAttempts() > 0:
		out.Job = r.childName(i, item, int(out.GetAttempts()))
	}
	return out
}

// past reports whether a step that has not begun will not begin, because the run has ended, or only on_exit still
// runs. Only a canceled run has such steps. No record says that: a retry may begin them. The lock is held.
func (r *run) past(i int) bool {
	return !r.live() || r.snap.Phase == flow.Exiting && i != r.def.graph.OnExit
}

// over returns the number of steps that have ended, with those that will not begin. The lock is held.
func (r *run) over() (n int) {
	for i := range r.snap.Steps {
		n += one(r.snap.Steps[i].End != steps.None || r.past(i))
	}
	return n
}

// Graph implements nusav1.WorkflowsServer.
func (s *Service) Graph(ctx context.Context, req *nusav1.GetWorkflowGraphRequest) (*nusav1.WorkflowGraph, error) {
	b, r, err := s.found(ctx, req.GetRun())
	if err != nil {
		return nil, err
	}
	b.st.Lock()
	defer b.st.Unlock()
	out := &nusav1.WorkflowGraph{Run: messageOf(b, r)}
	for i, of := range r.def.graph.Steps {
		g := &nusav1.GraphStep{Name: of.Name, After: of.Depends.Steps(), Depends: r.def.steps[i].GetDepends(), OnExit: i == r.def.graph.OnExit, State: r.stateOf(i)}
		g.Workflow = r.innerOf(i)
		if g.GetWorkflow() != "" && r.items[i] == nil && r.recs[i][0].GetAttempts() > 0 {
			g.Run = r.childName(i, 0, int(r.recs[i][0].GetAttempts()))
		}
		if r.items[i] != nil {
			g.Items = int32(len(r.items[i]))
			for _, it := range r.snap.Steps[i].Items[:len(r.items[i])] {
				g.ItemsEnded += int32(one(it.Stage == flow.Done || it.Stage == flow.Idle && r.past(i)))
			}
		}
		out.Steps = append(out.Steps, g)
	}
	return out, nil
}

// stateOf returns the state of a step. The lock is held.
func (r *run) stateOf(i int) nusav1.StepState {
	st := r.snap.Steps[i]
	if end, has := endStates[st.End]; has {
		return end
	}
	best := nusav1.StepState_STEP_STATE_PENDING
	if r.past(i) {
		best = nusav1.StepState_STEP_STATE_CANCELED
	}
	for item := range st.Items {
		switch s := r.status(i, item).GetState(); s {
		case nusav1.StepState_STEP_STATE_RUNNING:
			return s
		case nusav1.StepState_STEP_STATE_APPROVAL, nusav1.StepState_STEP_STATE_STOPPING, nusav1.StepState_STEP_STATE_BACKOFF:
			best = s
		}
	}
	return best
}
