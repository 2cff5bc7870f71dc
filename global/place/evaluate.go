package place

import (
	"cmp"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
)

// evaluator filters and scores the regions for one group. Instances that the plan has placed so far
// count as placed.
type evaluator struct {
	regions   regionList
	ledger    *ledger
	distances *distances
	returns   returnIndex
	terse     bool
	now       time.Duration
	// verdicts is the number of evaluated regions, added up over all groups.
	verdicts int
	index    *Index
	leading  *leader
}

func newEvaluator(s Snapshot) *evaluator {
	return &evaluator{regions: s.Regions, ledger: newLedger(s.Regions), distances: newDistances(s),
		returns: newReturnIndex(s.Returned), terse: s.Terse, now: s.Now, index: s.Index}
}

// leader returns the finder of the best regions for new groups, or nil without an Index.
func (ev *evaluator) leader() *leader {
	if ev.leading == nil && ev.index != nil {
		ev.leading = newLeader(ev, ev.index)
	}
	return ev.leading
}

// pairsPerVerdict is how many distances are looked up in the time of one verdict. matchesPerVerdict
// is how many regions are compared with a selector of labels in that time.
const (
	pairsPerVerdict   = 3
	matchesPerVerdict = 30
)

// effort returns the work of the plan so far, in units of one verdict.
func (ev *evaluator) effort() int {
	return ev.verdicts + ev.distances.pairs/pairsPerVerdict + ev.distances.matches/matchesPerVerdict
}

// nearEffort returns the work of looking up the distances for the near clauses of a job, in units
// of one verdict. A verdict already includes the work of a clause with one target.
func (ev *evaluator) nearEffort(j *Job) int {
	pairs := 0
	var seen []*nearness
	for i := range j.Groups {
		near := j.Groups[i].Regions.Near
		for k := range near {
			known := ev.distances.of(&near[k])
			if !slices.Contains(seen, known) && len(known.targets()) > 1 {
				pairs, seen = pairs+known.ahead(), append(seen, known)
			}
		}
	}
	return pairs / pairsPerVerdict
}

// regionList is a list of regions, sorted by name.
type regionList []*Region

// index returns the position of a region by name, or -1.
func (l regionList) index(name string) int {
	i, ok := slices.BinarySearchFunc(l, name, func(r *Region, name string) int { return cmp.Compare(r.Name, name) })
	if !ok {
		return -1
	}
	return i
}

// of returns the slot's region, or nil if the region is not defined any more.
func (l regionList) of(s *region.Slot) *Region {
	if i := l.index(s.Region); i >= 0 {
		return l[i]
	}
	return nil
}

func (ev *evaluator) newWorks(j *Job, set []*Group) []*work {
	works := make([]*work, 0, len(set))
	for _, g := range set {
		works = append(works, ev.newWork(j, g))
	}
	return works
}

// newWork returns the work of a group, computed from the present slots. Slots that this plan stops
// or revokes do not count as owned.
func (ev *evaluator) newWork(j *Job, g *Group) *work {
	w := &work{job: j, group: g, hash: g.hash(), breached: j.sustained(g)}
	for i := range g.Regions.Near {
		w.near = append(w.near, ev.distances.of(&g.Regions.Near[i]))
	}
	next := 0
	slots := j.slotsOf(g.Name)
	if len(slots)+len(w.breached) > 0 { // a new job has neither, and most jobs of a plan are new
		w.owned, w.leaving = map[string]int{}, map[string]bool{}
	}
	for i := range slots {
		s := &slots[i]
		if j.free(s) {
			continue
		}
		kind, _, _ := j.correct(s, ev.regions.of(s))
		stays := s.Desired == region.DesiredRun && kind != Revoke && (kind != Stop || !s.System)
		if s.System || j.Type == System {
			if s.System && stays {
				w.owned[s.Region] = 1
			}
			continue
		}
		if n := min(s.To, g.Count) - s.From; n > 0 && stays {
			w.owned[s.Region] += n
		}
		w.addFree(next, min(s.From, g.Count))
		next = max(next, s.To)
	}
	if j.Type != System {
		w.addFree(next, g.Count)
	}
	for name := range w.owned {
		if i := ev.regions.index(name); i >= 0 && ev.regions[i].Draining {
			w.leaving[name] = true
		}
	}
	return w
}

