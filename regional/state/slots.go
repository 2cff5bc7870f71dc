package state

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

func applyOrders(t *txn, c *ApplyOrders) error {
	have := t.cluster.Orders
	if c.Position.Epoch == have.Epoch && c.Position.Sequence < have.Sequence {
		return fmt.Errorf("%w: slot orders %d, stored %d", ErrStalePosition, c.Position.Sequence, have.Sequence)
	}
	for i := range c.Orders {
		noteRevision(t, c.Orders[i].Slot.Revision)
		applySlotOrder(t, &c.Orders[i])
	}
	for _, id := range c.Removed {
		removeSlot(t, id)
	}
	if t.cluster.OrdersIncomplete != c.More {
		t.cluster.OrdersIncomplete, t.res.Changed = c.More, true
	}
	if !c.More {
		noteRevision(t, int64(c.Position.Sequence)) // removals have no revision of their own
		if have == (Position{}) {                   // these are the first orders since a rebind, or at all
			endRebound(t)
		}
	}
	if !c.More && c.Position != have {
		t.cluster.Orders, t.res.Changed = c.Position, true
	}
	return nil
}

func applySlotOrder(t *txn, o *SlotOrder) {
	s := o.Slot
	s.Local = false
	if s.From < 0 || s.To <= s.From {
		t.skip(s.ID(), ReasonStaleOrder, "range %d..%d is not a slot", s.From, s.To)
		return
	}
	if held := slotAt(t, s.Key(), s.From); held != nil && s.Revision < held.Revision {
		t.skip(s.ID(), ReasonStaleOrder, "revision %d, stored %d", s.Revision, held.Revision)
		return
	}
	job := orderedJob(t, o)
	if job != nil && job.Group(s.Group) == nil {
		job = nil
	}
	refusal := ""
	switch {
	case s.Desired < Run || s.Desired > Hold:
		refusal = fmt.Sprintf("desired %d is not known here: upgrade the region", s.Desired)
		s.Desired = Run
	case s.Desired != Run: // the end of a slot does not need the job
	case s.To > MaxInstances:
		refusal = fmt.Sprintf("index %d is beyond %d, the greatest", s.To-1, MaxInstances-1)
	case job == nil:
		refusal = fmt.Sprintf("version %d of its job is not readable here or has no such group", s.JobVersion)
	}
	if refusal != "" {
		t.skip(s.ID(), ReasonUnsupported, "%s", refusal)
	}
	endOverride(t, &s)
	var before []*Slot
	if g, ok := t.group(s.Key()); ok {
		before = slices.Clone(g.slots)
	}
	putSlot(t, s, job, refusal)
	if s.Desired == Run && refusal == "" {
		carryAttempts(t, &s, job, o.Attempts, before)
	}
}

// rejected returns the answer about a slot that cannot run in this region at all. The slot
// is stored like an accepted one, so that the answer is repeated until it has arrived.
func rejected(s *Slot, why string) Answer {
	return Answer{
		Namespace: s.Namespace, Job: s.Job, Group: s.Group, From: s.From, To: s.To,
		Generation: s.Generation, State: SlotRejected, Reason: ReasonUnsupported, Message: why,
	}
}

// slotAt returns the group's slot that begins at from, or nil if there is none.
func slotAt(t *txn, key GroupKey, from int32) *Slot {
	if g, ok := t.group(key); ok {
		for _, s := range g.slots {
			if s.From == from {
				return s
			}
		}
	}
	return nil
}

// FieldsLevel is the feature level from which on an order completes a job version that was stored at a lower level,
// without the fields that servers did not know there.
const FieldsLevel = 16

// orderedJob returns the job version in an order. It stores the version if it is new. The
// log may have another spec with the same version. That spec belongs to a purged job of the
// same name, or to a version that the federation's store forgot when an old copy of it was
// restored.
func orderedJob(t *txn, o *SlotOrder) *Job {
	key := JobKey{Namespace: o.Slot.Namespace, Job: o.Slot.Job}
	have, ok := t.Job(key, o.Slot.JobVersion)
	same := ok && o.Job != nil && bytes.Equal(have.Spec, o.Job.Spec)
	if o.Job == nil || o.Job.Version != o.Slot.JobVersion || same && !t.Older(have) {
		return have
	}
	if ok && !same { // the old spec is still needed to stop its instances
		t.followOld(key, o.Slot.JobVersion, t.keepOld(have))
	}
	job := *o.Job
	job.Key, job.CreateIndex = key, t.index
	t.putJob(&job)
	return &job
}

