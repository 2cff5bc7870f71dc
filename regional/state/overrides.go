package state

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/internal/plant"
)

// OverrideLevel is the feature level from which on the log may have SetOverride, and the state has
// overrides and Slot.Held.
const OverrideLevel = 12

// MaxOverrides bounds the jobs that have an override. maxOverrideReason bounds the bytes of its reason.
const (
	MaxOverrides      = 1000
	maxOverrideReason = 256
)

// Override says that the region does not run all of its part of a job of the federation, because an
// operator of the region stopped or scaled the job here. It stays until it is cleared, or until the
// region gets a slot of a later run of the job.
type Override struct {
	Namespace string
	Job       string
	// Run is the run of the job for which the override was set. 0: unknown, so no later run ends it.
	// Negative: the region was bound to another federation since, see reboundOverrides.
	Run int64
	// Stopped: the groups without a bound of their own run nothing.
	Stopped bool
	// Groups have a bound of their own. Sorted by group.
	Groups []GroupBound
	Reason string
	By     string
	// SetUnixNano is when it was set last, and Index the index of the log at which it was.
	SetUnixNano int64
	Index       uint64
}

// GroupBound bounds how many instances of a group run in the region. Count is -1 for a group without a
// bound of a job that is stopped.
type GroupBound struct {
	Group string
	Count int32
}

// SetOverride sets, changes or clears the override of a job. It needs Cluster.FeatureLevel OverrideLevel.
// Errors: ErrNotFound, ErrBeyondSlots, ErrNotService, ErrFull, ErrInvalid.
type SetOverride struct {
	Namespace string
	Job       string
	// Clear removes the override.
	Clear bool
	// Stop stops all groups, and replaces the bounds of groups.
	Stop bool
	// Group gets the bound Count, unless Clear or Stop is set. The number of instances that the region
	// owns removes the bound.
	Group  string
	Count  int32
	Reason string
	By     string
}

// bound returns the greatest number of instances of a group that run. It returns false if there is no
// bound.
func (o *Override) bound(group string) (int32, bool) {
	if o == nil {
		return 0, false
	}
	if i, own := o.find(group); own {
		return o.Groups[i].Count, o.Groups[i].Count >= 0
	}
	return 0, o.Stopped
}

func (o *Override) find(group string) (int, bool) {
	return slices.BinarySearchFunc(o.Groups, group, func(b GroupBound, name string) int { return strings.Compare(b.Group, name) })
}

// with returns the bounds with another bound of one group.
func (o *Override) with(group string, count int32) []GroupBound {
	out := slices.Clone(o.Groups)
	if i, own := o.find(group); own {
		out[i].Count = count
	} else {
		out = slices.Insert(out, i, GroupBound{group, count})
	}
	return out
}

// Text says what the override does, for example "stopped" or "web scaled to 2".
func (o *Override) Text() string {
	var parts []string
	if o.Stopped {
		parts = append(parts, "stopped")
	}
	for _, b := range o.Groups {
		if b.Count < 0 {
			parts = append(parts, "but not "+b.Group)
			continue
		}
		parts = append(parts, fmt.Sprintf("%s scaled to %d", b.Group, b.Count))
	}
	return strings.Join(parts, ", ")
}

// setOverride stores the override of a job, or removes it if o is nil.
func (s *State) setOverride(key JobKey, o *Override) {
	e := s.jobEntryFor(key)
	if e.override != nil {
		s.overrides--
	}
	if o != nil {
		s.overrides++
	}
	e.override = o
	s.dropEmptyJob(key)
}

