package placer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// followed is what a look at one job finds.
type followed struct {
	breaches []place.Breach
	moves    bool
}

// followAll returns what a look at all jobs with near rules finds. It changes nothing.
func followAll(st *state.State, passed time.Duration) map[state.JobKey]followed {
	st.Lock()
	defer st.Unlock()
	out := map[state.JobKey]followed{}
	var keys []state.JobKey
	for k, j := range st.Jobs {
		out[k] = followed{j.Notes().Breaches, j.Notes().Moves != nil}
		if _, near := st.Near[k]; near && (j.Place().HasBound() || len(j.Notes().Breaches) > 0) {
			keys = append(keys, k)
		}
	}
	snapshot := nearSnapshot(st, st.Latency.Present(st.Clock()), nearRegions(st), nearJobs(st, keys)...)
	tracker := place.NewBoundTracker(snapshot)
	for i := range snapshot.Jobs {
		job := &snapshot.Jobs[i]
		k := state.JobKey{Namespace: job.Namespace, Name: job.Name}
		job.Slots, job.Breaches = slices.Collect(st.Jobs[k].Slots.All()), st.Jobs[k].Notes().Breaches
		next := tracker.Step(job, passed)
		out[k] = followed{next, state.Sustained(next) && out[k].moves}
	}
	return out
}

// demandOfAll returns the demand for probes of all jobs with near rules. The lock is held.
func demandOfAll(st *state.State) map[string]map[string]float64 {
	jobs := nearJobs(st, slices.Collect(maps.Keys(st.Near)))
	for i := range jobs {
		j := &jobs[i]
		for s := range st.Jobs[state.JobKey{Namespace: j.Namespace, Name: j.Name}].Slots.All() {
			if s.Desired == region.DesiredRun && s.State != region.Done {
				j.Slots = append(j.Slots, s)
			}
		}
		state.SortSlots(j.Slots)
	}
	return place.ProbeDemand(nearSnapshot(st, st.Latency.Present(st.Clock()), nearRegions(st), jobs...))
}

// nearWorld has regions and jobs with near rules, and changes at random.
type nearWorld struct {
	t       testing.TB
	rng     *rand.Rand
	p       *Placer
	now     time.Duration
	regions []string
	stored  map[string]bool
}

func (w *nearWorld) do(prepare func(*state.Tx) error) {
	w.t.Helper()
	if _, err := w.p.Commit.Do(context.Background(), prepare); err != nil {
		w.t.Fatal(err)
	}
}

func (w *nearWorld) region(name string) {
	w.stored[name] = true
	labels := map[string]string{"zone": name[:1]}
	w.do(func(t *state.Tx) error {
		return t.PutRegion(name, &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: name, Labels: labels}})
	})
}

// submit submits a job with one or two groups.
func (w *nearWorld) submit(name string) {
	near := func() *nusav1.Near {
		n := &nusav1.Near{Required: w.rng.IntN(4) > 0, Unknown: nusav1.Unknown(w.rng.IntN(4)), Selector: &nusav1.RegionSelector{}}
		if n.GetRequired() || w.rng.IntN(2) == 0 {
			n.MaxRtt = durationpb.New(time.Duration(20+20*w.rng.IntN(4)) * time.Millisecond)
		}
		if w.rng.IntN(4) == 0 {
			n.Selector.Labels = map[string]string{"zone": "a"}
		} else {
			n.Selector.Name = w.regions[w.rng.IntN(len(w.regions))]
		}
		return n
	}
	spec := &nusav1.JobSpec{Name: name, Groups: map[string]*nusav1.Group{}}
	for _, group := range []string{"api", "web"}[:1+w.rng.IntN(2)] {
		g := &nusav1.Group{Count: proto.Int32(4), Regions: &nusav1.RegionsSpec{}}
		for range w.rng.IntN(3) {
			g.Regions.Near = append(g.Regions.Near, near())
		}
		spec.Groups[group] = g
	}
	w.do(func(t *state.Tx) error {
		_, err := t.Submit(state.JobKey{Namespace: "default", Name: name}, &nusav1.SubmitRequest{Spec: spec})
		return err
	})
}

