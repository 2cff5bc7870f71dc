package state

import (
	"cmp"
	"iter"
	"slices"

	"github.com/nusa-scheduler/nusa/regional/state/persist"
)

// inst is an Instance with its allocations, and what refresh found out about it
// last.
type inst struct {
	own *persist.Owner
	Instance
	// newest is the allocation of the greatest Seq, nil where none is remembered;
	// earlier are those before it, by Seq, and never written to: copies share them.
	newest  *Alloc
	earlier []*Alloc

	counted, wanted, steady, outdated bool
	shown                             AllocState
}

// attempts yields the allocations of an instance, which may be nil, by Seq.
func (in *inst) attempts() iter.Seq[*Alloc] {
	return func(yield func(*Alloc) bool) {
		if in == nil || in.newest == nil {
			return
		}
		for _, a := range in.earlier {
			if !yield(a) {
				return
			}
		}
		yield(in.newest)
	}
}

// attempt is the instance's allocation of that Seq; nil if it has none.
func (in *inst) attempt(seq uint64) *Alloc {
	if in == nil || in.newest == nil {
		return nil
	}
	if in.newest.Seq == seq {
		return in.newest
	}
	if i, found := in.find(seq); found {
		return in.earlier[i]
	}
	return nil
}

// find is where among the earlier ones a Seq is, or were.
func (in *inst) find(seq uint64) (int, bool) {
	return slices.BinarySearchFunc(in.earlier, seq, func(a *Alloc, seq uint64) int { return cmp.Compare(a.Seq, seq) })
}

// put stores an allocation in place of that of its Seq, or as the newest.
func (in *inst) put(a *Alloc) {
	if in.newest == nil || in.newest.Seq == a.Seq {
		in.newest = a
	} else if i, found := in.find(a.Seq); found {
		in.earlier = slices.Clone(in.earlier)
		in.earlier[i] = a
	} else {
		in.earlier, in.newest = slices.Concat(in.earlier, []*Alloc{in.newest}), a
	}
}

// remove forgets the allocation of that Seq, which there is.
func (in *inst) remove(seq uint64) {
	i, found := in.find(seq)
	switch last := len(in.earlier) - 1; {
	case found:
		in.earlier = slices.Concat(in.earlier[:i], in.earlier[i+1:])
	case last >= 0:
		in.earlier, in.newest = slices.Clone(in.earlier[:last]), in.earlier[last]
	default:
		in.newest = nil
	}
}

// insts are the instances of a group by index; a copy of the struct is a snapshot.
// Most groups have one only: the first needs no block of the array.
type insts struct {
	first *inst
	more  persist.Array[inst]
}

// get is the instance of an index, nil if there is none.
func (s *insts) get(index int32) *inst {
	if index == 0 {
		return s.first
	}
	in, _ := s.more.Get(uint32(index))
	return in
}

func (s *insts) set(own *persist.Owner, in *inst) {
	if in.Index == 0 {
		s.first = in
	} else {
		s.more.Set(own, uint32(in.Index), in)
	}
}

func (s *insts) delete(own *persist.Owner, index int32) {
	if index == 0 {
		s.first = nil
	} else {
		s.more.Delete(own, uint32(index))
	}
}

// all yields them by index.
func (s *insts) all() iter.Seq[*inst] {
	return func(yield func(*inst) bool) {
		if s.first != nil && !yield(s.first) {
			return
		}
		for _, in := range s.more.All() {
			if !yield(in) {
				return
			}
		}
	}
}

// attempts yields the allocations of a group by index and Seq.
func (g *group) attempts() iter.Seq[*Alloc] {
	return func(yield func(*Alloc) bool) {
		for in := range g.insts.all() {
			for a := range in.attempts() {
				if !yield(a) {
					return
				}
			}
		}
	}
}

// instance is the record of an index as this command, which has touched the
// group, may write to it.
func (t *txn) instance(g *group, index int32) *inst {
	in := g.insts.get(index)
	if in != nil && in.own == t.own {
		return in
	}
	c := inst{Instance: Instance{Index: index}}
	if in != nil {
		c = *in
	}
	c.own = t.own
	g.insts.set(t.own, &c)
	return &c
}

