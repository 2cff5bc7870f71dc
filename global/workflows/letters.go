package workflows

import (
	"strconv"
	"strings"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/workflows/flow"
	"github.com/nusa-scheduler/nusa/job"
	"github.com/nusa-scheduler/nusa/job/steps"
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

// again reports whether an attempt that has failed, or fails now, is followed by another one.
func (r *run) again(i, item, attempt int) bool {
	if latest := int(r.recs[i][item].GetAttempts()); attempt != latest {
		return attempt < latest
	}
	switch it := r.snap.Steps[i].Items[item]; it.Stage {
	case flow.Backoff:
		return true
	case flow.Active:
		return (r.snap.Phase == flow.Running || r.snap.Phase == flow.Exiting) && r.snap.Rules[i].Again(it, steps.Failed)
	}
	return false
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
