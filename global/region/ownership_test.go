package region_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"pgregory.net/rapid"
)

// owner is a region that owns slots: the model in this file, or the real cores of the regional
// tier.
type owner interface {
	// order receives the full set of the region's slots at a position. A position older than the
	// stored one changes nothing.
	order(position int64, slots []region.Slot)
	// answers returns all answers that are true now. The region repeats them until its orders
	// change.
	answers() []region.Answer
	// running returns the indices with a running attempt, ascending.
	running() []int
	// work makes one random change: start, give back, end. Healed regions give
	// nothing back.
	work(d *rand.Rand, healed bool)
	// finish starts and ends everything that can start and end.
	finish()
}

// message is a full set of slot orders on its way to a region.
type message struct {
	position int64
	slots    []region.Slot
}

// dice draws a seed for uniform random numbers. The draws of rapid itself prefer small values, so
// few events would happen.
func dice(t *rapid.T) *rand.Rand {
	return rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
}

func pick[T any](d *rand.Rand, of ...T) T { return of[d.IntN(len(of))] }

// federation is one global tier with the real placer, and regions behind
// channels that lose, repeat and reorder messages.
type federation struct {
	store
	job     place.Job
	names   []string
	regions map[string]owner
	down    map[string][]message
	up      map[string][]region.Answer
	// seen counts answers by their outcome, over all worlds of a test.
	seen map[string]int
	cutOff
}

func newFederation(names []string, count int, typ place.JobType, seen map[string]int, make func(name string) owner) *federation {
	f := &federation{
		store: store{revision: 100}, names: names, seen: seen, cutOff: cutOff{cut: map[string]bool{}, newest: map[int]int64{}},
		regions: map[string]owner{}, down: map[string][]message{}, up: map[string][]region.Answer{},
		job: place.Job{
			Namespace: "default", Name: "api", Version: 1, Type: typ,
			Groups: []place.Group{{Name: "web", Count: count, Ask: place.Ask{CPUMilli: 1000}}},
		},
	}
	for _, name := range names {
		f.regions[name] = make(name)
	}
	return f
}

// place makes a plan and applies it, one transaction for each action. fits is
// the room that each region reports.
func (f *federation) place(fits func(name string) int) place.Plan {
	s := place.Snapshot{}
	for _, name := range f.names {
		s.Regions = append(s.Regions, &place.Region{
			Name: name, Connected: !f.cut[name], HasReport: true, SlotsRevision: f.revision, NodesReady: 1,
			Fits: map[uint64]int{f.job.Groups[0].Ask.Hash(): fits(name)},
		})
	}
	j := f.job
	j.Slots = f.slots
	s.Jobs = []place.Job{j}
	plan := place.MakePlan(s)
	for _, a := range plan.Actions {
		f.write(a.Changes())
	}
	return plan
}

// ordersOf returns the full set of a region's slots.
func (f *federation) ordersOf(name string) message {
	m := message{position: f.revision}
	for _, s := range f.slots {
		if s.Region == name && !s.Vacant {
			m.slots = append(m.slots, s)
		}
		if i := slices.IndexFunc(s.Former, func(o region.FormerOwner) bool { return o.Region == name }); i >= 0 {
			state := region.Accepted
			if s.State == region.Done || s.Desired == region.DesiredStop {
				state = region.Done
			}
			s.Desired, s.Generation, s.Region, s.State = s.DesiredOfFormer(i), s.Former[i].Generation, name, state
			m.slots = append(m.slots, s)
		}
	}
	return m
}

// write writes changes and checks that no index gets an older generation.
func (f *federation) write(changes []region.Change) {
	f.store.write(changes)
	for _, s := range f.slots {
		for i := s.From; i < s.To; i++ {
			if s.Generation < f.newest[i] {
				panic(fmt.Sprintf("%d had generation %d, now %s", i, f.newest[i], s))
			}
			f.newest[i] = s.Generation
		}
	}
}

