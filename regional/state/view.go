package state

import (
	"iter"
	"slices"
	"strings"
)

// GroupView is a group in a View.
type GroupView struct {
	Key         GroupKey
	Slots       []*Slot // sorted by From
	Counts      Counts  // instances by state; unplaced ones count as pending
	Wanted      int32   // how many indices must run in this region; of a system job: those that have a node
	Unplaced    int32   // how many of the wanted indices never had a node
	ModifyIndex uint64  // orders the summaries of an incarnation

	Priority int32 // of the newest version of its job

	gid uint32
}

func (g *group) view() *GroupView {
	n := &g.byState
	return &GroupView{
		Key: g.key, Slots: g.slots, Wanted: g.wanted, Unplaced: g.wanted - g.recorded, ModifyIndex: g.modify,
		Priority: g.priority, gid: g.gid,
		Counts: Counts{
			Pending:  n[Pending] + g.wanted - g.recorded,
			Starting: n[Starting],
			Running:  n[Running],
			Complete: n[Complete],
			Failed:   n[Failed],
			Stopped:  n[Stopped],
			Lost:     n[Lost],
			Outdated: g.outdated,
			Held:     g.heldNow(),
		},
	}
}

// heldNow returns Counts.Held. All instances of a batch job are held, or none, so those that have ended are
// not held.
func (g *group) heldNow() int32 {
	if g.typ != Batch || g.held == 0 {
		return g.held
	}
	return max(0, g.held-g.byState[Complete]-g.byState[Failed])
}

// Group finds a group.
func (v *View) Group(key GroupKey) (*GroupView, bool) {
	g, ok := v.group(key)
	if !ok {
		return nil, false
	}
	return g.view(), true
}

// Groups yields every group that has slots or allocations, sorted by job and name.
func (v *View) Groups() iter.Seq[*GroupView] {
	return func(yield func(*GroupView) bool) {
		for g := range v.allGroups() {
			if !yield(g.view()) {
				return
			}
		}
	}
}

// JobGroups yields the groups of one job, sorted by name.
func (v *View) JobGroups(key JobKey) iter.Seq[*GroupView] {
	return func(yield func(*GroupView) bool) {
		for g := range v.groupsOf(key) {
			if !yield(g.view()) {
				return
			}
		}
	}
}

// Undecided yields the groups that may need a decision. Such a group has an index without
// exactly one live allocation. Or it has an allocation that is not wanted, that does not
// have the slot's version, or whose node is lost or draining. All system groups are
// included. Groups with the highest priority come first, then the oldest.
func (v *View) Undecided() iter.Seq[*GroupView] {
	return func(yield func(*GroupView) bool) {
		for r := range v.undecided.All() {
			if g, ok := v.groups.Get(r.gid); ok && !yield(g.view()) {
				return
			}
		}
	}
}

// Slots yields every slot, including local ones, by group and From.
func (v *View) Slots() iter.Seq[*Slot] {
	return func(yield func(*Slot) bool) {
		for g := range v.allGroups() {
			for _, s := range g.slots {
				if !yield(s) {
					return
				}
			}
		}
	}
}

// Instances yields the stored instances of a group by index. They must not be changed.
func (v *View) Instances(key GroupKey) iter.Seq[*Instance] {
	return func(yield func(*Instance) bool) {
		if g, ok := v.Group(key); ok {
			v.InstancesIn(g)(yield)
		}
	}
}

// InstancesIn is like Instances, for a group of this view.
func (v *View) InstancesIn(g *GroupView) iter.Seq[*Instance] {
	return func(yield func(*Instance) bool) {
		if of, ok := v.groups.Get(g.gid); ok {
			for in := range of.insts.all() {
				if !yield(&in.Instance) {
					return
				}
			}
		}
	}
}

// Instance returns the record of an index. Without a record, only Index is set.
func (v *View) Instance(key GroupKey, index int32) Instance {
	if g, ok := v.group(key); ok {
		if in := g.insts.get(index); in != nil {
			return in.Instance
		}
	}
	return Instance{Index: index}
}

// Allocs yields all allocations by group, index and Seq. Groups come in the order in which
// they were first stored.
func (v *View) Allocs() iter.Seq[*Alloc] {
	return func(yield func(*Alloc) bool) {
		for _, g := range v.groups.All() {
			for a := range g.attempts() {
				if !yield(a) {
					return
				}
			}
		}
	}
}

// EndedBefore reports whether Purge would find an allocation to remove.
func (v *View) EndedBefore(unixNano int64) bool {
	for k := range v.ended.All() {
		return k.at < unixNano
	}
	return false
}

// GroupAllocs yields a group's allocations by index and Seq.
func (v *View) GroupAllocs(key GroupKey) iter.Seq[*Alloc] {
	return func(yield func(*Alloc) bool) {
		if g, ok := v.Group(key); ok {
			v.AllocsIn(g)(yield)
		}
	}
}

// AllocsIn is like GroupAllocs, for a group of this view.
func (v *View) AllocsIn(g *GroupView) iter.Seq[*Alloc] {
	return func(yield func(*Alloc) bool) {
		if of, ok := v.groups.Get(g.gid); ok {
			of.attempts()(yield)
		}
	}
}

// InstanceAllocs yields one instance's allocations by Seq.
func (v *View) InstanceAllocs(key GroupKey, index int32) iter.Seq[*Alloc] {
	return func(yield func(*Alloc) bool) {
		if g, ok := v.group(key); ok {
			g.insts.get(index).attempts()(yield)
		}
	}
}