// oldVersionsLevel is the feature level from which on each old spec has a version of its own.
const oldVersionsLevel = 3

// keepOld stores the spec of a version under another version, which is at most 0, because
// another spec gets the version. It returns the other version. A job may have several old
// specs whose instances may still run.
func (t *txn) keepOld(j *Job) int64 {
	old := *j
	old.Version = 0
	if t.cluster.FeatureLevel >= oldVersionsLevel {
		for _, v := range t.jobEntry(j.Key).versions {
			if v.Version <= 0 && bytes.Equal(v.Spec, j.Spec) {
				return v.Version
			}
			old.Version = min(old.Version, v.Version-1)
		}
	}
	t.putJob(&old)
	return old.Version
}

// followOld lets allocations of a version that may still run refer to the version old
// instead, under which their spec is stored. Their agents know only that spec.
func (t *txn) followOld(key JobKey, version, old int64) {
	if t.cluster.FeatureLevel == 0 {
		return // a server of the region may have a version without followOld
	}
	for _, m := range t.jobEntry(key).groups {
		g, ok := t.groups.Get(m.gid)
		if !ok {
			continue
		}
		var follow []Alloc
		for a := range g.attempts() {
			if a.JobVersion == version && (a.Live() || a.Charged) {
				follow = append(follow, *a)
			}
		}
		for i := range follow {
			g, c := t.touch(g), &follow[i]
			p := *c.Placement
			p.JobVersion = old
			c.Placement = g.sharePlacement(p)
			t.putAllocOf(g, c)
		}
	}
}

func (t *txn) putJob(j *Job) {
	t.addVersion(forLevel(j, t.cluster.FeatureLevel))
	t.res.Changed = true
}

// putSlot stores a slot order, and replaces the slot with the same From. job is nil if it
// is not known. refusal is the reason why the slot cannot run in this region, or empty.
func putSlot(t *txn, s Slot, job *Job, refusal string) {
	var slots []*Slot
	if g, ok := t.group(s.Key()); ok {
		slots = g.slots
	}
	if t.cluster.FeatureLevel < ParallelLevel {
		s.Parallel = 0
	}
	s.Returned, s.CommittedUnixNano, s.Held = nil, t.now, 0
	s.CreateIndex, s.ModifyIndex = t.index, t.index
	if refusal != "" {
		s.Returned = []Answer{rejected(&s, refusal)}
	}
	at, held := slices.BinarySearchFunc(slots, s.From, func(o *Slot, from int32) int { return cmp.Compare(o.From, from) })
	if held {
		old := slots[at]
		s.CreateIndex = old.CreateIndex
		if s.Generation == old.Generation {
			s.CommittedUnixNano = old.CommittedUnixNano
			if refusal == "" {
				s.Returned = clip(old.Returned, s.From, s.To)
			}
		}
		if sameSlot(old, &s) {
			return
		}
		slots = slices.Clone(slots)
		slots[at] = &s
	} else {
		slots = slices.Insert(slices.Clone(slots), at, &s)
	}
	g := t.groupFor(s.Key())
	t.setSlots(g, slots, job)
	if s.Desired == Run && job != nil {
		t.renew(g, &s, job)
	}
}

func sameSlot(a, b *Slot) bool {
	return a.To == b.To && a.Generation == b.Generation && a.Revision == b.Revision && a.Run == b.Run &&
		a.JobVersion == b.JobVersion && a.Desired == b.Desired && a.State == b.State && a.UnlessConnected == b.UnlessConnected &&
		a.Unbound == b.Unbound && a.Parallel == b.Parallel
}

// clip returns the parts of answers that are inside from..to.
func clip(answers []Answer, from, to int32) []Answer {
	var out []Answer
	for _, a := range answers {
		a.From, a.To = max(a.From, from), min(a.To, to)
		if a.From < a.To {
			out = append(out, a)
		}
	}
	return out
}

// setSlots replaces a group's slots and counts all its instances again. job is the newest
// version of the job, or nil if the version did not change.
func (t *txn) setSlots(g *group, slots []*Slot, job *Job) {
	if job != nil && (g.priority != job.Priority || g.typ != job.Type) {
		t.undecided.Delete(t.own, rank{g.priority, g.gid})
		g.priority, g.typ = job.Priority, job.Type
		if g.typ == System {
			g.wanted = g.recorded
		}
	}
	g.slots = withHeld(t, g.key, slots)
	t.newestSlot(slots)
	g.countSlots()
	t.refreshAll(g)
}