// slot puts or removes a slot.
func (w *nearWorld) slot(name string) {
	k := state.JobKey{Namespace: "default", Name: name}
	w.p.st.Lock()
	j := w.p.st.Jobs[k]
	var slots []region.Slot
	if j != nil {
		slots = slices.Collect(j.Slots.All())
	}
	w.p.st.Unlock()
	if j == nil {
		return
	}
	from := w.rng.IntN(4)
	s := region.Slot{Namespace: "default", Job: name, Group: []string{"api", "web"}[w.rng.IntN(2)], From: from, To: from + 1}
	for _, old := range slots {
		if old.Group == s.Group && old.From == s.From {
			s = old
		}
	}
	c := region.Change{Slot: s}
	switch {
	case s.Region != "" && w.rng.IntN(4) == 0:
		c.Delete = true
	case s.Region != "" && w.rng.IntN(3) == 0:
		c.Slot.Desired = region.DesiredRevoke
	case s.Region != "" && w.rng.IntN(3) == 0:
		c.Slot.State = region.Done
	default:
		c.Slot.Region, c.Slot.Desired, c.Slot.State, c.Slot.JobVersion = w.regions[w.rng.IntN(len(w.regions))], region.DesiredRun, region.Accepted, 1
	}
	w.do(func(t *state.Tx) error { return t.ChangeSlots([]region.Change{c}) })
}

// trips sets the round trips from a region.
func (w *nearWorld) trips() {
	from := w.regions[w.rng.IntN(len(w.regions))]
	var edges []topology.Edge
	for _, to := range w.regions {
		if to != from && w.rng.IntN(2) == 0 {
			rtt := time.Duration(10+w.rng.IntN(100)) * time.Millisecond
			edges = append(edges, topology.Edge{From: from, To: to, State: topology.OK, Source: topology.Measured, P50: rtt, P90: rtt, P99: rtt, Min: rtt, Samples: 9})
		}
	}
	w.p.st.Lock()
	defer w.p.st.Unlock()
	w.p.st.Latency.SetEdges(from, edges, w.rng.IntN(4) == 0, w.now)
}

// TestBreachesAreThoseOfAFullLook: the placer looks only at some jobs, and finds what a look at all jobs finds.
func TestBreachesAreThoseOfAFullLook(t *testing.T) {
	found, fewer := 0, 0
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := &nearWorld{t: t, rng: rand.New(rand.NewPCG(seed, 2)), p: newPlacer(t), now: time.Minute, regions: []string{"a1", "a2", "b1", "b2", "c1"}, stored: map[string]bool{}}
			w.p.st.Clock = func() time.Duration { return w.now }
			for _, name := range w.regions[1:] {
				w.region(name)
			}
			for step := range 250 {
				name := fmt.Sprintf("job-%d", w.rng.IntN(12))
				switch w.rng.IntN(12) {
				case 0:
					w.submit(name)
				case 1:
					w.do(func(t *state.Tx) error {
						k := state.JobKey{Namespace: "default", Name: name}
						if rec, _ := t.Job(k); rec != nil {
							stopped := rec.Full()
							stopped.Job.Stopped = true
							return t.PutJob(k, stopped)
						}
						return nil
					})
				case 2:
					w.trips()
					if step == 100 {
						w.region("a1")
					}
				case 3:
					w.notice(name)
				case 4, 5, 6, 7, 8, 9:
					w.slot(name)
				default:
					wait := []time.Duration{5 * time.Second, 5 * time.Second, time.Minute, 10 * time.Minute}[w.rng.IntN(4)]
					passed := w.now + wait - w.p.breachesAt
					if w.p.breachesAt == 0 {
						passed = 0
					}
					w.now += wait
					w.trips()
					want := followAll(w.p.st, passed)
					w.p.followBreaches()
					w.p.st.Lock()
					bounds := map[state.BoundAt]int{}
					for k, j := range w.p.st.Jobs {
						for s := range j.Slots.All() {
							for near := range j.Place().BoundsOf(&s) {
								bounds[state.BoundAt{Near: near, Region: s.Region}]++
							}
						}
						got := followed{j.Notes().Breaches, j.Notes().Moves != nil}
						if len(got.breaches)+len(want[k].breaches) > 0 && !reflect.DeepEqual(got.breaches, want[k].breaches) || got.moves != want[k].moves {
							t.Fatalf("step %d, %s: %v, a full look finds %v", step, k, got, want[k])
						}
						found += len(got.breaches)
						if _, followed := w.p.breached[k]; !followed && j.Place().HasBound() {
							fewer++
						}
					}
					if !maps.Equal(bounds, w.p.st.Bounds.Slots) {
						t.Fatalf("step %d: bounds %v, want %v", step, w.p.st.Bounds.Slots, bounds)
					}
					demand := demandOfAll(w.p.st)
					if w.p.updateProbeDemand(); !reflect.DeepEqual(w.p.st.ProbeDemand, demand) {
						t.Fatalf("step %d: the demand for probes is %v, that of all jobs %v", step, w.p.st.ProbeDemand, demand)
					}
					w.p.st.Unlock()
				}
			}
		})
	}
	if found < 100 || fewer < 100 {
		t.Errorf("%d breaches found, %d jobs left out", found, fewer)
	}
}

