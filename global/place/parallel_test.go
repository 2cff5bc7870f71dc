package place

import (
	"fmt"
	"math/rand"
	"strings"
	"testing"

	"github.com/nusa-scheduler/nusa/global/region"
)

// TestSharesWaitForWhatLeaves: a share grows only after the region that had it has confirmed that its instances
// have stopped, whichever slot of that region the share was stored with.
func TestSharesWaitForWhatLeaves(t *testing.T) {
	slot := func(at string, from, to, parallel int, desired region.Desired) region.Slot {
		return region.Slot{Job: "sum", Group: "part", From: from, To: to, Region: at, Parallel: parallel, Desired: desired, State: region.Accepted}
	}
	const run, leaves, stop = region.DesiredRun, region.DesiredRevoke, region.DesiredStop
	regions := regionList{{Name: "lost", Lost: true}, {Name: "osa"}, {Name: "sea"}}
	done := slot("osa", 0, 2, 0, leaves)
	done.State = region.Done
	for name, test := range map[string]struct {
		parallel int
		slots    []region.Slot
		want     string
	}{
		"the slot with the share is confirmed, another one is not": {2, []region.Slot{slot("osa", 0, 2, 0, leaves), slot("sea", 2, 6, 0, run)}, ""},
		"one instance still stops":                                 {2, []region.Slot{slot("osa", 0, 1, 0, leaves), slot("sea", 2, 6, 0, run)}, "sea 1"},
		"all instances have stopped":                               {2, []region.Slot{slot("sea", 2, 6, 0, run)}, "sea 2"},
		"what leaves has ended":                                    {2, []region.Slot{done, slot("sea", 2, 6, 0, run)}, "sea 2"},
		"a part of a slot leaves":                                  {3, []region.Slot{slot("osa", 0, 4, 3, run), slot("osa", 4, 5, 3, leaves)}, ""},
		"a share shrinks while a part leaves":                      {3, []region.Slot{slot("osa", 0, 2, 3, run), slot("osa", 2, 3, 3, leaves), slot("sea", 3, 5, 0, run)}, "osa 2"},
		"that part has left":                                       {3, []region.Slot{slot("osa", 0, 2, 2, run), slot("sea", 2, 5, 0, run)}, "sea 1"},
		"the region may keep what leaves":                          {3, []region.Slot{slot("osa", 0, 1, 3, leaves), slot("sea", 1, 5, 0, run)}, ""},
		"what leaves is in a lost region":                          {2, []region.Slot{slot("lost", 0, 2, 2, leaves), slot("sea", 2, 6, 0, run)}, "sea 2"},
		"a lost region must stop what had no share":                {2, []region.Slot{slot("lost", 6, 12, 0, stop), slot("sea", 2, 6, 0, run)}, "sea 2"},
		"a lost region must stop what had a share":                 {2, []region.Slot{slot("lost", 6, 12, 1, stop), slot("sea", 2, 6, 0, run)}, "sea 1"},
		"what stops in a region never runs again":                  {2, []region.Slot{slot("osa", 6, 7, 2, stop), slot("sea", 2, 6, 0, run)}, "sea 1"},
		"a lost region has a share, and its slot may move":         {2, []region.Slot{slot("lost", 0, 2, 2, run), slot("sea", 2, 6, 0, run)}, "lost 0, sea 2"},
		"one of two slots of a lost region may move":               {3, []region.Slot{slot("lost", 0, 2, 0, run), slot("lost", 6, 7, 3, run), slot("sea", 2, 6, 0, run)}, "lost 1, sea 2"},
		"a lost region has a share, and its slot stays there":      {2, []region.Slot{slot("lost", 6, 8, 2, run), slot("sea", 2, 6, 0, run)}, ""},
		"nobody needs the share of a lost region":                  {2, []region.Slot{slot("lost", 0, 2, 2, run)}, ""},
		"the slot with the share leaves, and others stay":          {3, []region.Slot{slot("osa", 0, 2, 0, run), slot("osa", 2, 3, 3, leaves), slot("sea", 3, 6, 0, run)}, "osa 2"},
		"that slot has left":                                       {3, []region.Slot{slot("osa", 0, 2, 2, run), slot("sea", 2, 6, 0, run)}, "sea 1"},
		"parallel became smaller":                                  {1, []region.Slot{slot("osa", 0, 4, 2, run), slot("osa", 4, 5, 2, leaves)}, "osa 1"},
	} {
		j := &Job{Name: "sum", Type: Batch, Groups: []Group{{Name: "part", Count: 6, Parallel: test.parallel}}, Slots: test.slots,
			Movable: []Movable{{Group: "part", Region: "lost", From: 0, To: 2}}}
		var got []string
		for _, a := range shares(j, regions, nil) {
			got = append(got, fmt.Sprint(a.Region, " ", a.Parallel))
		}
		if out := strings.Join(got, ", "); out != test.want {
			t.Errorf("%s: the shares become %q, want %q", name, out, test.want)
		}
	}
}