func (t *txn) refreshAll(g *group) {
	var known []int32
	for in := range g.insts.all() {
		known = append(known, in.Index)
	}
	for _, i := range known {
		t.refresh(g, i)
	}
}

// countSlots counts the indices that the group's slots want and hold.
func (g *group) countSlots() {
	if g.typ == System {
		g.held = 0
		if s := g.systemSlot(); s != nil && s.Held > 0 {
			g.held = 1
		}
		return
	}
	g.wanted, g.held = wantedOf(g.slots)
}

// wantedOf counts the indices that slots want, and those that an override holds. Slots may overlap while a
// change of orders is incomplete. Each index counts once.
func wantedOf(slots []*Slot) (wanted, held int32) {
	wanted = countOnce(slots, (*Slot).WantedRanges)
	if slices.ContainsFunc(slots, func(s *Slot) bool { return s.Held > 0 }) {
		held = countOnce(slots, (*Slot).Ranges) - wanted
	}
	return wanted, held
}

// countOnce counts the indices in ranges of slots. Each index counts once.
func countOnce(slots []*Slot, ranges func(*Slot) [][2]int32) int32 {
	var all [][2]int32
	for _, s := range slots {
		all = append(all, ranges(s)...)
	}
	slices.SortFunc(all, func(a, b [2]int32) int { return cmp.Compare(a[0], b[0]) })
	var n, seen int32
	for _, r := range all {
		from := max(r[0], seen)
		if r[1] > from {
			n += r[1] - from
			seen = r[1]
		}
	}
	return n
}

// Ranges returns the parts from ≤ i < to that the region owns, in ascending order: see Owns.
func (s *Slot) Ranges() [][2]int32 {
	if s.Desired != Run {
		return nil
	}
	var out [][2]int32
	from := s.From
	for _, a := range s.Returned {
		if a.From > from {
			out = append(out, [2]int32{from, a.From})
		}
		from = max(from, a.To)
	}
	if from < s.To {
		out = append(out, [2]int32{from, s.To})
	}
	return out
}

// renew adapts a slot's instances to a new version of the slot. A new generation resets
// their attempts. A new run also resets their completions. A live allocation gets the
// slot's job version if its group and run are the same and the same leases bind it.
func (t *txn) renew(g *group, s *Slot, job *Job) {
	hash := job.Group(g.key.Group).Hash
	var indices []int32
	for in := range g.insts.all() {
		if g.typ == System || in.Index >= s.From && in.Index < s.To {
			indices = append(indices, in.Index)
		}
	}
	for _, i := range indices {
		t.renewOne(g, s, job, hash, i)
		t.refresh(g, i)
	}
}

// AgainLevel is the feature level from which on an instance that waits for its next attempt after a failure must
// become proven in a new version, too.
const AgainLevel = 15

func (t *txn) renewOne(g *group, s *Slot, job *Job, hash uint64, index int32) {
	in := t.instance(g, index)
	again := sameRun(in.Run, s.Run)
	if !again {
		in.Done, in.Reason, in.Message = false, "", ""
		in.Generation = 0
	}
	in.Run = s.Run
	spec := job.Group(g.key.Group)
	if in.Generation != s.Generation && keepsAttempts(t, in, s, spec) {
		in.Declined, in.Generation = nil, s.Generation
	}
	if in.Generation != s.Generation {
		if again && in.Failures > 0 && !in.Exhausted && t.cluster.FeatureLevel >= AgainLevel {
			in.Reason, in.Message = ReasonSuperseded, "" // the next attempt must become proven
		}
		in.Failures, in.NotBeforeUnixNano, in.Exhausted, in.Declined, in.Retry = 0, 0, false, nil, nil
		in.Generation = s.Generation
	}
	if t.cluster.FeatureLevel >= AttemptsLevel && spec.Retry != nil {
		in.Version = s.JobVersion
	}
	if in.Hash != hash {
		in.Done, in.Hash = false, hash
	}
	var change []Alloc
	for a := range in.attempts() {
		version := a.JobVersion
		switch {
		case a.GroupHash == hash && sameRun(a.Run, s.Run) && t.sameBinding(g.key, a.JobVersion, job):
			version = s.JobVersion
		case version == s.JobVersion: // the allocation belongs to a purged job of the same name
			version = 0
			if a.Live() && t.cluster.FeatureLevel >= oldVersionsLevel {
				version = t.keepOld(job) // the spec is the same
			}
		}
		if a.Live() && (a.Desired == Run || version <= 0) && a.JobVersion != version {
			c, p := *a, *a.Placement
			p.JobVersion = version
			c.Placement = g.sharePlacement(p)
			change = append(change, c)
		}
	}
	for i := range change {
		if _, kept := t.Job(job.Key, change[i].JobVersion); !kept { // a job was purged, and a job with the same spec was submitted
			forgotten := *job
			forgotten.Version = change[i].JobVersion
			t.putJob(&forgotten)
		}
		t.putAlloc(&change[i])
	}
}