func applyOverride(t *txn, c *SetOverride) error {
	key := JobKey{Namespace: c.Namespace, Job: c.Job}
	old, _ := t.Override(c.Namespace, c.Job)
	switch {
	case t.cluster.FeatureLevel < OverrideLevel:
		return fmt.Errorf("%w: an override needs feature level %d, the region has %d", ErrInvalid, OverrideLevel, t.cluster.FeatureLevel)
	case len(c.Reason) > maxOverrideReason:
		return fmt.Errorf("%w: a reason of %d bytes, at most %d", ErrInvalid, len(c.Reason), maxOverrideReason)
	case c.Clear && old == nil:
		return nil
	case c.Clear:
		changeOverride(t, key, nil, EventOverrideCleared, old.Text())
		return nil
	case old == nil && t.overrides >= MaxOverrides:
		return fmt.Errorf("%w: %d jobs of the region have an override: clear one with `nusa job override clear`", ErrFull, MaxOverrides)
	}
	run, found := runOf(&t.View, key)
	if !found {
		return fmt.Errorf("%w: region %s has no part of job %s", ErrNotFound, t.cluster.Region, key)
	}
	switch { // after a rebind, the slots are still those of the former federation
	case old != nil && old.Run == runOver:
		run = runOver
	case old != nil && old.Run < 0, old == nil && ofFormer(t, key):
		run = -1 - run
	}
	next := &Override{Namespace: c.Namespace, Job: c.Job, Run: run, Reason: c.Reason, By: c.By, SetUnixNano: t.now, Index: t.index}
	if c.Stop {
		next.Stopped = true
	} else {
		if old != nil {
			next.Stopped, next.Groups = old.Stopped, old.Groups
		}
		if err := scaleOverride(t, next, c); err != nil {
			return err
		}
	}
	switch {
	case next.Stopped || len(next.Groups) > 0:
		changeOverride(t, key, next, EventJobOverridden, next.Text())
	case old != nil: // the last bound is gone
		changeOverride(t, key, nil, EventOverrideCleared, old.Text())
	}
	return nil
}

// scaleOverride sets the bound of the command's group.
func scaleOverride(t *txn, o *Override, c *SetOverride) error {
	g, ok := t.group(GroupKey{Namespace: c.Namespace, Job: c.Job, Group: c.Group})
	key := JobKey{Namespace: c.Namespace, Job: c.Job}
	owned := int32(0)
	if ok {
		wanted, held := wantedOf(g.slots)
		owned = wanted + held
	}
	switch {
	case owned == 0:
		return fmt.Errorf("%w: region %s has no instance of group %q of job %s", ErrNotFound, t.cluster.Region, c.Group, key)
	case g.typ != Service:
		return fmt.Errorf("%w: job %s: only groups of services can be scaled in one region; it can be stopped here", ErrNotService, key)
	case c.Count < 0:
		return fmt.Errorf("%w: count %d of group %s", ErrInvalid, c.Count, c.Group)
	case c.Count > owned:
		return fmt.Errorf("%w: region %s has %d of the instances of group %s of job %s, so it cannot run %d: more come only from the federation, by `nusa job scale` at a global server",
			ErrBeyondSlots, t.cluster.Region, owned, c.Group, key, c.Count)
	case c.Count < owned:
		o.Groups = o.with(c.Group, c.Count)
	case o.Stopped:
		o.Groups = o.with(c.Group, -1)
	default:
		o.Groups = slices.DeleteFunc(slices.Clone(o.Groups), func(b GroupBound) bool { return b.Group == c.Group })
	}
	return nil
}

// changeOverride stores or removes an override, and adapts the job's slots.
func changeOverride(t *txn, key JobKey, o *Override, kind EventKind, text string) {
	t.setOverride(key, o)
	message := text
	if o != nil && o.Reason != "" {
		message += ": " + o.Reason
	}
	addEvent(t, Event{Kind: kind, Namespace: key.Namespace, Job: key.Job, Message: message})
	for _, g := range slices.Collect(t.groupsOf(key)) {
		g = t.touch(g)
		t.setSlots(g, g.slots, nil)
	}
	t.res.Changed = true
}

// runOver is Override.Run once the region was bound to two other federations since: no rebind lets it count again.
const runOver = math.MinInt64

// RebindLevel is the feature level from which on a rebind ends the overrides.
const RebindLevel = 15

// reboundOverrides marks the overrides of the former federation's jobs. Its instances stay held until the
// orders of the other federation are complete, so nothing starts that these orders would stop again. If
// the region returns to the former federation before that, the overrides count again.
func reboundOverrides(t *txn, returns bool) {
	if t.cluster.FeatureLevel < RebindLevel {
		return
	}
	for _, o := range slices.Collect(t.Overrides()) {
		if plant.Is(plant.ReboundEnded) {
			t.setOverride(JobKey{Namespace: o.Namespace, Job: o.Job}, nil)
			continue
		}
		run := -1 - o.Run
		if o.Run < 0 && !returns {
			run = runOver
		}
		if o.Run != runOver && (o.Run < 0 || !returns || t.cluster.FeatureLevel >= EachSlotLevel) {
			marked := *o
			marked.Run = run
			t.setOverride(JobKey{Namespace: o.Namespace, Job: o.Job}, &marked)
		}
	}
}