func (f *federation) receive(name string, a region.Answer) region.Outcome {
	owners := f.owners()
	out := region.ApplyAnswer(f.slots, name, a)
	f.write(out.Changes)
	for i, owner := range f.owners() {
		if was := owners[i]; was != owner && was != name && was != "nobody" && owner != "nobody" {
			panic(fmt.Sprintf("%s of %s moves %d from %s to %s", a, name, i, was, owner))
		}
	}
	f.seen[cmp.Or(string(out.Ignored), string(a.State))]++
	for _, c := range out.Changes {
		if !c.Delete && c.Slot.Region != name && c.Slot.State == region.Offered {
			f.seen["returned"]++
		}
	}
	if len(out.Changes) > 1 {
		f.seen["split"]++
	}
	return out
}

// step makes one random change anywhere.
func (f *federation) step(d *rand.Rand) {
	name := pick(d, f.names...)
	switch pick(d,
		"place", "place", "order", "order", "deliver", "deliver", "deliver", "work", "work", "work", "work", "work", "work",
		"answer", "answer", "hear", "hear", "hear", "hear", "job", "reclaim", "cut", "verdict", "return", "planned",
	) {
	case "cut", "verdict", "return", "planned":
		f.stepCutOff(d, name)
	case "reclaim": // as if the instance was disconnected there
		if i, ok := f.pick(d, len(f.slots)); ok && f.slots[i].State != region.Done {
			s := f.slots[i]
			from := s.From + d.IntN(s.Count())
			f.write(region.RevokeUnlessConnected(s, from, from+1+d.IntN(s.To-from)))
		}
	case "place":
		f.place(func(string) int { return pick(d, 0, 1, 2, 3, 6) })
	case "order":
		f.down[name] = append(f.down[name], f.ordersOf(name))
	case "deliver":
		if i, ok := f.pick(d, len(f.down[name])); ok && !f.cut[name] {
			m := f.down[name][i]
			if d.IntN(4) > 0 {
				f.down[name] = slices.Delete(f.down[name], i, i+1)
			}
			if pick(d, true, true, true, false) {
				f.regions[name].order(m.position, m.slots)
			}
		}
	case "work":
		f.regions[name].work(d, false)
	case "answer":
		f.up[name] = append(f.up[name], f.regions[name].answers()...)
	case "hear":
		if i, ok := f.pick(d, len(f.up[name])); ok {
			a := f.up[name][i]
			if d.IntN(4) > 0 {
				f.up[name] = slices.Delete(f.up[name], i, i+1)
			}
			if pick(d, true, true, true, false) {
				f.receive(name, a)
			}
		}
	case "job":
		if f.job.Stopped {
			f.job.Stopped = false
			return
		}
		switch pick(d, "scale", "scale", "version", "version", "version", "stop") {
		case "scale":
			f.job.Groups[0].Count = pick(d, 1, 3, 4, 6)
		case "version":
			f.job.Version++
			f.job.Groups[0].Regions.Allow = nil
			if d.IntN(2) == 0 {
				f.job.Groups[0].Regions.Allow = []place.Selector{{Name: f.names[0]}}
			}
		case "stop":
			f.job.Stopped = true
		}
	}
}

func (f *federation) pick(d *rand.Rand, n int) (int, bool) {
	if n == 0 {
		return 0, false
	}
	return d.IntN(n), true
}

// check: a region runs only instances that it owns, or that it owned before a verdict and has not
// given up, if no lease binds them. No index has two owners.
func (f *federation) check(t *rapid.T) {
	ownerOf := map[int]string{}
	for _, s := range f.slots {
		for i := s.From; i < s.To; i++ {
			if ownerOf[i] != "" {
				t.Fatalf("%d has two owners: %v", i, f.slots)
			}
			ownerOf[i] = s.Region
		}
	}
	for _, name := range f.names {
		for _, i := range f.regions[name].running() {
			if ownerOf[i] != name && !f.mayRun(name, i) {
				t.Fatalf("%s runs %d, which is owned by %q: %v", name, i, ownerOf[i], f.slots)
			}
		}
	}
}

