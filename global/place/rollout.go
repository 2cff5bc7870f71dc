package place

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/plant"
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
	// Ended is the number of instances that are complete or have failed, and Open the number of the
	// others that the region must run. Waiting of them wait only because as many run as Group.Parallel allows.
	Ended, Open, Waiting int
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

// rolloutStages returns the regions whose slots of a job wait, sorted by name, and the regions in which
// the rollout has just ended. A job with a RegionOrder has rules of its own: see orderedStages.
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
func rolloutStages(all regionList, now time.Duration, j *Job) (stages []RolloutStage, ends []RegionEnd) {
	regions := rollingRegions(all, j)
	if len(regions) == 0 {
		return nil, nil
	}
	patience := time.Duration(0)
	for i := range j.Groups {
		patience = max(patience, j.Groups[i].OnDisconnect.After)
	}
	if j.RegionOrder != nil {
		stages, ends = j.orderedStages(regions, now, patience)
	} else {
		stages = j.boundedStages(regions, now, patience)
	}
	slices.SortFunc(stages, func(a, b RolloutStage) int { return cmp.Compare(a.Region, b.Region) })
	return stages, ends
}

// boundedStages returns the regions whose slots wait in a job without a RegionOrder, in no order.
func (j *Job) boundedStages(regions []*rollingRegion, now, patience time.Duration) (stages []RolloutStage) {
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
		if !r.silent(now, patience) && !r.converged(j) && (len(r.old) == 0 || !r.Connected) {
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
		case j.RolloutHold != "" && !plant.Is(plant.HoldForgotten):
			wait(r, j.RolloutHold)
		case r.refusal(j) != "":
			wait(r, r.refusal(j))
		case failed != "":
			wait(r, fmt.Sprintf("version %d failed in region %s: it goes no further", j.Version, failed))
		case group != "":
			wait(r, fmt.Sprintf("version %d waits for %s to be done", j.Version, regionsNamed(busy[group])))
		default:
			charge(r)
		}
	}
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
	if j.RegionOrder != nil {
		j.addOrdered(restarting)
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
	return kind == Update && j.Type != Batch && s.JobVersion < g.UnchangedSince && s.OfRun(j.Run) && (g.MaxParallel > 0 || j.Type != System || j.RegionOrder != nil)
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

// refusal returns why the version cannot run in the region, or "". The region then keeps the earlier version of
// all groups, until one of its nodes accepts the config.
func (r *rollingRegion) refusal(j *Job) string {
	for _, g := range slices.Sorted(maps.Keys(r.old)) {
		if why := j.group(g).Refused[r.Name]; why != "" {
			return fmt.Sprintf("version %d cannot run there: %s", j.Version, why)
		}
	}
	return ""
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

// RegionOrder says how a new version goes from region to region. Nobody may change it.
type RegionOrder struct {
	// MaxParallel is how many regions are updated at a time, at least 1.
	MaxParallel int
	// First are the regions that come first, in this order.
	First []string
	// Continue: the next regions get the version even if it failed in a region.
	Continue bool
	// PauseBetween is the time from the end of the rollout in a region to its start in the next one.
	PauseBetween time.Duration
	// Stored: the rollout is stored. A region is then done when Ended says so.
	Stored bool
	// Ended has the regions in which the rollout has ended: why the version failed there, or "".
	Ended map[string]string
	// PauseLeft is how long no further region gets the version, because the rollout has just ended
	// in the region After.
	PauseLeft time.Duration
	After     string
}

// RegionEnd says that a region has completed its part of a rollout, or that the version failed there.
type RegionEnd struct {
	Namespace, Job, Region string
	Version                int64
	// Failed says why the version failed. Empty: every instance in the region runs it.
	Failed string
}

// String prints, for example, "done default/api at osaka: version 3 runs there".
func (e RegionEnd) String() string {
	if e.Failed != "" {
		return fmt.Sprintf("failed %s/%s at %s: %s", e.Namespace, e.Job, e.Region, e.Failed)
	}
	return fmt.Sprintf("done %s/%s at %s: version %d runs there", e.Namespace, e.Job, e.Region, e.Version)
}

// rolledOut returns the latest version that changed the work of a group; 0: none did.
func (j *Job) rolledOut() (version int64) {
	for i := range j.Groups {
		version = max(version, j.Groups[i].UnchangedSince)
	}
	return version
}

// addOrdered adds the groups whose rollout has reached all regions to the groups that take part in a
// rollout: a region gets a version with all groups at once, and is done with all groups at once.
func (j *Job) addOrdered(restarting map[string]bool) {
	version := j.rolledOut()
	for i := range j.Groups {
		if j.Groups[i].UnchangedSince == version {
			restarting[j.Groups[i].Name] = true
		}
	}
}

// turn returns the place of a region in the order, from 0 on. Regions that the order does not list come
// after all others, and their turns are equal.
func (o *RegionOrder) turn(name string) int {
	if i := slices.Index(o.First, name); i >= 0 {
		return i
	}
	return len(o.First)
}

// place says why a region gets a canary.
func (o *RegionOrder) place(name string) string {
	if turn := o.turn(name); turn < len(o.First) {
		return fmt.Sprintf("a canary, place %d in update.regions.order", turn+1)
	}
	return "a canary, after the regions of update.regions.order"
}

// orderedStages returns the regions whose slots wait in a job with a RegionOrder, in no order, and the
// regions in which the rollout has ended since the plan before.
//
// A region occupies one of the MaxParallel places from its first slot of the version until every
// instance in it is healthy. A region in which the version failed, that is lost, or that has been
// disconnected for longer than patience occupies none. A listed region that is disconnected for a
// shorter time holds up the regions after it.
func (j *Job) orderedStages(regions []*rollingRegion, now, patience time.Duration) (stages []RolloutStage, ends []RegionEnd) {
	o := j.RegionOrder
	var pending []*rollingRegion
	var busy []string
	failed := ""
	for _, r := range regions {
		why, ended := o.Ended[r.Name]
		complete := len(r.old) == 0
		switch {
		case !complete:
			pending = append(pending, r)
			if !r.Connected && !r.silent(now, patience) && !r.converged(j) {
				busy = append(busy, r.Name) // it may still be replacing instances, even by an earlier version
			}
		case ended && why != "" && !plant.Is(plant.ContinueForgotten) || ended && r.converged(j) || r.silent(now, patience):
		case r.converged(j) || o.Continue && r.failed():
			if o.Stored {
				end := RegionEnd{Namespace: j.Namespace, Job: j.Name, Region: r.Name, Version: j.Version}
				if !r.converged(j) {
					end.Failed = r.failure(j)
				}
				ends = append(ends, end)
				busy = append(busy, r.Name) // until the end is stored, because the pause begins with it
			}
		default:
			busy = append(busy, r.Name)
			if failed == "" && r.failed() {
				failed = r.Name
			}
		}
	}
	slices.SortStableFunc(pending, func(a, b *rollingRegion) int {
		if plant.Is(plant.TurnForgotten) {
			return cmp.Compare(a.Name, b.Name)
		}
		return cmp.Or(cmp.Compare(o.turn(a.Name), o.turn(b.Name)), cmp.Compare(a.rank(j), b.rank(j)))
	})
	awaited := ""
	for _, r := range pending {
		why := ""
		switch {
		case !r.Connected:
			why = fmt.Sprintf("version %d waits until the region reconnects", j.Version)
			if awaited == "" && o.turn(r.Name) < len(o.First) && !r.silent(now, patience) {
				awaited = r.Name
			}
		case j.RolloutHold != "":
			why = j.RolloutHold
		case r.refusal(j) != "": // it takes no place, and holds up no other region
			why = r.refusal(j)
		case failed != "":
			why = fmt.Sprintf("version %d failed in region %s: it goes no further", j.Version, failed)
		case len(busy) >= max(1, o.MaxParallel) && !plant.Is(plant.RegionsAtOnce):
			why = fmt.Sprintf("version %d waits for %s to be done", j.Version, regionsNamed(busy))
		case awaited != "":
			why = fmt.Sprintf("version %d waits for region %s, which comes first and is disconnected", j.Version, awaited)
		case o.PauseLeft > 0 && !plant.Is(plant.PauseForgotten):
			why = fmt.Sprintf("version %d waits for the end of the pause after region %s", j.Version, o.After)
		default:
			busy = append(busy, r.Name)
			continue
		}
		stages = append(stages, RolloutStage{Namespace: j.Namespace, Job: j.Name, Region: r.Name, Why: why})
	}
	return stages, ends
}

// silent reports whether the rollout does not wait for the region any longer. A region that was declared lost and is
// back gets the version in its turn, so the others wait for it.
func (r *rollingRegion) silent(now, patience time.Duration) bool {
	return !r.Connected && (r.Lost || r.disconnectedFor(now) > patience)
}

// failure says, in one line, why the version failed in the region.
func (r *rollingRegion) failure(j *Job) string {
	for _, g := range slices.Sorted(maps.Keys(r.n)) {
		if n := r.summary.Groups[g].Failed; n > 0 {
			return fmt.Sprintf("%s: %d of %d instances failed", g, n, r.n[g])
		}
	}
	return fmt.Sprintf("version %d failed", j.Version)
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
	case (r.AllRunning || plant.Is(plant.UnprovenKept)) && r.Healthy != r.Version:
		return RolloutSetHealthy, fmt.Sprintf("every instance runs version %d", r.Version)
	case !r.Failed || r.Healthy == 0:
		return RolloutWait, ""
	case r.SameSpec:
		return RolloutForgetHealthy, fmt.Sprintf("version %d, which was healthy, has failed: %s", r.Healthy, r.Why)
	case !r.AutoRevert || plant.Is(plant.RevertForgotten):
		return RolloutWait, ""
	}
	return RolloutRevert, fmt.Sprintf("version %d failed: %s", r.Version, r.Why)
}
