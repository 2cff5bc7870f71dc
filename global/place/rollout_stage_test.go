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

// told takes what a region says of a group: without more words that all of it
// runs in the version that its slots have.
func (w *world) told(args []string) {
	job, group, _ := strings.Cut(args[0], "/")
	j, t := w.find(job), GroupCounts{}
	said := Summary{Region: args[1], Run: j.Run, Groups: map[string]GroupCounts{}}
	for _, s := range j.Slots {
		if s.Region == args[1] {
			said.Version = max(said.Version, s.JobVersion)
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
			said.Version = int64(n)
		case "live":
			t.Live = n
		case "pending":
			t.Pending = n
		case "failed":
			t.Failed = n
		case "busy":
			t.Busy = n
		}
	}
	j.tell(said, group, t)
}

func (j *Job) tell(said Summary, group string, t GroupCounts) {
	j.Summaries = slices.Clone(j.Summaries)
	if old := j.summaryOf(said.Region); old != nil {
		maps.Copy(said.Groups, old.Groups)
		*old = said
	} else {
		j.Summaries = append(j.Summaries, said)
		slices.SortFunc(j.Summaries, func(a, b Summary) int { return cmp.Compare(a.Region, b.Region) })
	}
	j.summaryOf(said.Region).Groups[group] = t
}

// site is a region that carries a rollout out: it takes what is written for it
// some time later, and updates its instances max_parallel at a time.
type site struct {
	// has is the version of each of its instances; 0 = it is away just now.
	has []int64
	// being is what an instance that is away will be; 0 = none.
	being   []int64
	version int64 // the latest that it took
	failing bool
}

func (s *site) away() (n int) {
	for _, v := range s.has {
		if v == 0 {
			n++
		}
	}
	return n
}

func (s *site) tally() GroupCounts {
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

// step lets instances come up, if it can, and takes others away.
func (s *site) step(parallel int, up bool) {
	for i, v := range s.has {
		if v == 0 && up && !s.failing {
			s.has[i] = s.being[i]
		}
	}
	for i, v := range s.has {
		if v != 0 && v != s.version && s.away() < parallel {
			s.has[i] = 0
		}
		if s.has[i] == 0 {
			s.being[i] = s.version
		}
	}
}

// TestRolloutKeepsMaxParallel: whatever regions do, and however late they say
// it, versions take no more than max_parallel instances of the group away in
// regions that are there, and where all get well the last version reaches all.
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
			j.tell(Summary{Region: name, Version: 1, Groups: map[string]GroupCounts{}}, "web", sites[name].tally())
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
			j.tell(Summary{Region: name, Version: sites[name].version, Groups: map[string]GroupCounts{}}, "web", sites[name].tally())
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
			case "cut": // shortly: it holds the others up
				w.regions[name].Connected, w.regions[name].DisconnectedFor = !there, time.Second
			}
			plan()
			away := 0
			for _, s := range sites {
				away += s.away()
			}
			if away > parallel {
				t.Fatalf("%d instances are away, max_parallel is %d", away, parallel)
			}
		}
		for range 4 * len(names) { // a round for what was begun, and one for each region
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