// ofFormer reports whether the slots of a job are those of the federation that the region was bound to before, because
// no orders came since the rebind. A region that returned to its federation has the slots of that one: the other
// federation had no leadership in the region's log, unless its servers had welcomed the region meanwhile.
func ofFormer(t *txn, key JobKey) bool {
	if t.cluster.FeatureLevel < RebindLevel || t.cluster.Orders != (Position{}) || t.cluster.Former.LeadershipTerm == 0 {
		return false
	}
	for g := range t.groupsOf(key) {
		for _, s := range g.slots {
			if s.Desired == Run && s.Revision > 0 { // of the new federation
				return false
			}
		}
	}
	return true
}

// endRebound removes the overrides of jobs of a former federation.
func endRebound(t *txn) {
	for _, o := range slices.Collect(t.Overrides()) {
		if o.Run < 0 && !plant.Is(plant.ReboundKept) {
			changeOverride(t, JobKey{Namespace: o.Namespace, Job: o.Job}, nil, EventOverrideEnded, o.Text())
		}
	}
}

// endOverride removes the override of an earlier run, or of a former federation, than that of a slot which
// the region has to run.
func endOverride(t *txn, s *Slot) {
	o, ok := t.Override(s.Namespace, s.Job)
	if ok && s.Desired == Run && (o.Run < 0 || o.Run > 0 && (s.Run > o.Run || plant.Is(plant.OverrideEnded))) {
		changeOverride(t, s.Key().JobKey(), nil, EventOverrideEnded, o.Text())
	}
}

// runOf returns the latest run of a job that slots of the region want, and whether there is any.
func runOf(v *View, key JobKey) (run int64, found bool) {
	for g := range v.groupsOf(key) {
		for _, s := range g.slots {
			if s.Desired == Run {
				run, found = max(run, s.Run), true
			}
		}
	}
	return run, found
}

// withHeld returns the slots with Slot.Held as the override of the group's job demands. The lowest
// indices run, like after a scaling of the job.
func withHeld(t *txn, key GroupKey, slots []*Slot) []*Slot {
	first := int32(math.MaxInt32)
	if !key.Local && t.overrides > 0 {
		if count, bounded := t.jobEntry(key.JobKey()).override.bound(key.Group); bounded {
			first = firstHeld(slots, count)
		}
	}
	copied := false
	for i, s := range slots {
		held := int32(0)
		if plant.Is(plant.BoundOfSlot) && first < math.MaxInt32 {
			count, _ := t.jobEntry(key.JobKey()).override.bound(key.Group)
			first = s.From + count
		}
		if s.Desired == Run && first < s.To {
			held = s.To - max(first, s.From)
		}
		if s.Held == held {
			continue
		}
		if !copied {
			slots, copied = slices.Clone(slots), true
		}
		c := *s
		c.Held, c.ModifyIndex = held, t.index
		slots[i] = &c
	}
	return slots
}

// firstHeld returns the index from which on instances are held, so that count lower ones run. Slots may
// overlap while a change of orders is incomplete.
func firstHeld(slots []*Slot, count int32) int32 {
	var all [][2]int32
	for _, s := range slots {
		all = append(all, s.Ranges()...)
	}
	slices.SortFunc(all, func(a, b [2]int32) int { return cmp.Compare(a[0], b[0]) })
	seen := int32(0)
	for _, r := range all {
		from := max(r[0], seen)
		if n := r[1] - from; n > count {
			return from + count
		} else if n > 0 {
			count, seen = count-n, r[1]
		}
	}
	return math.MaxInt32
}

// Owns reports whether index i of the slot belongs to this region: desired run, inside the range and not
// given back. An override may keep it stopped.
func (s *Slot) Owns(i int32) bool {
	return s.Desired == Run && i >= s.From && i < s.To && !s.returned(i)
}

// Holds reports whether an override keeps index i of the slot stopped.
func (s *Slot) Holds(i int32) bool { return i >= s.To-s.Held && i < s.To }

// Wants reports whether index i of the slot must run in this region: the region owns it, and no override
// holds it.
func (s *Slot) Wants(i int32) bool { return s.Owns(i) && !s.Holds(i) }

// WantedRanges returns the parts of Ranges that no override holds.
func (s *Slot) WantedRanges() [][2]int32 {
	all := s.Ranges()
	if s.Held == 0 {
		return all
	}
	out, end := all[:0], s.To-s.Held
	for _, r := range all {
		r[1] = min(r[1], end)
		if r[0] < r[1] {
			out = append(out, r)
		}
	}
	return out
}
