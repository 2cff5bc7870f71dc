package place

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"github.com/nusa-scheduler/nusa/global/region"
)

// work is one group whose instances are being placed.
type work struct {
	job   *Job
	group *Group
	hash  uint64
	// near holds the distances of each near clause.
	near []*nearness
	// free are the unowned index ranges [from,to), ascending. n is the number of these indices.
	free [][2]int
	n    int
	// owned is, by region, the number of instances with desired state run. It includes regions that
	// are no longer defined.
	owned map[string]int
	// candidates are all regions: first those that are not refused, the best region first.
	candidates []candidate
	// given is, by index of the region, how many instances this plan placed there. placedAs is the
	// region's candidate at the time of the first of these placements.
	given    map[int]int
	placedAs map[int]candidate
	// room is, by index of the region, the room that is reserved for instances that are being
	// revoked.
	room map[int]int
	// breached is, by region, the first sustained breach.
	breached map[string]*Breach
	// leaving are the regions that the group is being moved out of.
	leaving map[string]bool
	// heldBack is how many instances stay unplaced because spread.min cannot be met.
	heldBack int
	// rule divides the instances. wanted is the number of instances to place. Both are set at the
	// evaluation.
	rule   Rule
	wanted int
	// because, if not empty, is what decides about the instances that are being placed, in place of rule.
	because string
	// without are the regions that get no more instances of the group now: they run instances on
	// disconnected nodes, or are giving instances up.
	without map[string]bool
}

// candidate is one region, evaluated for one group.
type candidate struct {
	index int // position in Snapshot.Regions
	// reason is why the region is refused. It is empty if the region is not refused.
	reason string
	// near is the first required near clause that refuses the region, even if reason is about
	// something else. nearReason is the reason of that clause. distance is the distance that the
	// clause does not allow.
	nearReason string
	near       *Near
	distance   target
	// refusesRest: the region took instances of one version, and refuses the version of those that are left.
	refusesRest bool
	// returned is the refusal that the region reported.
	returned *Returned
	// colocation says which colocated group refused the region, and why.
	colocation string
	// breach is a sustained breach. It is the reason why the region gets no more instances of the
	// group.
	breach *Breach
	fits   int
	exact  bool
	// owned is how many of the group's instances with desired state run are in the region.
	owned  int
	weight int
	// share is the free share of the scarcest resource, as used in the score.
	share float64
	// tied is the number of regions among which the name of the job chooses, including this one; 0:
	// the name does not choose.
	tied int
	// score is the sum of terms. Both are set at the evaluation.
	score float64
	terms []Term
}

// refuse refuses the region for a reason.
func (c *candidate) refuse(reason string) { c.reason, c.score, c.terms = reason, 0, nil }

// why returns one line that says why the region was taken.
func (w *work) why(c *candidate) string {
	decimal := func(b []byte, n float64) []byte { return strconv.AppendFloat(b, n, 'f', 1, 64) }
	out := append(decimal(append(make([]byte, 0, 128), "score "...), c.score), " ("...)
	for i, t := range c.terms {
		if i > 0 {
			out = append(out, ", "...)
		}
		out = decimal(append(append(out, t.Name...), ' '), t.Value)
	}
	out = strconv.AppendInt(append(out, "), fits "...), int64(c.fits), 10)
	switch {
	case w.because != "":
		out = append(append(out, ", "...), w.because...)
	case w.rule.Divide != "":
		out = append(append(out, ", divide "...), w.rule.Divide...)
	}
	if c.tied > 0 && w.because == "" {
		out = strconv.AppendInt(append(out, ", by the job's name among "...), int64(c.tied), 10)
		out = append(out, " equal regions"...)
	}
	return string(out)
}

// note counts n instances that the plan places in the region of a candidate.
func (w *work) note(c *candidate, n int) {
	if w.given == nil {
		w.given, w.placedAs = map[int]int{}, map[int]candidate{}
	}
	if w.given[c.index] == 0 {
		w.placedAs[c.index] = *c
	}
	w.given[c.index] += n
}

func (w *work) addFree(from, to int) {
	if from < to {
		w.free = append(w.free, [2]int{from, to})
		w.n += to - from
	}
}

// setFree replaces the free ranges.
func (w *work) setFree(ranges [][2]int) {
	w.free, w.n = nil, 0
	for _, r := range ranges {
		w.addFree(r[0], r[1])
	}
}

// byVersion returns the free ranges that get the present version, and those that get Job.Stable.
func (w *work) byVersion() (present, earlier [][2]int) {
	for _, r := range w.free {
		for from := r[0]; from < r[1]; {
			part := [2]int{from, w.job.sameVersion(w.group, from, r[1])}
			if version, _ := w.job.versionOf(w.group, from); version == w.job.Version {
				present = append(present, part)
			} else {
				earlier = append(earlier, part)
			}
			from = part[1]
		}
	}
	return present, earlier
}

// cutFree removes the first n indices from the free ranges, and returns them.
func (w *work) cutFree(n int) (out [][2]int) {
	for n > 0 && len(w.free) > 0 {
		r := &w.free[0]
		k := min(n, r[1]-r[0])
		out = append(out, [2]int{r[0], r[0] + k})
		n -= k
		r[0] += k
		if r[0] == r[1] {
			w.free = w.free[1:]
		}
	}
	return out
}

