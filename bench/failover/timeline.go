package failover

import (
	"slices"
	"time"
)

// alive is how long after the latest time in its file a task counts as running. It is much
// longer than writeEvery, because a busy host may delay a write.
const alive = 300 * time.Millisecond

// run is one process of an instance, from its first to its latest written time.
type run struct {
	region      string
	index       int
	epoch       string
	first, last time.Duration
}

// running returns the runs that are alive at the given time.
func running(runs []run, now time.Duration) []run {
	return slices.DeleteFunc(slices.Clone(runs), func(r run) bool { return now-r.last > alive })
}

// indicesIn returns the indices of the runs in a region, ascending, each once.
func indicesIn(runs []run, region string) []int {
	var out []int
	for _, r := range runs {
		if r.region == region {
			out = append(out, r.index)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// movedAfter returns the time from the cut of a region until all of the indices ran
// outside that region. It returns false while one of them has not run elsewhere yet.
func movedAfter(runs []run, indices []int, region string, cut time.Duration) (time.Duration, bool) {
	latest := time.Duration(0)
	for _, index := range indices {
		first, found := time.Duration(0), false
		for _, r := range runs {
			if r.index == index && r.region != region && r.last >= cut && (!found || r.first < first) {
				first, found = r.first, true
			}
		}
		if !found {
			return 0, false
		}
		latest = max(latest, first-cut)
	}
	return latest, true
}

// twice returns the longest time for which two runs of one index overlapped. Only the time
// that follows after counts.
func twice(runs []run, after time.Duration) time.Duration {
	longest := time.Duration(0)
	for i, a := range runs {
		for _, b := range runs[i+1:] {
			if a.index == b.index {
				longest = max(longest, min(a.last, b.last)-max(a.first, b.first, after))
			}
		}
	}
	return longest
}

// once reports whether each of the indices 0..count−1 has exactly one living run now.
func once(runs []run, count int, now time.Duration) bool {
	seen := make([]int, count)
	for _, r := range running(runs, now) {
		if r.index >= count {
			return false
		}
		seen[r.index]++
	}
	return !slices.ContainsFunc(seen, func(n int) bool { return n != 1 })
}

// missing counts the indices without a living run.
func missing(runs []run, count int, now time.Duration) int {
	seen := map[int]bool{}
	for _, r := range running(runs, now) {
		seen[r.index] = true
	}
	return count - len(seen)
}

// changedAfter returns the time between from and the latest begin or end of a run. It is 0
// if no run began or ended after from. A run that is alive now has not ended.
func changedAfter(runs []run, from, now time.Duration) time.Duration {
	last := from
	for _, r := range runs {
		if now-r.last > alive {
			last = max(last, r.last)
		}
		last = max(last, r.first)
	}
	return last - from
}
