package place

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
)

// Summary is what a region said last of its part of a job.
type Summary struct {
	Region string
	// Version and Run that the counts are about, as in a summary: the oldest of
	// what the region holds. Both 0 = it is too old to say, and is believed.
	Version, Run int64
	Groups       map[string]GroupCounts
}

// GroupCounts counts a group's instances in a region.
type GroupCounts struct {
	// Live is how many there are in any state; Pending, Failed and Busy (they
	// start, or are of an earlier version) are some of them.
	Live, Pending, Failed, Busy int
}

// RolloutStage is a region whose slots wait with a new version, as those of other
// regions are rewritten.
type RolloutStage struct {
	Namespace, Job, Region string
	Why                    string
}

// String prints "wait default/api at osaka: version 3 waits for region nagoya to be done".
func (s RolloutStage) String() string {
	return fmt.Sprintf("wait %s/%s at %s: %s", s.Namespace, s.Job, s.Region, s.Why)
}

// rollingRegion is a region in a rollout.
type rollingRegion struct {
	*Region
	// n instances that shall run, by restarting group; held those of them that
	// wait for room by order.
	n, held map[string]int
	// old are the groups of which it has slots that the version restarts.
	old map[string]bool
	// begun: it has slots of the new work. oldest is the earliest version.
	begun   bool
	oldest  int64
	summary *Summary
}

