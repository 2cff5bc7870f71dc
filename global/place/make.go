package place

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/topology"
)

// planner is a plan in the making.
type planner struct {
	snap        Snapshot
	ledger      *ledger
	distances   *distances
	returned    map[askIn]*Returned
	backoffs    map[groupIn]*Returned
	lastReturns map[groupIn]*Returned
	// disconnected are the groups, by the sets that belong together, of jobs with
	// instances that are away.
	disconnected map[*Job][][]*work
	// works are the groups, by the sets that belong together, of jobs to which
	// room was promised.
	works map[*Job][][]*work
	plan  Plan
}

// MakePlan decides. Its cost grows with the jobs that need work times the
// regions, and only slightly with quiet jobs.
func MakePlan(s Snapshot) Plan {
	p := &planner{snap: s, ledger: newLedger(s.Regions), distances: newDistances(s), returned: lastReturnsByAsk(s.Returned), backoffs: backoffs(s.Returned), lastReturns: lastReturns(s.Returned), disconnected: map[*Job][][]*work{}, works: map[*Job][][]*work{}}
	p.assume()
	todo := jobsWithWork(s.Jobs)
	for _, j := range todo {
		p.reserveReclaimed(j)
	}
	for _, j := range todo {
		p.decide(j)
	}
	for _, j := range todo {
		p.reclaim(j)
	}
	return p.plan
}

// region finds a region by name, -1 if there is none.
func (p *planner) region(name string) int {
	i, ok := slices.BinarySearchFunc(p.snap.Regions, name, func(r Region, name string) int { return cmp.Compare(r.Name, name) })
	if !ok {
		return -1
	}
	return i
}

// at is the slot's region, nil if it is not defined any more.
func (p *planner) at(s *region.Slot) *Region {
	if i := p.region(s.Region); i >= 0 {
		return &p.snap.Regions[i]
	}
	return nil
}

// assume charges regions for slots that their reports do not include yet.
func (p *planner) assume() {
	for i := range p.snap.Jobs {
		j := &p.snap.Jobs[i]
		for _, s := range j.Slots {
			r := p.region(s.Region)
			if r < 0 || s.Generation <= p.snap.Regions[r].SlotsRevision || s.State == region.Done {
				continue
			}
			g := j.group(s.Group)
			if g == nil {
				continue
			}
			n := s.Count()
			if s.System {
				n = p.snap.Regions[r].NodesReady // one on each node that fits
			}
			p.ledger.charge(r, g.Ask, g.Ask.Hash(), n)
		}
	}
}