// sameBinding reports whether the same leases bind a group in two versions of its job. An
// agent knows only the version that it was ordered to run, so another binding needs another
// attempt.
func (t *txn) sameBinding(key GroupKey, version int64, job *Job) bool {
	was, kept := t.Job(key.JobKey(), version)
	if t.cluster.FeatureLevel == 0 || !kept || was.Group(key.Group) == nil {
		return true
	}
	return was.Group(key.Group).Binding(key.Local) == job.Group(key.Group).Binding(key.Local)
}

// sameRun reports whether two runs are equal. Run 0 comes from an earlier version of Nusa,
// which did not number runs, and equals every run.
func sameRun(a, b int64) bool { return a == b || a == 0 || b == 0 }

func removeSlot(t *txn, id string) {
	key, from, ok := parseSlotID(id)
	if !ok {
		t.skip(id, ReasonStaleOrder, "it is not the key of a slot")
		return
	}
	g, ok := t.group(key)
	if !ok {
		return
	}
	at := slices.IndexFunc(g.slots, func(s *Slot) bool { return s.From == from })
	if at < 0 {
		return
	}
	g = t.touch(g)
	t.setSlots(g, slices.Delete(slices.Clone(g.slots), at, at+1), nil)
}

// parseSlotID reads a key that SlotID made: "namespace/job/group/from".
func parseSlotID(id string) (key GroupKey, from int32, ok bool) {
	parts := strings.Split(id, "/")
	if len(parts) != 4 {
		return key, 0, false
	}
	n, err := strconv.ParseInt(parts[3], 10, 32)
	return GroupKey{Namespace: parts[0], Job: parts[1], Group: parts[2]}, int32(n), err == nil
}

func applyAnswers(t *txn, c *AnswerSlots) error {
	for i := range c.Answers {
		applyAnswer(t, c.Answers[i])
	}
	return nil
}

// applyAnswer records a part of a slot as given back, unless an instance in the part is
// live on a connected node. Masters of an earlier version also gave back instances that a
// lost node may still run. Such an instance ends when the node is back.
func applyAnswer(t *txn, a Answer) {
	id := SlotID(a.Namespace, a.Job, a.Group, a.From)
	key := GroupKey{Namespace: a.Namespace, Job: a.Job, Group: a.Group}
	if a.State != SlotReturned && a.State != SlotRejected {
		t.skip(id, ReasonStaleOrder, "%s is not recorded", a.State)
		return
	}
	g, ok := t.group(key)
	if !ok {
		t.skip(id, ReasonStaleOrder, "no slot of %s is held", key)
		return
	}
	at := slices.IndexFunc(g.slots, func(s *Slot) bool {
		return s.Generation == a.Generation && a.From >= s.From && a.To <= s.To && a.From < a.To
	})
	if at < 0 {
		t.skip(id, ReasonStaleOrder, "no slot of generation %d has %d..%d", a.Generation, a.From, a.To)
		return
	}
	s := *g.slots[at]
	for i := a.From; i < a.To; i++ {
		if !s.Wants(i) {
			t.skip(id, ReasonStaleOrder, "index %d is not wanted", i)
			return
		}
		for al := range g.insts.get(i).attempts() {
			if al.Live() && !al.Disconnected {
				t.skip(id, ReasonStaleOrder, "index %d is live as %s", i, al.ID)
				return
			}
		}
	}
	s.Returned = slices.Clone(s.Returned)
	where, _ := slices.BinarySearchFunc(s.Returned, a.From, func(o Answer, from int32) int { return cmp.Compare(o.From, from) })
	s.Returned = slices.Insert(s.Returned, where, a)
	s.ModifyIndex = t.index
	slots := slices.Clone(g.slots)
	slots[at] = &s
	g = t.touch(g)
	for i := a.From; i < a.To; i++ {
		if in := g.insts.get(i); in != nil && in.Retry != nil && in.Retry.Leave { // it has left, and may come back
			in = t.instance(g, i)
			stays := *in.Retry
			stays.Leave = false
			in.Retry = &stays
		}
	}
	t.setSlots(g, slots, nil)
}
