package state

import (
	"iter"
	"slices"
)

const defaultPurge = 10_000

// collectKeys reads the keys before a caller changes what they are read from.
func collectKeys(groups iter.Seq[*GroupView]) iter.Seq[GroupKey] {
	var keys []GroupKey
	for g := range groups {
		keys = append(keys, g.Key)
	}
	return slices.Values(keys)
}

func (t *txn) purge(c *Purge) error {
	limit := c.Max
	if limit <= 0 {
		limit = defaultPurge
	}
	t.purgeLocals(limit)
	t.purgeAllocs(c.EndedBeforeUnixNano, limit)
	t.purgeJobs(limit)
	t.purgeKeys(limit)
	return nil
}

func (t *txn) purgeAllocs(before int64, limit int) {
	type dead struct {
		key endedKey
		ref allocKey
	}
	var list []dead
	for k, ref := range t.ended.all() {
		if k.at >= before || len(list) == limit {
			break
		}
		list = append(list, dead{k, ref})
	}
	for _, d := range list {
		a, _ := t.allocs.get(d.ref)
		g := t.groupFor(a.Key())
		g.allocs--
		t.byState[a.State]--
		t.allocs.delete(t.own, d.ref)
		t.byID.delete(t.own, str(a.ID))
		t.byNode.delete(t.own, nodeAlloc{a.NodeNum, a.Seq})
		t.ended.delete(t.own, d.key)
		t.orders[a.NodeID] = struct{}{}
		t.refresh(g, d.ref.index)
	}
}

// purgeLocals forgets stopped local jobs that are to be purged, and the slots
// of groups that their jobs no longer have, once nothing of them lives.
func (t *txn) purgeLocals(limit int) {
	var jobs []*LocalJob
	for l := range t.LocalJobs() {
		if len(jobs) == limit {
			break
		}
		jobs = append(jobs, l)
	}
	for _, l := range jobs {
		job, _ := t.Job(l.Key(), l.Version)
		purge, gone := l.Stopped && l.Purge, true
		for key := range collectKeys(t.JobGroups(l.Key())) {
			if t.lives(key) {
				gone = false
				continue
			}
			if purge || job != nil && job.Group(key.Group) == nil {
				if g, _ := t.group(key); len(g.slots) > 0 {
					t.setSlots(t.touch(g), nil, nil)
				}
			}
		}
		if purge && gone {
			t.locals.delete(t.own, str(l.Namespace+"/"+l.Name))
			t.res.Changed = true
		}
	}
}

func (t *txn) lives(key GroupKey) bool {
	for a := range t.GroupAllocs(key) {
		if a.Live() {
			return true
		}
	}
	return false
}

// purgeJobs forgets job versions to which nothing refers any more.
func (t *txn) purgeJobs(limit int) {
	used := make(map[jobVersion]struct{}, t.jobs.size)
	for s := range t.Slots() {
		used[jobVersion{s.Key().JobKey().String(), s.JobVersion}] = struct{}{}
	}
	for a := range t.Allocs() {
		used[jobVersion{a.Key().JobKey().String(), a.JobVersion}] = struct{}{}
	}
	for l := range t.LocalJobs() {
		used[jobVersion{l.Key().String(), l.Version}] = struct{}{}
	}
	var unused []jobVersion
	for k := range t.jobs.all() {
		if _, ok := used[k]; !ok && len(unused) < limit {
			unused = append(unused, k)
		}
	}
	for _, k := range unused {
		t.jobs.delete(t.own, k)
		t.res.Changed = true
	}
}

func (t *txn) purgeKeys(limit int) {
	var expired []str
	for k, rec := range t.keys.all() {
		if rec.Idempotency.ExpiresUnixNano <= t.now && len(expired) < limit {
			expired = append(expired, k)
		}
	}
	for _, k := range expired {
		t.keys.delete(t.own, k)
		t.res.Changed = true
	}
}
