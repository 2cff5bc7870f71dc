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

// Summary is a region's latest report about its part of a job.
type Summary struct {
	Region string
	// Version and Run say what the counts are about: the oldest version and run that the region
	// holds. If both are 0, the region's software is too old to report them, and the counts are
	// taken as current.
	Version, Run int64
	Groups       map[string]GroupCounts
}

// GroupCounts counts the instances of a group in a region.
type GroupCounts struct {
	// Live is the number of instances in any state. Pending, Failed and Busy (starting, or of an
	// earlier version) are included in it.
	Live, Pending, Failed, Busy int
}

// RolloutStage is a region whose slots wait for a new version while slots of other regions are
// rewritten.
type RolloutStage struct {
	Namespace, Job, Region string
	Why                    string
}

// String prints, for example, "wait default/api at osaka: version 3 waits for region nagoya to be
// done".
func (s RolloutStage) String() string {
	return fmt.Sprintf("wait %s/%s at %s: %s", s.Namespace, s.Job, s.Region, s.Why)
}

// rollingRegion is a region that takes part in a rollout.
type rollingRegion struct {
	*Region
	// n is, for each group that restarts, the number of instances with desired state run. held is
	// the number of these instances that are in slots with a Hold and wait for room.
	n, held map[string]int
	// old are the groups with slots in this region that the version restarts.
	old map[string]bool
	// begun: the region has slots of the new version. oldest is the earliest version of its slots.
	begun   bool
	oldest  int64
	summary *Summary
}

// rolloutStages returns the regions whose slots of a job wait, sorted by name.
//
// max_parallel bounds the whole group, not each region. A new version that restarts instances goes
// to a region only if at most max_parallel instances of any group can then be down, counted over
// all regions that are being updated. A single region never takes down more than max_parallel
// instances.
//
// Regions with instances that do not run go first: the version takes least down there, and may be
// the fix. Then follow regions that have begun with the version, and then the others by name.
//
// Everything is computed from the slots and the regions' summaries. So a new active server
// continues where the previous one stopped.
func rolloutStages(all regionList, now time.Duration, j *Job) (stages []RolloutStage) {
	regions := rollingRegions(all, j)
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
	var pending []*rollingRegion
	for _, r := range regions {
		if len(r.old) > 0 {
			pending = append(pending, r)
		}
		// A disconnected region may still be updating, even to an earlier version.
		silent := r.Lost || !r.Connected && r.disconnectedFor(now) > patience
		if !silent && !r.converged(j) && (len(r.old) == 0 || !r.Connected) {
			charge(r)
			if failed == "" && len(r.old) == 0 && r.failed() {
				failed = r.Name
			}
		}
	}
	slices.SortStableFunc(pending, func(a, b *rollingRegion) int { return cmp.Compare(a.rank(j), b.rank(j)) })
	wait := func(r *rollingRegion, why string) {
		stages = append(stages, RolloutStage{Namespace: j.Namespace, Job: j.Name, Region: r.Name, Why: why})
	}
	for _, r := range pending {
		group := r.crowded(j, charged)
		switch {
		case !r.Connected:
			wait(r, fmt.Sprintf("version %d waits until the region reconnects", j.Version))
		case j.RolloutHold != "":
			wait(r, j.RolloutHold)
		case failed != "":
			wait(r, fmt.Sprintf("version %d failed in region %s: it goes no further", j.Version, failed))
		case group != "":
			wait(r, fmt.Sprintf("version %d waits for %s to be done", j.Version, regionsNamed(busy[group])))
		default:
			charge(r)
		}
	}
	slices.SortFunc(stages, func(a, b RolloutStage) int { return cmp.Compare(a.Region, b.Region) })
	return stages
}

// rollingRegions returns the regions with slots of groups that the present version restarts, sorted
// by name. It returns none if no slot remains to be rewritten.
func rollingRegions(all regionList, j *Job) (out []*rollingRegion) {
	restarting := map[string]bool{}
	for i := range j.Slots {
		if s := &j.Slots[i]; all.of(s) != nil && j.restarts(s, all.of(s)) {
			restarting[s.Group] = true
		}
	}
	if len(restarting) == 0 {
		return nil
	}
	byName := map[string]*rollingRegion{}
	for i := range j.Slots {
		s := &j.Slots[i]
		at := all.of(s)
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

// restarts reports whether the present version rewrites the slot, restarts its instances, and has
// to wait for its turn.
func (j *Job) restarts(s *region.Slot, r *Region) bool {
	kind, _, _ := j.correct(s, r)
	g := j.group(s.Group)
	if g != nil && g.CanaryFrom > 0 && s.From >= g.CanaryFrom {
		return false
	}
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

// converged reports whether the region's summary is about its present slots, and everything runs.
// Instances that are pending, or missing in the summary, count as converged up to the number that
// waits for room in slots with a Hold.
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

// failed reports whether instances of the slots' present version have failed for good.
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

// crowded returns the first group that could have more than max_parallel instances down if the
// region were updated now, or "" if there is none.
func (r *rollingRegion) crowded(j *Job, charged map[string]int) string {
	for _, g := range slices.Sorted(maps.Keys(r.old)) {
		if most := j.group(g).parallel(); charged[g] > 0 && charged[g]+min(r.n[g], most) > most {
			return g
		}
	}
	return ""
}

// regionsNamed returns, for example, "region nagoya", or the names of the first few regions.
func regionsNamed(names []string) string {
	switch {
	case len(names) == 1:
		return "region " + names[0]
	case len(names) > maxNamed:
		return fmt.Sprintf("regions %s and %d more", strings.Join(names[:maxNamed], ", "), len(names)-maxNamed)
	}
	return "regions " + strings.Join(names, ", ")
}

// Rollout holds the facts about a job's present version that decide whether to revert the version.
type Rollout struct {
	Version int64
	// Healthy is the latest version of the run whose instances all ran; 0: none is known.
	Healthy int64
	// SameSpec: the healthy version and the present one have equal specs.
	SameSpec bool
	// Failed: instances of the present version have failed for good. Why describes the failure in
	// one line.
	Failed bool
	Why    string
	// AllRunning: every instance runs in the present version.
	AllRunning bool
	// AutoRevert: a group with failed instances has update.auto_revert.
	AutoRevert bool
}

// RolloutDecision says what to do about a rollout.
type RolloutDecision string

const (
	// RolloutWait keeps the stored healthy version, and waits.
	RolloutWait RolloutDecision = "keep"
	// RolloutSetHealthy stores the present version as the healthy one.
	RolloutSetHealthy RolloutDecision = "remember"
	// RolloutForgetHealthy removes the stored healthy version, because it has failed too.
	RolloutForgetHealthy RolloutDecision = "forget"
	// RolloutRevert submits the healthy version again.
	RolloutRevert RolloutDecision = "revert"
)

// Decide returns the decision with its reason. A version is reverted once. Its replacement has the
// spec of the healthy version. If that fails as well, no version is left to revert to.
func (r Rollout) Decide() (RolloutDecision, string) {
	switch {
	case r.AllRunning && r.Healthy != r.Version:
		return RolloutSetHealthy, fmt.Sprintf("every instance runs version %d", r.Version)
	case !r.Failed || r.Healthy == 0:
		return RolloutWait, ""
	case r.SameSpec:
		return RolloutForgetHealthy, fmt.Sprintf("version %d, which was healthy, has failed: %s", r.Healthy, r.Why)
	case !r.AutoRevert:
		return RolloutWait, ""
	}
	return RolloutRevert, fmt.Sprintf("version %d failed: %s", r.Version, r.Why)
}