// rolloutStages says which regions' slots of a job wait, and why. max_parallel is the
// group's, not each region's: a new version that restarts what runs goes to a
// region only if, with the regions that are being updated, no more than
// max_parallel instances of any of its groups can be away; a region by itself
// takes away no more than that of those it has. It is all said by the slots and
// what regions tell of them, so any active server goes on where another was.
//
// Regions in which something is in disorder have the first turn, since there the
// version takes least away and may be the remedy; then those with some of the
// version; then by name.
func (p *planner) rolloutStages(j *Job) map[string]string {
	regions := p.rolling(j)
	if len(regions) == 0 {
		return nil
	}
	patience := time.Duration(0)
	for i := range j.Groups {
		patience = max(patience, j.Groups[i].OnDisconnect.After)
	}
	busy, charged, failed := map[string][]string{}, map[string]int{}, ""
	charge := func(r *rollingRegion) {
		for g, n := range r.n {
			busy[g] = append(busy[g], r.Name)
			charged[g] += min(n, j.group(g).parallel())
		}
	}
	var todo []*rollingRegion
	for _, r := range regions {
		if len(r.old) > 0 {
			todo = append(todo, r)
		}
		// One that is cut off may still be at it, in an earlier version even.
		silent := r.Lost || !r.Connected && r.DisconnectedFor > patience
		if !silent && !r.converged(j) && (len(r.old) == 0 || !r.Connected) {
			charge(r)
			if failed == "" && len(r.old) == 0 && r.failed() {
				failed = r.Name
			}
		}
	}
	slices.SortStableFunc(todo, func(a, b *rollingRegion) int { return cmp.Compare(a.rank(j), b.rank(j)) })
	waits := map[string]string{}
	for _, r := range todo {
		group := r.crowded(j, charged)
		switch {
		case !r.Connected:
			waits[r.Name] = fmt.Sprintf("version %d waits for the region to be back: it is disconnected", j.Version)
		case failed != "":
			waits[r.Name] = fmt.Sprintf("version %d failed in region %s: it goes no further", j.Version, failed)
		case group != "":
			waits[r.Name] = fmt.Sprintf("version %d waits for %s to be done", j.Version, regionsNamed(busy[group]))
		default:
			charge(r)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(waits)) {
		p.plan.RolloutStages = append(p.plan.RolloutStages, RolloutStage{Namespace: j.Namespace, Job: j.Name, Region: name, Why: waits[name]})
	}
	return waits
}

// rollingRegion are the regions with slots of groups that the present version
// restarts, by name; none where nothing is left to be rewritten.
func (p *planner) rolling(j *Job) (out []*rollingRegion) {
	restarting := map[string]bool{}
	for i := range j.Slots {
		if s := &j.Slots[i]; p.at(s) != nil && j.restarts(s, p.at(s)) {
			restarting[s.Group] = true
		}
	}
	if len(restarting) == 0 {
		return nil
	}
	byName := map[string]*rollingRegion{}
	for i := range j.Slots {
		s := &j.Slots[i]
		at := p.at(s)
		if kind, _, _ := j.correct(s, at); at == nil || !restarting[s.Group] || s.Desired != region.DesiredRun || kind == Stop && s.From >= j.group(s.Group).Count && !s.System || kind == Revoke {
			continue
		}
		r := byName[s.Region]
		if r == nil {
			r = &rollingRegion{Region: at, n: map[string]int{}, held: map[string]int{}, old: map[string]bool{}, oldest: s.JobVersion, summary: j.summaryOf(s.Region)}
			byName[s.Region] = r
		}
		n := s.Count()
		if s.System && r.summary != nil {
			n = max(1, r.summary.Groups[s.Group].Live)
		}
		r.n[s.Group] += n
		if s.Hold > 0 {
			r.held[s.Group] += n
		}
		r.oldest = min(r.oldest, s.JobVersion)
		if j.restarts(s, at) {
			r.old[s.Group] = true
		} else {
			r.begun = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		out = append(out, byName[name])
	}
	return out
}

// restarts says that the present version rewrites the slot, restarts what runs
// of it, and has to wait for its turn.
func (j *Job) restarts(s *region.Slot, r *Region) bool {
	kind, _, _ := j.correct(s, r)
	g := j.group(s.Group)
	return kind == Update && j.Type != Batch && s.JobVersion < g.UnchangedSince && s.OfRun(j.Run) && (g.MaxParallel > 0 || j.Type != System)
}

func (g *Group) parallel() int { return max(1, g.MaxParallel) }

func (j *Job) summaryOf(name string) *Summary {
	i, ok := slices.BinarySearchFunc(j.Summaries, name, func(t Summary, name string) int { return cmp.Compare(t.Region, name) })
	if !ok {
		return nil
	}
	return &j.Summaries[i]
}

// converged says that the region has spoken of the slots as they are, and that
// everything of them is up. What is out of sight on lost nodes, or waits for
// room by order, holds nobody up.
func (r *rollingRegion) converged(j *Job) bool {
	if r.summary == nil || (r.summary.Version != 0 || r.summary.Run != 0) && (r.summary.Version < r.oldest || r.summary.Run != 0 && r.summary.Run != j.Run && j.Run != 0) {
		return false
	}
	for g, n := range r.n {
		t := r.summary.Groups[g]
		missing := max(0, n-t.Live)
		if t.Failed+t.Busy > 0 || t.Pending+missing > r.held[g] {
			return false
		}
	}
	return true
}

// failed says that instances were given up, in the version that the slots have.
func (r *rollingRegion) failed() bool {
	if r.summary == nil || r.summary.Version < r.oldest {
		return false
	}
	for g := range r.n {
		if r.summary.Groups[g].Failed > 0 {
			return true
		}
	}
	return false
}

func (r *rollingRegion) rank(j *Job) int {
	switch {
	case !r.converged(j):
		return 0
	case r.begun:
		return 1
	}
	return 2
}

// crowded is the first group of which more than max_parallel could be away,
// were the region updated too; empty if there is none.
func (r *rollingRegion) crowded(j *Job, charged map[string]int) string {
	for _, g := range slices.Sorted(maps.Keys(r.old)) {
		if most := j.group(g).parallel(); charged[g] > 0 && charged[g]+min(r.n[g], most) > most {
			return g
		}
	}
	return ""
}

// regionsNamed is "region nagoya", or a few of more.
func regionsNamed(names []string) string {
	switch {
	case len(names) == 1:
		return "region " + names[0]
	case len(names) > maxNamed:
		return "regions " + strings.Join(names[:maxNamed], ", ") + " and others"
	}
	return "regions " + strings.Join(names, ", ")
}