// heal delivers everything in order until nothing changes, with enough room
// everywhere.
func (f *federation) heal(t *rapid.T) {
	for _, name := range f.names {
		f.comesBack(name)
	}
	for round := 0; ; round++ {
		before := fmt.Sprint(f.slots)
		f.place(func(string) int { return 100 })
		for _, name := range f.names {
			r := f.regions[name]
			// Messages that are still in flight arrive late.
			for _, m := range f.down[name] {
				r.order(m.position, m.slots)
				r.finish()
				f.check(t)
			}
			for _, a := range f.up[name] {
				f.receive(name, a)
				f.check(t)
			}
			f.down[name], f.up[name] = nil, nil
			m := f.ordersOf(name)
			r.order(m.position, m.slots)
			r.finish()
			f.check(t)
			for _, a := range r.answers() {
				f.receive(name, a)
				f.check(t)
			}
		}
		if fmt.Sprint(f.slots) == before && round > 0 {
			return
		}
		if round > 30 {
			t.Fatalf("still changing after %d rounds: %v", round, f.slots)
		}
	}
}

// checkHealed: every index has one owner, which has accepted it and runs it.
func (f *federation) checkHealed(t *rapid.T) {
	want := f.job.Groups[0].Count
	if f.job.Stopped {
		want = 0
	}
	owned, runs, done := 0, 0, 0
	for _, s := range f.slots {
		owned += s.Count()
		if s.State == region.Offered || s.Desired != region.DesiredRun || len(s.Former) > 0 {
			t.Errorf("%s is not accepted or done, or has former owners", s)
		}
		if s.State == region.Done {
			done += s.Count()
		}
	}
	for _, r := range f.regions {
		runs += len(r.running())
	}
	if owned != want || runs+done != want {
		t.Fatalf("%d wanted, %d owned, %d run, %d done: %v", want, owned, runs, done, f.slots)
	}
}

// modelRegion has the rules of the regional tier in a few lines. An answer that gives instances
// back is stored with the slot, by key and generation, and forgotten with the slot.
type modelRegion struct {
	name     string
	position int64
	held     []heldSlot
	runs     map[int]bool
	finished map[int]bool // batch: ended with success
	batch    bool
	// fenced is the position up to which orders start nothing.
	fenced int64
}

type heldSlot struct {
	region.Slot
	gaveBack map[int]bool
}

func (m *modelRegion) order(position int64, slots []region.Slot) {
	if position < m.position {
		return
	}
	m.position = position
	var held []heldSlot
	for _, s := range slots {
		h := heldSlot{Slot: s, gaveBack: map[int]bool{}}
		for _, old := range m.held {
			if old.Key() == s.Key() && old.Generation == s.Generation {
				h.gaveBack = old.gaveBack
			}
		}
		held = append(held, h)
	}
	m.held = held
}

// find returns the stored slot that has an index, nil if there is none.
func (m *modelRegion) find(i int) *heldSlot {
	for k := range m.held {
		if s := &m.held[k]; s.From <= i && i < s.To {
			return s
		}
	}
	return nil
}

func (m *modelRegion) wants(i int) bool {
	s := m.find(i)
	return s != nil && s.Desired == region.DesiredRun && !s.gaveBack[i] && !(m.batch && m.finished[i]) && m.position > m.fenced
}

func (m *modelRegion) holds(i int) bool {
	s := m.find(i)
	return s != nil && s.Desired == region.DesiredHold
}

// fence ends everything, as the end of a lease does.
func (m *modelRegion) fence(position int64) { m.runs, m.fenced = map[int]bool{}, position }