// evaluate filters and scores every region for the group. Instances that this plan has placed count
// as owned.
func (ev *evaluator) evaluate(w *work) {
	w.candidates = make([]candidate, len(ev.regions))
	ev.verdicts += len(ev.regions)
	w.wanted = w.n
	matching := 0
	for i := range w.candidates {
		w.candidates[i].index = i
		ev.assess(w, &w.candidates[i])
		if w.candidates[i].reason != ReasonNotAllowed {
			matching++
		}
	}
	w.rule = ruleOf(w.job, w.group, matching)
	ev.sort(w)
}

// assess filters and scores the region of a candidate.
func (ev *evaluator) assess(w *work, c *candidate) {
	r := ev.regions[c.index]
	c.owned = w.owned[r.Name] + w.given[c.index]
	c.weight = w.group.preference(r)
	ev.filter(w, c)
	if c.reason == "" {
		c.terms = ev.terms(w, c, ev.detailed(w))
		c.score = score(c.terms)
	}
}

// detailed reports whether the plan explains each region for the group.
func (ev *evaluator) detailed(w *work) bool { return !ev.terse || w.job.Explain }

// sort orders the candidates. Those that are not refused come first, by score, then room, then
// name; spreadTies orders those with equal scores. Refused candidates follow, by rank.
func (ev *evaluator) sort(w *work) {
	slices.SortFunc(w.candidates, func(a, b candidate) int {
		if (a.reason == "") != (b.reason == "") {
			if a.reason == "" {
				return -1
			}
			return 1
		}
		if a.reason != "" && ev.rank(&a) != ev.rank(&b) {
			return cmp.Compare(ev.rank(&a), ev.rank(&b))
		}
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(b.fits, a.fits), cmp.Compare(a.index, b.index))
	})
	ev.spreadTies(w)
}

// rank returns how far a refused region is from taking an instance. Regions that reported why they
// cannot take one have rank 0. Other regions that lack room, or were not selected, have rank 1. The
// next ranks are, in this order: no report, cordoned or draining, disconnected, too far away, lost
// or never connected, and last not allowed by the job, of too low a feature level, or without a driver that
// accepts the config.
func (ev *evaluator) rank(c *candidate) int {
	neverConnected := ev.regions[c.index].NeverConnected
	switch {
	case c.reason == ReasonNotAllowed, c.reason == ReasonFeatureLevel, c.reason == ReasonConfigInvalid:
		return 7
	case c.reason == ReasonLost, c.reason == ReasonDisconnected && neverConnected:
		return 6
	case c.reason == c.nearReason && c.nearReason != "", c.nearReason == ReasonRTTTooHigh:
		return 5
	case c.reason == ReasonDisconnected, c.reason == ReasonNoCommit:
		return 4
	case c.reason == ReasonCordoned, c.reason == ReasonDraining:
		return 3
	case c.reason == ReasonNoReport:
		return 2
	case c.returned != nil:
		return 0
	}
	return lacksRoom
}

// lacksRoom is the greatest rank of a region that takes no instance for lack of room.
const lacksRoom = 1

// owned returns how many instances of the group a candidate's region has after this plan.
func (ev *evaluator) owned(w *work, c *candidate) int {
	return w.owned[ev.regions[c.index].Name] + w.given[c.index]
}

// used returns how many regions have instances of the group after this plan.
func (ev *evaluator) used(w *work) int {
	n := 0
	for i := range w.candidates {
		if ev.owned(w, &w.candidates[i]) > 0 {
			n++
		}
	}
	return n
}
