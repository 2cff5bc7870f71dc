package state

import "slices"

const defaultPurge = 10_000

func (t *txn) purge(c *Purge) error {
	limit := c.Max
	if limit <= 0 {
		limit = defaultPurge
	}
	t.purgeAllocs(c.EndedBeforeUnixNano, limit)
	t.purgeJobs(c)
	t.purgeKeys(c.Keys)
	return nil
}

func (t *txn) purgeAllocs(before int64, limit int) {
	type dead struct {
		key endedKey
		ref allocKey
	}
	var list []dead
	for k, ref := range t.ended.All() {
		if k.at >= before || len(list) == limit {
			break
		}
		list = append(list, dead{k, ref})
	}
	for _, d := range list {
		a := t.alloc(d.ref)
		g := t.groupOf(a)
		g.allocs--
		t.byState[a.State]--
		t.instance(g, a.Index).remove(a.Seq)
		t.removeID(a.ID)
		if u := t.useFor(a.NodeNum); u != nil {
			u.allocs = u.allocs.Without(t.hasAlloc)
		}
		t.ended.Delete(t.own, d.key)
		t.forgets(a.NodeID)
		t.refresh(g, a.Index)
	}
}

// forgetEndedLocals forgets local jobs that are to be purged, and the slots of groups
// that their jobs no longer have, at once when the last of them has ended: not
// only a pass later. It looks at what the command touched.
func (t *txn) forgetEndedLocals() {
	var jobs []JobKey
	for _, g := range t.touched {
		if g.key.Local && len(g.slots) > 0 && g.wanted == 0 && !t.hasLive(g) {
			jobs = append(jobs, g.key.JobKey())
		}
	}
	slices.SortFunc(jobs, JobKey.Compare)
	for _, key := range slices.Compact(jobs) {
		t.forgetEndedLocal(key)
	}
}

func (t *txn) forgetEndedLocal(key JobKey) {
	l, ok := t.LocalJob(key.Namespace, key.Job)
	if !ok {
		return
	}
	job, _ := t.Job(key, l.Version)
	purge, gone := l.Stopped && l.Purge, true
	for g := range t.groupsOf(key) {
		if g = t.touch(g); t.hasLive(g) {
			gone = false
			continue
		}
		if len(g.slots) > 0 && (purge || job != nil && job.Group(g.key.Group) == nil) {
			t.setSlots(g, nil, nil)
		}
	}
	if purge && gone {
		t.dropLocal(key)
		t.res.Changed, t.res.Purged = true, append(t.res.Purged, key)
	}
}

// hasLive says that an allocation of the group has not ended.
func (t *txn) hasLive(g *group) bool {
	if g.byState[Starting]+g.byState[Running] > 0 {
		return true
	}
	for a := range g.attempts() {
		if a.Live() {
			return true
		}
	}
	return false
}

// purgeJobs forgets the job versions that the proposer found unused, as far as
// nothing has happened to their jobs since: so Apply need not look at more than
// the jobs named.
func (t *txn) purgeJobs(c *Purge) {
	for _, u := range c.Jobs {
		if _, ok := t.Job(u.Key, u.Version); ok && !t.changedSince(u.Key, c.SeenIndex) {
			t.dropVersion(u.Key, u.Version)
			t.res.Changed = true
		}
	}
}

// changedSince says that a job, or anything of it, was written to after index.
func (t *txn) changedSince(key JobKey, index uint64) bool {
	if l, ok := t.LocalJob(key.Namespace, key.Job); key.Local && ok && l.Revision > index {
		return true
	}
	for g := range t.groupsOf(key) {
		if g.modify > index {
			return true
		}
	}
	return false
}

func (t *txn) purgeKeys(keys []string) {
	for _, k := range keys {
		if rec, ok := t.keys.Get(str(k)); ok && rec.Idempotency.ExpiresUnixNano <= t.now {
			t.keys.Delete(t.own, str(k))
			t.res.Changed = true
		}
	}
}

// Purgeable is the command that forgets what has ended by now, at most limit job
// versions and idempotency keys; nil when there is nothing. It looks through
// the whole view: the proposer does that aside, Apply must not.
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

// unusedJobs are job versions to which nothing refers any more. The newest one
// of a job is mostly found in use by its slots: only of the others, and of jobs
// that are gone, are the allocations looked at.
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

// refersTo says that a slot, a local job or an allocation is of a job version.
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
