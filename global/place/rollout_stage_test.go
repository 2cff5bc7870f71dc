package place

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
	"pgregory.net/rapid"
)

// summary records what a region reports about a group. By default all of the
// group runs in the version of its slots.
func (w *world) summary(args []string) {
	job, group, _ := strings.Cut(args[0], "/")
	j, t := w.find(job), GroupCounts{}
	sum := Summary{Region: args[1], Run: j.Run, Groups: map[string]GroupCounts{}}
	for _, s := range j.Slots {
		if s.Region == args[1] {
			sum.Version = max(sum.Version, s.JobVersion)
			if s.Group == group {
				t.Live += s.Count()
			}
		}
	}
	for _, a := range args[2:] {
		key, value, _ := strings.Cut(a, "=")
		n, _ := strconv.Atoi(value)
		switch key {
		case "v":
			sum.Version = int64(n)
		case "live":
			t.Live = n
		case "pending":
			t.Pending = n
		case "failed":
			t.Failed = n
		case "busy":
			t.Busy = n
		case "ended":
			t.Ended = n
		case "open":
			t.Open = n
		case "waiting":
			t.Waiting = n
		}
	}
	j.report(sum, group, t)
}

func (j *Job) report(sum Summary, group string, t GroupCounts) {
	j.Summaries = slices.Clone(j.Summaries)
	if old := j.summaryOf(sum.Region); old != nil {
		maps.Copy(sum.Groups, old.Groups)
		*old = sum
	} else {
		j.Summaries = append(j.Summaries, sum)
		slices.SortFunc(j.Summaries, func(a, b Summary) int { return cmp.Compare(a.Region, b.Region) })
	}
	j.summaryOf(sum.Region).Groups[group] = t
}

// site is a region in a rollout: it receives its slots some time later, and updates
// its instances max_parallel at a time.
type site struct {
	// has is the version of each instance; 0 = it is down now.
	has []int64
	// being is the version that a down instance will have next; 0 = none.
	being   []int64
	version int64 // the latest version that the region received
	failing bool
}

func (s *site) down() (n int) {
	for _, v := range s.has {
		if v == 0 {
			n++
		}
	}
	return n
}

func (s *site) counts() GroupCounts {
	t := GroupCounts{Live: len(s.has)}
	for _, v := range s.has {
		switch {
		case v == 0 && s.failing:
			t.Failed++
		case v == 0, v != s.version:
			t.Busy++
		}
	}
	return t
}

// step starts instances, if it can, and stops others.
func (s *site) step(parallel int, up bool) {
	for i, v := range s.has {
		if v == 0 && up && !s.failing {
			s.has[i] = s.being[i]
		}
	}
	for i, v := range s.has {
		if v != 0 && v != s.version && s.down() < parallel {
			s.has[i] = 0
		}
		if s.has[i] == 0 {
			s.being[i] = s.version
		}
	}
}

// TestRolloutKeepsMaxParallel: whatever regions do, and however late they
// report it, a rollout takes down no more than max_parallel instances of the
// group in connected regions. If all instances get healthy, the last version
// reaches all regions.
func TestRolloutKeepsMaxParallel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, sites := newWorld(), map[string]*site{}
		parallel := rapid.IntRange(1, 4).Draw(t, "parallel")
		_ = w.job("api", nil)
		j := w.find("api")
		j.Groups = []Group{{Name: "web", MaxParallel: parallel, Ask: Ask{CPUMilli: 1}, OnDisconnect: OnDisconnect{After: time.Minute}}}
		g := &j.Groups[0]
		for i := range rapid.IntRange(1, 5).Draw(t, "regions") {
			name, n := fmt.Sprintf("r%d", i), rapid.IntRange(1, 5).Draw(t, "n")
			_ = w.region(name, []string{"fits=0"})
			sites[name] = &site{has: slices.Repeat([]int64{1}, n), being: make([]int64, n), version: 1}
			w.write(j, []region.Change{{Slot: region.Slot{Namespace: "default", Job: "api", Group: "web", From: g.Count, To: g.Count + n,
				Region: name, State: region.Accepted, Desired: region.DesiredRun, JobVersion: 1}}})
			g.Count += n
			j.report(Summary{Region: name, Version: 1, Groups: map[string]GroupCounts{}}, "web", sites[name].counts())
		}
		names := slices.Sorted(maps.Keys(sites))
		take := func(name string) {
			for _, s := range j.Slots {
				if s.Region == name {
					sites[name].version = s.JobVersion
				}
			}
		}
		tell := func(name string) {
			j.report(Summary{Region: name, Version: sites[name].version, Groups: map[string]GroupCounts{}}, "web", sites[name].counts())
		}
		plan := func() {
			w.apply(MakePlan(w.snapshot()))
			if again := MakePlan(w.snapshot()); !again.Empty() {
				t.Fatalf("not quiet:\n%s", again)
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			name := rapid.SampledFrom(names).Draw(t, "region")
			s, there := sites[name], w.regions[name].Connected
			switch rapid.SampledFrom([]string{"version", "take", "take", "step", "step", "tell", "tell", "fail", "cut"}).Draw(t, "what") {
			case "version":
				j.Version++
				g.UnchangedSince = j.Version
			case "take":
				if there {
					take(name)
				}
			case "step":
				s.step(parallel, rapid.Bool().Draw(t, "up"))
			case "tell":
				if there {
					tell(name)
				}
			case "fail":
				s.failing = !s.failing
			case "cut": // the region is cut for a short time, and the other regions wait for it
				w.regions[name].Connected, w.regions[name].DisconnectedFor = !there, time.Second
			}
			plan()
			down := 0
			for _, s := range sites {
				down += s.down()
			}
			if down > parallel {
				t.Fatalf("%d instances are down, max_parallel is %d", down, parallel)
			}
		}
		for range 4 * len(names) { // one round for the rollout in progress, and one for each region
			for _, name := range names {
				w.regions[name].Connected, w.regions[name].DisconnectedFor, sites[name].failing = true, 0, false
				take(name)
				for range len(sites[name].has) + 2 {
					sites[name].step(parallel, true)
				}
				tell(name)
			}
			plan()
		}
		for name, s := range sites {
			if slices.ContainsFunc(s.has, func(v int64) bool { return v != j.Version }) {
				t.Fatalf("%s has %v, not version %d:\n%s", name, s.has, j.Version, MakePlan(w.snapshot()))
			}
		}
	})
}
