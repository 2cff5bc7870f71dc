package workflows

import (
	"slices"
	"strconv"
	"strings"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/job"
)

// retried reports whether a failed job is an attempt of a step after which the step is tried again. known is false
// until the runs are read. The lock is held.
func retried(b *Book, k state.JobKey) (again, known bool) {
	switch {
	case !job.OfStep(k.Name):
		return false, true
	case !b.loaded:
		return false, false
	}
	r := b.runs[runOf(k)]
	if r == nil {
		return false, true
	}
	i, item, attempt, ok := r.attemptOf(k.Name)
	for ok && !r.again(i, item, attempt) { // perhaps the step whose run this is is tried again
		outer := outerOf(b, r)
		if outer == nil {
			return false, true
		}
		i, item, attempt, ok = attemptIn(b, outer, r)
		r = outer
	}
	return ok, true
}

// runAgain returns the job of the latest attempt of the step that a job belongs to, if that attempt is later: of the
// same run, or of a later run of the same inner workflow. The lock is held.
func runAgain(b *Book, k state.JobKey) (as state.JobKey, is bool) {
	r := b.runs[runOf(k)]
	if !job.OfStep(k.Name) || r == nil {
		return as, false
	}
	i, item, attempt, ok := r.attemptOf(k.Name)
	var path []itemAt // from the step of the job outwards
	for ok {
		path = append(path, itemAt{r.def.graph.Steps[i].Name, item})
		if int(r.recs[i][item].GetAttempts()) > attempt {
			return latestAt(b, r, path)
		}
		outer := outerOf(b, r)
		if outer == nil {
			break
		}
		i, item, attempt, ok = attemptIn(b, outer, r)
		r = outer
	}
	return as, false
}

// itemAt is an item of a step.
type itemAt struct {
	step string
	item int
}

// latestAt returns the job of the latest attempt of an item inside a run. The first element of the path is the item of
// the job, and the last one is in the run itself.
func latestAt(b *Book, r *run, path []itemAt) (as state.JobKey, is bool) {
	for n, at := range slices.Backward(path) {
		i, known := r.def.graph.Index(at.step)
		if !known || at.item >= len(r.recs[i]) || r.recs[i][at.item].GetAttempts() == 0 {
			return state.JobKey{}, false
		}
		as = r.childKey(i, at.item, int(r.recs[i][at.item].GetAttempts()))
		if n == 0 {
			return as, true
		}
		r = b.runs[as]
		if r == nil {
			return state.JobKey{}, false
		}
	}
	return state.JobKey{}, false
}

// again reports whether an attempt that has failed, or fails now, is followed by another one.
func (r *run) again(i, item, attempt int) bool {
	return r.snap.Rules[i].Followed(r.snap.Phase, r.snap.Steps[i].Items[item], attempt, int(r.recs[i][item].GetAttempts()))
}

// attemptOf is the inverse of childName.
func (r *run) attemptOf(name string) (i, item, attempt int, ok bool) {
	rest, found := strings.CutPrefix(name, r.key.Name+job.StepMark)
	if !found {
		return 0, 0, 0, false
	}
	parts := strings.Split(rest, job.StepMark)
	i, ok = r.def.byJob[parts[0]]
	if !ok {
		return 0, 0, 0, false
	}
	attempt = 1
	for _, p := range parts[1:] {
		n, err := strconv.Atoi(p[min(1, len(p)):])
		switch {
		case err != nil:
			return 0, 0, 0, false
		case p[0] == 'i':
			item = n
		case p[0] == 'r':
			attempt = n
		}
	}
	return i, item, attempt, item >= 0 && item < len(r.snap.Steps[i].Items) && name == r.childName(i, item, attempt)
}