// notice makes the job have decisions about its breaches, as a plan does.
func (w *nearWorld) notice(name string) {
	w.p.st.Lock()
	defer w.p.st.Unlock()
	k := state.JobKey{Namespace: "default", Name: name}
	if w.p.st.Jobs[k] == nil {
		return
	}
	w.p.recordMoves(place.Plan{Moves: []place.Move{{Namespace: k.Namespace, Job: name}}}, map[state.JobKey]seen{k: {}}, w.now)
}

// boundedJobs returns a placer with 20,000 jobs that have a bound, and 50 regions. Each bound is about the trip from one
// region to the next one, which trip sets.
func boundedJobs(b *testing.B) (w *nearWorld, trip func(from int, rtt time.Duration)) {
	const regions, jobs = 50, 20_000
	w = &nearWorld{t: b, p: newPlacer(b), now: time.Minute, stored: map[string]bool{}}
	w.p.st.Clock = func() time.Duration { return w.now }
	for i := range regions {
		w.regions = append(w.regions, fmt.Sprintf("r%02d", i))
		w.region(w.regions[i])
	}
	for at := 0; at < jobs; at += 25 {
		w.do(func(t *state.Tx) error {
			for i := at; i < at+25; i++ {
				name, near := fmt.Sprintf("job-%d", i), &nusav1.Near{Selector: &nusav1.RegionSelector{Name: w.regions[(i+1)%regions]}, Required: true, MaxRtt: durationpb.New(60 * time.Millisecond)}
				spec := &nusav1.JobSpec{Name: name, Groups: map[string]*nusav1.Group{"web": {Count: proto.Int32(1), Regions: &nusav1.RegionsSpec{Near: []*nusav1.Near{near}}}}}
				_, err := t.Submit(state.JobKey{Namespace: "default", Name: name}, &nusav1.SubmitRequest{Spec: spec})
				s := region.Slot{Namespace: "default", Job: name, Group: "web", To: 1, Region: w.regions[i%regions], Desired: region.DesiredRun, State: region.Accepted, JobVersion: 1}
				if err = errors.Join(err, t.ChangeSlots([]region.Change{{Slot: s}})); err != nil {
					return err
				}
			}
			return nil
		})
	}
	trip = func(i int, rtt time.Duration) {
		e := topology.Edge{From: w.regions[i], To: w.regions[(i+1)%regions], State: topology.OK, Source: topology.Measured, P50: rtt, P90: rtt, P99: rtt, Min: rtt, Samples: 9}
		w.p.st.Latency.SetEdges(e.From, []topology.Edge{e}, true, w.now)
	}
	for i := range regions {
		trip(i, 30*time.Millisecond)
	}
	b.ReportAllocs()
	return w, trip
}

// BenchmarkFollowBreaches follows the breaches of many jobs. In one case a tenth of the bounds breaks at every second
// look.
func BenchmarkFollowBreaches(b *testing.B) {
	for _, breaks := range []bool{false, true} {
		b.Run(map[bool]string{false: "kept", true: "broken"}[breaks], func(b *testing.B) {
			w, trip := boundedJobs(b)
			for n := 0; b.Loop(); n++ {
				w.now += 5 * time.Second
				rtt := 30 * time.Millisecond
				if breaks && n%2 == 1 {
					rtt = 80 * time.Millisecond
				}
				for i := range len(w.regions) / 10 {
					trip(i, rtt)
				}
				w.p.followBreaches()
			}
		})
	}
}

// BenchmarkProbeDemand computes which pairs of regions the rules of many jobs ask about.
func BenchmarkProbeDemand(b *testing.B) {
	w, _ := boundedJobs(b)
	w.p.st.Lock()
	defer w.p.st.Unlock()
	for b.Loop() {
		w.p.updateProbeDemand()
	}
}