// jobsWithWork leaves out the quiet ones and puts the most urgent first.
func jobsWithWork(jobs []Job) []*Job {
	var out []*Job
	for i := range jobs {
		if jobs[i].Explain || !jobs[i].quiet() {
			out = append(out, &jobs[i])
		}
	}
	slices.SortFunc(out, func(a, b *Job) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Revision, b.Revision),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// quiet says that every index has an owner that wants the right thing. System
// jobs are never quiet: a new region may have come.
func (j *Job) quiet() bool {
	if !j.Stopped && j.Type == System {
		return false
	}
	covered := 0
	for i := range j.Slots {
		if kind, _, _ := j.correct(&j.Slots[i], nil); kind != "" {
			return false
		}
		if g := j.group(j.Slots[i].Group); g != nil && !j.Slots[i].System {
			covered += max(0, min(j.Slots[i].To, g.Count)-j.Slots[i].From)
		}
	}
	if j.Stopped {
		return true
	}
	if len(j.Disconnected) > 0 || slices.ContainsFunc(j.Slots, func(s region.Slot) bool { return s.Desired == region.DesiredRevoke }) {
		return false
	}
	if slices.ContainsFunc(j.Breaches, func(b Breach) bool { return b.State == topology.Sustained }) {
		return false
	}
	for i := range j.Groups {
		covered -= j.Groups[i].Count
	}
	return covered == 0 // slots never overlap
}

// correct says what an existing slot needs, and why; kind "" = nothing. With
// r, the slot's region, a new version of the job may also leave that region.
func (j *Job) correct(s *region.Slot, r *Region) (kind Kind, reason, why string) {
	if s.Desired == region.DesiredStop || s.Desired == region.DesiredRevoke && !j.Stopped {
		return "", "", ""
	}
	g := j.group(s.Group)
	switch {
	case j.Stopped:
		return Stop, ReasonStoppedByUser, "the job was stopped"
	case g == nil:
		return Stop, ReasonSuperseded, fmt.Sprintf("version %d has no group %s", j.Version, s.Group)
	case s.System != (j.Type == System):
		return Stop, ReasonSuperseded, fmt.Sprintf("version %d is a %s job", j.Version, j.Type)
	case !s.System && s.From >= g.Count:
		return Stop, ReasonOutOfRange, fmt.Sprintf("count is %d", g.Count)
	case s.JobVersion != j.Version && (s.State != region.Done || s.JobVersion < g.UnchangedSince), !s.OfRun(j.Run):
		if r == nil || allowed(g.Regions.Allow, r) {
			return Update, "", fmt.Sprintf("version %d → %d", s.JobVersion, j.Version)
		}
		why = fmt.Sprintf("version %d does not allow %s", j.Version, r.Name)
		if s.System {
			return Stop, ReasonNotAllowed, why
		}
		return Revoke, ReasonNotAllowed, why
	case !s.System && s.To > g.Count:
		return Stop, ReasonOutOfRange, fmt.Sprintf("count is %d", g.Count)
	}
	return "", "", ""
}

func (j *Job) group(name string) *Group {
	i, ok := slices.BinarySearchFunc(j.Groups, name, func(g Group, name string) int { return cmp.Compare(g.Name, name) })
	if !ok {
		return nil
	}
	return &j.Groups[i]
}

// slotsOf a group; they are sorted by group.
func (j *Job) slotsOf(group string) []region.Slot {
	i, _ := slices.BinarySearchFunc(j.Slots, group, func(s region.Slot, name string) int { return cmp.Compare(s.Group, name) })
	k := i
	for k < len(j.Slots) && j.Slots[k].Group == group {
		k++
	}
	return j.Slots[i:k]
}

// decide plans one job: first what it has, then what it lacks.
func (p *planner) decide(j *Job) {
	waits := p.rolloutStages(j)
	for i := range j.Slots {
		p.act(j, &j.Slots[i], waits[j.Slots[i].Region] != "")
	}
	if j.Stopped {
		return
	}
	for i, set := range j.sets() {
		var works []*work
		if begun := p.works[j]; begun != nil {
			works = begun[i]
		} else {
			works = p.newWorks(j, set)
		}
		switch {
		case j.Type == System:
			for _, w := range works {
				p.placeSystem(w)
				p.stay(w, "a system job runs wherever it can")
			}
		case len(works) == 1:
			p.placeGroup(works[0])
		default:
			if s := p.pendingRevoke(works); s != nil {
				p.wait(works, s)
			} else {
				p.placeSet(works)
			}
			for _, w := range works {
				p.stay(w, "groups that belong together are not moved for latency")
			}
		}
		for _, w := range works {
			if w.n > 0 || len(w.given) > 0 || j.Explain {
				p.explain(w)
			}
		}
		if len(j.Disconnected) > 0 {
			p.disconnected[j] = append(p.disconnected[j], works)
		}
	}
}

// act adds the action that an existing slot needs, if any. Where its region
// waits with the version, what is out of range stops all the same.
func (p *planner) act(j *Job, s *region.Slot, waits bool) {
	kind, reason, why := j.correct(s, p.at(s))
	if waits && j.restarts(s, p.at(s)) {
		if kind = ""; !s.System && s.To > j.group(s.Group).Count {
			kind, reason, why = Stop, ReasonOutOfRange, fmt.Sprintf("count is %d", j.group(s.Group).Count)
		}
	}
	a := Action{
		Kind: kind, Namespace: j.Namespace, Job: j.Name, Group: s.Group, From: s.From, To: s.To,
		Region: s.Region, JobVersion: s.JobVersion, Run: j.Run, Slot: *s, System: s.System, Reason: reason, Why: why,
	}
	outside := false
	if g := j.group(s.Group); g != nil && !s.System {
		outside = s.To > g.Count && s.From < g.Count
	}
	switch {
	case kind == "":
		return
	case kind == Update:
		a.JobVersion = j.Version
		if outside {
			a.To = j.group(s.Group).Count
			a.Why += fmt.Sprintf(", and stop %s: count is %d", region.FormatRange(a.To, s.To), a.To)
		}
	case kind == Stop && reason == ReasonOutOfRange && outside:
		a.From = j.group(s.Group).Count
	}
	p.plan.Actions = append(p.plan.Actions, a)
}

// sets are the groups of a job that are placed together: joined by colocate,
// else each alone. Ordered by their first group.
func (j *Job) sets() [][]*Group {
	root := make([]int, len(j.Groups))
	for i := range root {
		root[i] = i
	}
	find := func(i int) int {
		for root[i] != i {
			i = root[i]
		}
		return i
	}
	for _, names := range j.Colocate {
		first := -1
		for _, name := range names {
			i := slices.IndexFunc(j.Groups, func(g Group) bool { return g.Name == name && g.Count > 0 })
			switch {
			case i < 0:
			case first < 0:
				first = i
			default:
				a, b := find(first), find(i)
				root[max(a, b)] = min(a, b)
			}
		}
	}
	at := map[int]int{}
	var sets [][]*Group
	for i := range j.Groups {
		r := find(i)
		k, ok := at[r]
		if !ok {
			k = len(sets)
			at[r] = k
			sets = append(sets, nil)
		}
		sets[k] = append(sets[k], &j.Groups[i])
	}
	return sets
}
