package placer

import (
	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/state"
)

const (
	// fullPlanJobs and fullPlanVerdicts are the most jobs, and groups times regions, for which
	// a plan explains every region. Beyond them an explanation is made when a caller asks.
	fullPlanJobs     = 64
	fullPlanVerdicts = 4096
	// verdictsRetained bounds the verdicts about regions that all stored explanations have,
	// some 300 bytes each.
	verdictsRetained = 50_000
)

// explainsAll says whether a plan of these jobs explains every region.
func explainsAll(jobs []place.Job, regions int) bool {
	groups := 0
	for i := range jobs {
		groups += len(jobs[i].Groups)
	}
	return len(jobs) <= fullPlanJobs && groups*regions <= fullPlanVerdicts
}

// explanations counts the stored verdicts about regions. The state's lock guards it.
type explanations struct {
	// verdicts of each job. order has the same jobs, the oldest explanation first.
	verdicts map[state.JobKey]int
	order    []state.JobKey
	total    int
}

// note counts the verdicts about a job after a change, and drops the oldest beyond the bound.
func (e *explanations) note(st *state.State, k state.JobKey) {
	n := 0
	for _, d := range st.Jobs[k].Decisions {
		n += len(d.Regions)
	}
	was, known := e.verdicts[k]
	if !known && n > 0 {
		e.order = append(e.order, k)
	}
	if known || n > 0 {
		e.verdicts[k] = n
		e.total += n - was
	}
	for e.total > verdictsRetained || len(e.order) > verdictsRetained {
		e.drop(st, e.order[0])
		e.order = e.order[1:]
	}
}

// drop removes the verdicts of a job. What else the decisions say stays.
func (e *explanations) drop(st *state.State, k state.JobKey) {
	e.total -= e.verdicts[k]
	delete(e.verdicts, k)
	j := st.Jobs[k]
	if j == nil {
		return
	}
	for i := range j.Decisions {
		d := &j.Decisions[i]
		d.Regions, d.Full = nil, false
	}
}
