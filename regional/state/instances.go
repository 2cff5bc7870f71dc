package state

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	"github.com/nusa-scheduler/nusa/regional/state/persist"
	"github.com/nusa-scheduler/nusa/regional/state/retry"
)

// Instance is the record of one index of a group across its attempts.
type Instance struct {
	Index int32
	// Generation, Run and Hash say to which generation and run of the slot, and to which form of the
	// group, the fields below belong. A new generation resets the attempts. A new hash or run also
	// resets Done.
	Generation int64
	Run        int64
	Hash       uint64
	// Epoch is the epoch of the newest attempt; 0 before the first.
	Epoch int64
	// Failures counts the failed attempts in a row that count against the reschedule policy.
	Failures int32
	// NotBeforeUnixNano is the end of the back-off; 0: none.
	NotBeforeUnixNano int64
	// EndedUnixNano is when the newest attempt ended; 0: it has not ended.
	EndedUnixNano int64 `codec:"FreedUnixNano"`
	// Done: a batch instance has completed.
	Done bool
	// Exhausted: the instance failed and will not be tried again in this version.
	Exhausted bool
	// Declined are the ids of nodes that declined the instance in this version.
	Declined []string
	// Reason and Message say how the newest attempt ended.
	Reason  Reason
	Message string
	// Retry is what decisions about failures left behind. nil: none since the attempts were reset. It
	// needs Cluster.FeatureLevel 7.
	Retry *retry.Record
	// Version is the job version to which Failures, Exhausted and Retry belong, in groups with a retry
	// policy. They stay in a new generation of that version and run. It needs AttemptsLevel.
	Version int64
}

// CompletedIn reports whether a batch instance has completed in a run.
func (i *Instance) CompletedIn(run int64) bool { return i.Done && sameRun(i.Run, run) }

// Finished reports whether no further attempt is needed for this index.
func (i *Instance) Finished() bool { return i.Done || i.Exhausted }

// inst is an Instance with its allocations and the result of its last refresh.
type inst struct {
	own *persist.Owner
	Instance
	// newest is the allocation with the greatest Seq, nil if there is none. earlier are the
	// other allocations, by Seq. The slice is never changed, because copies of the inst
	// share it.
	newest  *Alloc
	earlier []*Alloc

	counted, wanted, steady, outdated bool
	shown                             AllocState
}

// attempts yields the allocations of an instance by Seq. The instance may be nil.
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

// attempt returns the instance's allocation with a given Seq, or nil if there is none.
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

// find returns the position of a Seq in earlier, or the position where it would be
// inserted.
func (in *inst) find(seq uint64) (int, bool) {
	return slices.BinarySearchFunc(in.earlier, seq, func(a *Alloc, seq uint64) int { return cmp.Compare(a.Seq, seq) })
}

// put replaces the allocation with the same Seq, or adds a as the newest one.
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

// remove removes the allocation with a given Seq. The allocation must exist.
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

// insts holds the instances of a group by index. A copy of the struct is a snapshot. Most
// groups have only one instance. The field first saves a block of the array for them.
type insts struct {
	first *inst
	more  persist.Array[inst]
}

// get returns the instance with an index, or nil if there is none.
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

// all yields the instances by index.
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

// instance returns the writable record of an index. If there is none it creates one. The
// command must have touched the group.
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

// refresh counts an instance of a touched group again after a change. It deletes an
// instance that has no allocation and no slot.
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

// recount evaluates an instance that is not counted now, and counts it.
func (t *txn) recount(g *group, in *inst) {
	slot, wanted := t.slot(g, in.Index)
	var seen attempts
	for a := range in.attempts() {
		seen.add(a)
	}
	if g.typ == System && seen.live == 0 && !in.Finished() && in.Failures == 0 {
		wanted = false // only sched knows whether the node fits
	}
	if g.typ == System && seen.disconnected {
		wanted = false // a lost node does not fit
	}
	in.wanted = wanted
	in.steady = seen.steady(&in.Instance, slot, wanted)
	ended := g.typ == Batch && slot != nil && slot.Owns(in.Index) // an override does not undo an end
	in.shown = seen.shown(&in.Instance, wanted || slot != nil && slot.Local && slot.Desired == Stop, wanted, ended)
	if g.typ == System && seen.disconnected && seen.best == nil {
		in.shown = 0 // no instance waits for a lost node
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

// failing says how many instances of a group have failed, or failed in their last attempt and wait for the next.
// Empty: none.
func (g *group) failing(name string) string {
	if n := g.byState[Failed]; n > 0 {
		return fmt.Sprintf("%d of %d instances of group %s", n, g.wanted, name)
	}
	if g.byState[Pending]+g.byState[Starting] == 0 {
		return ""
	}
	again := 0
	for in := range g.insts.all() {
		if in.wanted && in.Failures > 0 && (in.shown == Pending || in.shown == Starting) {
			again++
		}
	}
	if again == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d instances of group %s, which are tried again", again, g.wanted, name)
}

// attempts summarises the allocations of one instance.
type attempts struct {
	all, live, run int
	last           *Alloc
	best           *Alloc // the live allocation on a connected node with the greatest state
	disconnected   bool   // some live allocation is disconnected
	moving         bool   // some live allocation with desired state run is on a draining node
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

// steady reports whether sched has nothing to decide about the instance.
func (s *attempts) steady(in *Instance, slot *Slot, wanted bool) bool {
	switch {
	case s.disconnected:
		return false
	case slot != nil && slot.Desired == Hold:
		// A lease may bind the attempt of an earlier version.
		return s.run == 0 || slot.OfRun(in.Run) && (s.best == nil || s.best.JobVersion == slot.JobVersion)
	case !wanted:
		return s.run == 0
	case in.Finished():
		return s.run == 0
	}
	proving := s.best != nil && s.best.Proving && s.best.UpUnixNano > 0
	return s.live == 1 && s.run == 1 && !s.moving && !proving && s.best.JobVersion == slot.JobVersion
}

// shown returns the state in which an instance is counted, 0 for none. The region that owns
// an instance counts it. ours is true if this region counts the instance: while the
// instance is wanted, or if it belongs to one of the region's own jobs that was stopped.
// After an instance was given back or revoked, another region counts it, and the end of an
// attempt in this region no longer counts. ended is true if this region counts the instance at least if it
// has ended.
func (s *attempts) shown(in *Instance, ours, wanted, ended bool) AllocState {
	switch {
	case s.best != nil && s.best.State == Running && s.best.Proving && s.best.Desired == Run:
		return Starting
	case s.best != nil:
		return s.best.State
	case s.disconnected:
		return Lost
	case (ours || ended) && in.Done:
		return Complete
	case (ours || ended) && in.Exhausted:
		return Failed
	case wanted:
		return Pending
	case s.last != nil && (ours || s.last.State == Stopped || s.last.State == Lost):
		return s.last.State
	}
	return 0
}