// ExemptFromRevoke reports whether an index stays although its slot is revoked with
// UnlessConnected. It stays if an attempt with desired state run is on a connected node. It
// also stays if a batch instance has completed, because another region would run it again.
// An index that was given back does not stay.
func (v *View) ExemptFromRevoke(s *Slot, index int32) bool {
	if s.Desired != Revoke || !s.UnlessConnected || index < s.From || index >= s.To || s.returned(index) {
		return false
	}
	if in := v.Instance(s.Key(), index); in.CompletedIn(s.Run) {
		return true
	}
	for a := range v.InstanceAllocs(s.Key(), index) {
		if a.Live() && !a.Disconnected && a.Desired == Run {
			return true
		}
	}
	return false
}

// slot returns the slot that governs an index, and whether the slot wants the index.
func (v *View) slot(g *group, index int32) (*Slot, bool) {
	if g.typ != System {
		s := SlotOf(g.slots, index)
		return s, s != nil && s.Wants(index)
	}
	s := g.systemSlot()
	return s, v.exists(index) && s != nil && s.Wants(s.From)
}

// exists reports whether the node of a system instance is registered.
func (v *View) exists(index int32) bool {
	_, ok := v.uses.Get(uint32(index))
	return ok
}

// SharedWith reports whether the node is charged for an allocation of another job.
func (v *View) SharedWith(n *Node, job JobKey) bool {
	if v.useOf(n.Num).Allocs == 0 {
		return false
	}
	for a := range v.allocsOn(n.Num) {
		if a.Charged && a.Key().JobKey() != job {
			return true
		}
	}
	return false
}

// Unmentioned returns the allocations to release. The node is charged for them although
// they have ended, and its full set of reports does not mention them.
func (v *View) Unmentioned(nodeID string, mentioned func(id string) bool) []string {
	var out []string
	for a := range v.NodeAllocs(nodeID) {
		if a.Charged && !a.Live() && !mentioned(a.ID) {
			out = append(out, a.ID)
		}
	}
	return out
}

// Purgeable returns the command that removes ended entries: at most limit job versions and
// limit idempotency keys. It returns nil if there is nothing to remove. It reads the whole
// view. The proposer can do that in the background, but Apply must not.
func (v *View) Purgeable(endedBefore, now int64, limit int) *Purge {
	c := &Purge{EndedBeforeUnixNano: endedBefore, SeenIndex: v.index, Jobs: v.unusedJobs(limit)}
	for k, rec := range v.keys.All() {
		if rec.Idempotency.ExpiresUnixNano <= now && len(c.Keys) < limit {
			c.Keys = append(c.Keys, string(k))
		}
	}
	if len(c.Jobs) == 0 && len(c.Keys) == 0 && !v.EndedBefore(endedBefore) {
		return nil
	}
	return c
}

// unusedJobs returns job versions to which nothing refers. Usually a slot refers to the
// newest version of a job. So allocations are read only for other versions, and for jobs
// without slots.
func (v *View) unusedJobs(limit int) []JobVersion {
	var unused []JobVersion
	for j := range v.versions() {
		if len(unused) == limit {
			break
		}
		if !v.refersTo(j) {
			unused = append(unused, JobVersion{j.Key, j.Version})
		}
	}
	return unused
}

// refersTo reports whether a slot, a local job or an allocation refers to a job version.
func (v *View) refersTo(j *Job) bool {
	for g := range v.groupsOf(j.Key) {
		if slices.ContainsFunc(g.slots, func(s *Slot) bool { return s.JobVersion == j.Version }) {
			return true
		}
	}
	if l := v.jobEntry(j.Key).local; l != nil && l.Version == j.Version {
		return true
	}
	for g := range v.groupsOf(j.Key) {
		for a := range g.attempts() {
			if a.JobVersion == j.Version {
				return true
			}
		}
	}
	return false
}

// epochsPerIncarnation is how many attempts an instance may have in one incarnation.
const epochsPerIncarnation = 1 << 32

// NextEpoch returns the epoch of an instance's next attempt. The epochs of an incarnation
// are greater than all epochs of earlier incarnations, because a recovered log may lack the
// latest of the earlier epochs.
func (v *View) NextEpoch(in *Instance) int64 {
	base := int64(0)
	if n := v.cluster.Incarnation; n > 1 {
		base = int64(n-1) * epochsPerIncarnation
	}
	return max(in.Epoch, base) + 1
}

// Document returns the document of a key. Its value must not be changed.
func (v *View) Document(key string) (*Document, bool) { return v.documents.Get(str(key)) }

// Documents yields the documents whose keys begin with a prefix, sorted by key. Their values
// must not be changed.
func (v *View) Documents(prefix string) iter.Seq[*Document] {
	return func(yield func(*Document) bool) {
		for key, d := range v.documents.All() {
			if has := strings.HasPrefix(string(key), prefix); has && !yield(d) || !has && string(key) > prefix {
				return
			}
		}
	}
}

// SameDocuments reports whether no document was written or removed between two views of one
// state. It may also return false although nothing changed.
func (v *View) SameDocuments(old *View) bool { return v.documents.Same(&old.documents) }

// Override returns the override of a job of the federation. It must not be changed.
func (v *View) Override(namespace, job string) (*Override, bool) {
	o := v.jobEntry(JobKey{Namespace: namespace, Job: job}).override
	return o, o != nil
}

// Overrides yields all overrides by namespace and job. They must not be changed.
func (v *View) Overrides() iter.Seq[*Override] {
	return func(yield func(*Override) bool) {
		if v.overrides == 0 {
			return
		}
		for _, e := range v.jobs.All() {
			if e.override != nil && !yield(e.override) {
				return
			}
		}
	}
}

// Held returns how many instances of a job an override keeps stopped.
func (v *View) Held(key JobKey) (n int32) {
	for g := range v.JobGroups(key) {
		n += g.Counts.Held
	}
	return n
}
