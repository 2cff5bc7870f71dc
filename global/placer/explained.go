package placer

import (
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/state"
)

const (
	// fullPlanJobs bounds the jobs of a plan that explains every region, and fullPlanVerdicts
	// bounds its groups times regions. For a larger plan, an explanation is made when a caller asks
	// for it.
	fullPlanJobs     = 64
	fullPlanVerdicts = 4096
	// verdictsRetained bounds the verdicts about regions in all stored explanations. A verdict
	// takes some 300 bytes.
	verdictsRetained = 25_000
	// verdictEvery and verdictsAhead bound the verdicts that are made with submits before a caller
	// asks for them. A verdict takes some 2 µs, so they take one per cent of a core.
	verdictEvery  = 200 * time.Microsecond
	verdictsAhead = 2048 * verdictEvery
)

// explainsAll reports whether a plan of these jobs explains every region.
func explainsAll(jobs []place.Job, regions int) bool {
	groups := 0
	for i := range jobs {
		groups += len(jobs[i].Groups)
	}
	return len(jobs) <= fullPlanJobs && groups*regions <= fullPlanVerdicts
}

// explanations counts the stored verdicts about regions. The state's lock guards it.
type explanations struct {
	// verdicts is the number of verdicts of each job. order has the same jobs, the oldest
	// explanation first.
	verdicts map[state.JobKey]int
	order    []state.JobKey
	total    int
	// busy is the time up to which the verdicts that were made with submits count: see afford.
	busy time.Duration
}

// afford reports whether a transaction of submits may explain its jobs with this many verdicts. While
// many jobs are submitted, most explanations are left until a caller asks for them.
func (e *explanations) afford(verdicts int, now time.Duration) bool {
	next := max(e.busy, now) + time.Duration(verdicts)*verdictEvery
	if next-now > verdictsAhead {
		return false
	}
	e.busy = next
	return true
}

// note counts the verdicts about a job after a change. Beyond the bound it drops the oldest
// verdicts.
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

// drop removes the verdicts of a job. The other parts of the decisions stay.
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
	j.Decisions.Trim()
}