func (m *modelRegion) work(d *rand.Rand, healed bool) {
	i := d.IntN(6)
	switch {
	case m.runs[i] && !m.wants(i) && !m.holds(i):
		delete(m.runs, i)
	case m.runs[i] && m.batch && d.IntN(3) == 0:
		delete(m.runs, i)
		m.finished[i] = true
	case m.runs[i] && !healed && d.IntN(3) == 0:
		delete(m.runs, i)
	case !m.runs[i] && m.wants(i):
		if !healed && d.IntN(3) == 0 {
			m.find(i).gaveBack[i] = true
			return
		}
		m.runs[i] = true
	}
}

func (m *modelRegion) finish() {
	for i := range 10 {
		if m.wants(i) {
			m.runs[i] = true
		} else if !m.holds(i) {
			delete(m.runs, i)
		}
	}
}

func (m *modelRegion) running() []int {
	var out []int
	for i := range 10 {
		if m.runs[i] {
			out = append(out, i)
		}
	}
	return out
}

func (m *modelRegion) answers() []region.Answer {
	var out []region.Answer
	for _, s := range m.held {
		say := func(from, to int, state region.SlotState) {
			out = append(out, region.Answer{
				Namespace: s.Namespace, Job: s.Job, Group: s.Group, From: from, To: to, Generation: s.Generation, State: state,
			})
		}
		if s.Desired == region.DesiredHold {
			for i := s.From; i < s.To; i++ {
				switch {
				case m.runs[i]:
					say(i, i+1, region.Kept)
				case m.batch && m.finished[i]:
					say(i, i+1, region.Done)
				default:
					say(i, i+1, region.Revoked)
				}
			}
			continue
		}
		live, back := 0, 0
		for i := s.From; i < s.To; i++ {
			if m.runs[i] {
				live++
			}
			if s.gaveBack[i] {
				back++
				say(i, i+1, region.Returned)
			}
			if m.batch && m.finished[i] {
				say(i, i+1, region.Done)
			}
		}
		switch {
		case s.Desired == region.DesiredRun && s.State == region.Offered && back == 0:
			say(s.From, s.To, region.Accepted)
		case s.Desired == region.DesiredStop && live == 0:
			say(s.From, s.To, region.Stopped)
		case s.Desired == region.DesiredRevoke && live == 0:
			say(s.From, s.To, region.Revoked)
		}
	}
	return out
}

// TestEveryIndexHasOneOwner: messages between the placer and the regions are lost, repeated and
// reordered. Still no instance runs in two places. When the channels work again, each instance runs
// in one place.
func TestEveryIndexHasOneOwner(t *testing.T) {
	seen := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		d := dice(t)
		names := []string{"jpe", "sea", "weu"}[:pick(d, 1, 2, 3, 3)]
		typ := pick(d, place.Service, place.Service, place.Batch)
		f := newFederation(names, pick(d, 1, 3, 5, 6), typ, seen, func(name string) owner {
			return &modelRegion{name: name, runs: map[int]bool{}, finished: map[int]bool{}, batch: typ == place.Batch}
		})
		f.binds = d.IntN(2) == 0
		for range 400 {
			f.step(d)
			f.check(t)
		}
		f.heal(t)
		f.checkHealed(t)
	})
	checkSeen(t, seen)
	for _, what := range []string{"split", "moved", "held", "returned"} {
		if seen[what] == 0 {
			t.Errorf("no slot was %s", what)
		}
	}
}

// checkSeen checks that the random worlds had enough events to prove something.
func checkSeen(t *testing.T, seen map[string]int) {
	t.Log(seen)
	for _, what := range []region.SlotState{region.Accepted, region.Returned, region.Stopped, region.Revoked, region.Done,
		region.SlotState(region.IgnoredUnknown), region.SlotState(region.IgnoredGeneration), region.SlotState(region.IgnoredRepeated)} {
		if seen[string(what)] == 0 {
			t.Errorf("no world had %q", what)
		}
	}
}