// TestSharesKnowTheNewestVersion: an instance that has failed is tried again with a new version. So a summary from before the
// region has the version does not say how many instances have not ended.
func TestSharesKnowTheNewestVersion(t *testing.T) {
	for _, test := range []struct {
		version, summary int64
		want             string
	}{{1, 1, "osa 1, sea 1"}, {2, 1, ""}, {2, 2, "osa 1, sea 1"}, {2, 0, "osa 1, sea 1"}} {
		slot := func(at string, from, to, parallel int, version int64, state region.SlotState) region.Slot {
			return region.Slot{Job: "sum", Group: "part", From: from, To: to, Region: at, Parallel: parallel, JobVersion: version, Desired: region.DesiredRun, State: state}
		}
		j := &Job{Name: "sum", Type: Batch, Version: test.version, Groups: []Group{{Name: "part", Count: 6, Parallel: 2}},
			Slots:     []region.Slot{slot("osa", 0, 2, 0, 1, region.Done), slot("osa", 2, 5, 2, test.version, region.Accepted), slot("sea", 5, 6, 0, test.version, region.Accepted)},
			Summaries: []Summary{{Region: "osa", Version: test.summary, Groups: map[string]GroupCounts{"part": {Live: 5, Ended: 4, Open: 1}}}}}
		var got []string
		for _, a := range shares(j, regionList{{Name: "osa"}, {Name: "sea"}}, nil) {
			got = append(got, fmt.Sprint(a.Region, " ", a.Parallel))
		}
		if out := strings.Join(got, ", "); out != test.want {
			t.Errorf("version %d, reported %d: the shares become %q, want %q", test.version, test.summary, out, test.want)
		}
	}
}

// TestSharesNeverExceedParallel: whatever regions begin, as far as their shares allow, end and get, and
// whichever share is written first, at most the total runs at once. In the end everything has run.
func TestSharesNeverExceedParallel(t *testing.T) {
	for seed := range int64(300) {
		r := rand.New(rand.NewSource(seed))
		total := 1 + r.Intn(12)
		all := make([]regionShare, 1+r.Intn(5))
		left, running := make([]int, len(all)), make([]int, len(all))
		stop := make([]int, len(all)) // instances that leave the region and still run
		waiting := 0
		for i := range all {
			left[i] = r.Intn(40)
			waiting += left[i]
		}
		for step := 0; waiting > 0; step++ {
			if step > 10_000 {
				t.Fatalf("seed %d: %d instances never run", seed, waiting)
			}
			// The summaries of some regions are older than others.
			want := make([]regionShare, len(all))
			copy(want, all)
			for i := range want {
				if r.Intn(3) > 0 || step%10 == 0 || all[i].open < left[i] {
					all[i].open, want[i].open = left[i], left[i]
				}
			}
			divideParallel(want, total)
			for _, i := range r.Perm(len(all)) { // the writes arrive in any order
				all[i].has = want[i].has
				now := 0
				for k := range all {
					running[k] = max(running[k], min(all[k].has-stop[k], left[k]))
					now += running[k] + stop[k]
				}
				if now > total {
					t.Fatalf("seed %d: %d of %d run at once: %+v", seed, now, total, all)
				}
			}
			for i := range all {
				n := 0
				if running[i] > 0 {
					n = r.Intn(running[i] + 1)
				}
				running[i], left[i], waiting = running[i]-n, left[i]-n, waiting-n
			}
			if from, to := r.Intn(len(all)), r.Intn(len(all)); step < 200 && all[from].leaves == 0 && left[from] > 0 && r.Intn(4) == 0 { // a part leaves
				n := 1 + r.Intn(left[from])
				stop[from] = min(n, running[from])
				all[from].leaves, running[from], left[from] = n, running[from]-stop[from], left[from]-n
			} else if all[from].leaves > 0 && r.Intn(2) == 0 { // the region confirms
				n := all[from].leaves
				all[from].leaves, stop[from] = 0, 0
				left[to] += n
			}
			if at := r.Intn(len(all)); step < 20 && r.Intn(4) == 0 { // a further slot
				n := r.Intn(10)
				left[at], waiting = left[at]+n, waiting+n
			}
		}
	}
}