// refresh counts an instance of a touched group anew after something about it
// changed, and forgets one of which nothing is left.
func (t *txn) refresh(g *group, index int32) {
	in := g.insts.get(index)
	if in == nil {
		return
	}
	if in.counted {
		g.count(in, -1)
	}
	slot, _ := t.slot(g, index)
	if in.newest == nil && (slot == nil || g.typ == System && !t.exists(index)) {
		g.insts.delete(t.own, index)
		return
	}
	t.recount(g, t.instance(g, index))
}

// recount finds out about an instance and counts it, uncounted until now.
func (t *txn) recount(g *group, in *inst) {
	slot, wanted := t.slot(g, in.Index)
	var seen attempts
	for a := range in.attempts() {
		seen.add(a)
	}
	if g.typ == System && seen.live == 0 && !in.Finished() && in.Failures == 0 {
		wanted = false // its node may take it or not: only sched knows
	}
	if g.typ == System && seen.disconnected {
		wanted = false // a node that is gone is no fitting one
	}
	in.wanted = wanted
	in.steady = seen.steady(&in.Instance, slot, wanted)
	in.shown = seen.shown(&in.Instance, wanted || slot != nil && slot.Local && slot.Desired == Stop, wanted)
	if g.typ == System && seen.disconnected && seen.best == nil {
		in.shown = 0 // nothing waits for it
	}
	in.outdated = wanted && seen.best != nil && seen.best.State > Pending && seen.best.JobVersion != slot.JobVersion
	in.counted = true
	g.count(in, +1)
}

func (g *group) count(in *inst, d int32) {
	if in.wanted {
		g.recorded += d
		if g.typ == System {
			g.wanted += d
		}
	}
	if !in.steady {
		g.unsteady += d
	}
	if in.outdated {
		g.outdated += d
	}
	g.byState[in.shown] += d
}

// attempts sums the allocations of one instance up.
type attempts struct {
	all, live, run int
	last           *Alloc
	best           *Alloc // the live, connected one that is furthest
	disconnected   bool   // a live one is disconnected
	moving         bool   // a live one that is to run is on a draining node
}

func (s *attempts) add(a *Alloc) {
	s.all++
	s.last = a
	if !a.Live() {
		return
	}
	s.live++
	if a.Desired == Run {
		s.run++
		s.moving = s.moving || a.Moving
	}
	if a.Disconnected {
		s.disconnected = true
	} else if s.best == nil || a.State >= s.best.State {
		s.best = a
	}
}

// steady says that sched has nothing to decide about the instance.
func (s *attempts) steady(in *Instance, slot *Slot, wanted bool) bool {
	switch {
	case s.disconnected:
		return false
	case !wanted:
		return s.run == 0
	case in.Finished():
		return s.run == 0
	}
	proving := s.best != nil && s.best.Proving && s.best.UpUnixNano > 0
	return s.live == 1 && s.run == 1 && !s.moving && !proving && s.best.JobVersion == slot.JobVersion
}

// shown is the state that an instance counts in, 0 for none. What it did counts
// for whoever has it: here while it is wanted, or is one of the region's own
// jobs that was stopped. Given back, taken away or dealt out anew it is another's,
// who counts it: how an attempt here ended says nothing of it any more.
func (s *attempts) shown(in *Instance, ours, wanted bool) AllocState {
	switch {
	case s.best != nil && s.best.State == Running && s.best.Proving && s.best.Desired == Run:
		return Starting
	case s.best != nil:
		return s.best.State
	case s.disconnected:
		return Lost
	case ours && in.Done:
		return Complete
	case ours && in.Exhausted:
		return Failed
	case wanted:
		return Pending
	case s.last != nil && (ours || s.last.State == Stopped || s.last.State == Lost):
		return s.last.State
	}
	return 0
}