// canariesOnly leaves only the canaries in the free ranges. It returns the other ranges, and the number of canaries.
func (w *work) canariesOnly() (others [][2]int, n int) {
	all, first := w.free, w.group.CanaryFrom
	w.free = nil
	for _, r := range all {
		if middle := min(r[1], max(r[0], first)); r[0] < middle {
			others = append(others, [2]int{r[0], middle})
			r[0] = middle
		}
		if r[0] < r[1] {
			w.free = append(w.free, r)
			n += r[1] - r[0]
		}
	}
	return others, n
}

// canaryCounts returns, by index of the region, how many canaries of the group have a region.
func (w *work) canaryCounts(regions regionList) map[int]int {
	out := map[int]int{}
	for _, s := range w.job.slotsOf(w.group.Name) {
		if i := regions.index(s.Region); i >= 0 && s.From >= w.group.CanaryFrom && s.Desired == region.DesiredRun {
			out[i] += s.Count()
		}
	}
	return out
}

// inTurn returns the positions of the candidates that run the group and have room, in the order of the job. Those
// that the order does not list come after all others, the best first.
func (w *work) inTurn(regions regionList) (out []int) {
	runs := map[int]bool{}
	for _, s := range w.job.slotsOf(w.group.Name) {
		runs[regions.index(s.Region)] = runs[regions.index(s.Region)] || s.From < w.group.CanaryFrom && s.Desired == region.DesiredRun
	}
	for i := range w.candidates {
		if c := &w.candidates[i]; c.reason == "" && c.fits > 0 && runs[c.index] {
			out = append(out, i)
		}
	}
	turn := func(i int) int { return w.job.RegionOrder.turn(regions[w.candidates[i].index].Name) }
	slices.SortStableFunc(out, func(a, b int) int { return cmp.Compare(turn(a), turn(b)) })
	return out
}

// desired returns the size of the whole group.
func (w *work) desired() int { return w.group.Count }

// refusal returns why no node of a region accepts the config of the version that the unowned instances get, or of one
// of the versions that they get; or "". If every instance has an owner, the versions of all count: one of them may
// move.
func (w *work) refusal(at string) string {
	present, stable := w.group.Refused[at], w.group.RefusedStable[at]
	if stable == "" && (present == "" || w.job.Stable == nil) {
		return present
	}
	free := w.free
	if len(free) == 0 {
		free = [][2]int{{0, w.group.Count}}
	}
	for _, r := range free {
		for i := r[0]; i < r[1]; i = w.job.sameVersion(w.group, i, r[1]) {
			why := stable
			if version, _ := w.job.versionOf(w.group, i); version == w.job.Version {
				why = present
			}
			if why != "" {
				return why
			}
		}
	}
	return ""
}

// options returns the candidates that are not refused, in their order. usedElsewhere is the number
// of other regions that have instances of the group.
func (w *work) options() (options []option, usedElsewhere int) {
	used := 0
	for name, n := range w.owned {
		if n > 0 && !w.leaving[name] {
			used++
		}
	}
	for _, c := range w.candidates {
		if w.given[c.index] > 0 && c.owned == w.given[c.index] {
			used++
		}
		if c.reason != "" {
			continue
		}
		options = append(options, option{fits: c.fits, owned: c.owned, weight: c.weight})
		if c.owned > 0 {
			used--
		}
	}
	return options, used
}

// homes returns the indices of the regions that have instances of the group.
func (w *work) homes() map[int]bool {
	out := map[int]bool{}
	for _, c := range w.candidates {
		if c.owned+w.given[c.index] > 0 {
			out[c.index] = true
		}
	}
	return out
}

// refuseAll refuses every region that has room, reserved or not, because of a colocated group.
func (w *work) refuseAll(colocation string) {
	for i := range w.candidates {
		if c := &w.candidates[i]; c.reason == "" || c.reason == ReasonNoCapacity && w.room[c.index] > 0 {
			c.refuse(ReasonColocation)
			c.colocation = colocation
		}
	}
}

// released returns the unowned ranges that were released after a revoke, ascending.
func (w *work) released() (out [][2]int) {
	for _, f := range w.group.Released {
		for _, r := range w.free {
			if from, to := max(f.From, r[0]), min(f.To, r[1]); from < to {
				out = append(out, [2]int{from, to})
			}
		}
	}
	slices.SortFunc(out, func(a, b [2]int) int { return cmp.Compare(a[0], b[0]) })
	for i := len(out) - 1; i > 0; i-- { // merge ranges, because an index may be reported twice
		if out[i][0] < out[i-1][1] {
			out[i-1][1] = max(out[i-1][1], out[i][1])
			out = slices.Delete(out, i, i+1)
		}
	}
	return out
}

// releasedBy returns the regions that released instances which still have no owner.
func (w *work) releasedBy() map[string]bool {
	out := map[string]bool{}
	for _, f := range w.group.Released {
		if slices.ContainsFunc(w.free, func(r [2]int) bool { return max(f.From, r[0]) < min(f.To, r[1]) }) {
			out[f.Region] = true
		}
	}
	return out
}

// copies returns copies of the groups, for a trial of a placement.
func copies(works []*work) []*work {
	out := make([]*work, len(works))
	for i, w := range works {
		out[i] = w.copy()
	}
	return out
}

func (w *work) copy() *work {
	c := *w
	c.free, c.candidates = slices.Clone(w.free), slices.Clone(w.candidates)
	c.given, c.placedAs, c.owned = maps.Clone(w.given), maps.Clone(w.placedAs), maps.Clone(w.owned)
	return &c
}

// unplaced returns how many instances of all groups have no owner.
func unplaced(works []*work) int {
	n := 0
	for _, w := range works {
		n += w.n
	}
	return n
}
