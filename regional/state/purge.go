package state

import "slices"

const defaultPurge = 10_000

func applyPurge(t *txn, c *Purge) error {
	limit := c.Max
	if limit <= 0 {
		limit = defaultPurge
	}
	purgeAllocs(t, c.EndedBeforeUnixNano, limit)
	purgeJobs(t, c)
	purgeKeys(t, c.Keys)
	return nil
}

func purgeAllocs(t *txn, before int64, limit int) {
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

// forgetEndedLocals runs in every command. It removes local jobs that are to be purged, as
// soon as their last instance has ended. It also removes the slots of groups that such jobs
// no longer have. It reads only the groups that the command touched.
func forgetEndedLocals(t *txn) {
	var jobs []JobKey
	for _, g := range t.touched {
		if g.key.Local && len(g.slots) > 0 && g.wanted == 0 && !hasLive(t, g) {
			jobs = append(jobs, g.key.JobKey())
		}
	}
	slices.SortFunc(jobs, JobKey.Compare)
	for _, key := range slices.Compact(jobs) {
		forgetEndedLocal(t, key)
	}
}

func forgetEndedLocal(t *txn, key JobKey) {
	l, ok := t.LocalJob(key.Namespace, key.Job)
	if !ok {
		return
	}
	job, _ := t.Job(key, l.Version)
	purge, gone := l.Stopped && l.Purge, true
	for g := range t.groupsOf(key) {
		g = t.touch(g)
		if hasLive(t, g) {
			gone = false
			continue
		}
		if len(g.slots) > 0 && (purge || job != nil && job.Group(g.key.Group) == nil) {
			t.setSlots(g, nil, nil)
		}
	}
	if purge && gone {
		t.dropLocal(key)
		t.dropAllStored(key)
		jobEvent(t, EventJobPurged, key, l.Version)
		t.res.Changed = true
	}
}

// hasLive reports whether an allocation of the group has not ended.
func hasLive(t *txn, g *group) bool {
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

// purgeJobs removes the job versions that the proposer found unused, unless their jobs have
// changed since. So Apply reads only the jobs in the command.
func purgeJobs(t *txn, c *Purge) {
	for _, u := range c.Jobs {
		if _, ok := t.Job(u.Key, u.Version); ok && !changedSince(t, u.Key, c.SeenIndex) {
			t.dropVersion(u.Key, u.Version)
			t.res.Changed = true
		}
	}
}

// changedSince reports whether a job, or one of its groups, was changed after index.
func changedSince(t *txn, key JobKey, index uint64) bool {
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

func purgeKeys(t *txn, keys []string) {
	for _, k := range keys {
		if rec, ok := t.keys.Get(str(k)); ok && rec.Idempotency.ExpiresUnixNano <= t.now {
			t.keys.Delete(t.own, str(k))
			t.res.Changed = true
		}
	}
}
