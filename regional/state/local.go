package state

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/internal/versions"
)

// repeatedRequest reports whether the idempotency key was used before. If so, it sets the
// stored result.
func repeatedRequest(t *txn, c Idempotency) (bool, error) {
	if c.Key == "" {
		return false, nil
	}
	k, ok := t.Key(c.Key)
	if !ok {
		if t.keys.Len() >= MaxIdempotencyKeys {
			return false, fmt.Errorf("%w: %d idempotency keys are stored", ErrFull, MaxIdempotencyKeys)
		}
		return false, nil
	}
	if k.Idempotency.Request != c.Request {
		return false, fmt.Errorf("%w: %q", ErrKeyReused, c.Key)
	}
	t.res.Version, t.res.Revision, t.res.Same = k.Version, k.Revision, k.Same
	return true, nil
}

func rememberRequest(t *txn, c Idempotency) {
	if c.Key != "" {
		t.keys.Set(t.own, str(c.Key), &KeyRecord{c, t.res.Version, t.res.Revision, t.res.Same})
		t.res.Changed = true
	}
}

func checkRevision(t *txn, key JobKey, have *LocalJob, want int64) error {
	var stored uint64
	if have != nil {
		stored = have.Revision
	}
	switch {
	case want == 0:
		return nil
	case want < 0 && have != nil:
		return fmt.Errorf("%w: job %s exists at %d", ErrStaleRevision, key.In(t.cluster.Region), stored)
	case want > 0 && uint64(want) != stored:
		return fmt.Errorf("%w: job %s is at %d, not %d", ErrStaleRevision, key.In(t.cluster.Region), stored, want)
	}
	return nil
}

func applySubmit(t *txn, c *SubmitLocalJob) error {
	key := c.Job.Key
	if !key.Local || len(c.Job.Groups) == 0 {
		return fmt.Errorf("%w: %s is not a job of the region's own", ErrInvalid, key)
	}
	for i := range c.Job.Groups {
		if n := c.Job.Groups[i].Count; n < 0 || n > MaxInstances {
			return fmt.Errorf("%w: count %d of group %s", ErrInvalid, n, c.Job.Groups[i].Name)
		}
	}
	if done, err := repeatedRequest(t, c.Idempotency); done || err != nil {
		return err
	}
	old, known := t.LocalJob(key.Namespace, key.Job)
	if err := checkRevision(t, key, old, c.CheckRevision); err != nil {
		return err
	}
	if err := checkJobType(t, old, &c.Job); err != nil {
		return err
	}
	if err := checkRunAgain(t, old, c); err != nil {
		return err
	}
	if err := checkNewTag(t, key, old, c); err != nil {
		return err
	}
	run := int64(t.index)
	if known && !old.Stopped && !c.Again {
		if have, ok := t.Job(key, old.Version); ok && bytes.Equal(have.Spec, c.Job.Spec) {
			t.res.Version, t.res.Revision, t.res.Same = old.Version, old.Revision, true
			if c.Tag != "" && c.Tag != old.Tag() {
				tagPresent(t, old, c.Tag)
				t.res.tagged = true
			}
			rememberRequest(t, c.Idempotency)
			return nil
		}
		if !t.localEnded(old) {
			run = old.Run
		}
	}
	if !known && t.localJobs >= MaxLocalJobs {
		return fmt.Errorf("%w: %d jobs of the region's own: purge some that have ended", ErrFull, MaxLocalJobs)
	}
	job := c.Job
	job.Version, job.CreateIndex = nextVersion(t, key), t.index
	next := &LocalJob{
		Namespace: key.Namespace, Name: key.Job, Version: job.Version,
		Revision: t.index, Run: run, SubmittedUnixNano: t.now,
	}
	next.Notes = keepVersion(t, old, &job, c.Tag)
	t.putJob(&job)
	t.setLocal(next)
	setLocalSlots(t, &job, run)
	jobEvent(t, EventJobSubmitted, key, job.Version)
	t.res.Version, t.res.Revision = job.Version, t.index
	rememberRequest(t, c.Idempotency)
	return nil
}

// checkJobType refuses a version that turns a system job into a job of another type, or the
// reverse. An index of a system job stands for a node, an index of another job is only a
// number.
func checkJobType(t *txn, old *LocalJob, job *Job) error {
	if old == nil {
		return nil
	}
	have, ok := t.Job(job.Key, old.Version)
	if !ok || (have.Type == System) == (job.Type == System) {
		return nil
	}
	how := "is no system job and cannot become one"
	if have.Type == System {
		how = "is a system job and cannot become another"
	}
	return fmt.Errorf("%w: job %s %s: stop that job with --purge and run this one after the purge, or give this one another name",
		ErrOtherType, job.Key.In(t.cluster.Region), how)
}

// checkRunAgain refuses SubmitLocalJob.Again for a job that cannot run again.
func checkRunAgain(t *txn, old *LocalJob, c *SubmitLocalJob) error {
	if !c.Again {
		return nil
	}
	name := c.Job.Key.In(t.cluster.Region)
	switch {
	case c.Job.Type != Batch:
		return fmt.Errorf("%w: job %s is no batch job: stop it, then run it", ErrStillWanted, name)
	case old != nil && !old.Stopped && !t.localEnded(old):
		return fmt.Errorf("%w: job %s has not ended: wait until it has, or stop it first", ErrStillWanted, name)
	}
	return nil
}

// nextVersion returns a version that is greater than every stored version.
func nextVersion(t *txn, key JobKey) int64 {
	if all := t.jobEntry(key).versions; len(all) > 0 {
		return all[len(all)-1].Version + 1
	}
	return 1
}

// setLocalSlots gives each group of the job its only slot. It stops the slots of groups
// that the job no longer has.
func setLocalSlots(t *txn, job *Job, run int64) {
	for g := range t.groupsOf(job.Key) {
		if job.Group(g.key.Group) == nil {
			stopSlots(t, t.touch(g))
		}
	}
	for i := range job.Groups {
		spec := &job.Groups[i]
		to := spec.Count
		if job.Type == System {
			to = 1
		}
		key := GroupKey{job.Key.Namespace, job.Key.Job, spec.Name, true}
		slot := &struct { // one piece of memory for the slot and for the list that holds only this slot
			Slot
			list [1]*Slot
		}{Slot: Slot{
			Namespace: key.Namespace, Job: key.Job, Group: key.Group, Local: true,
			To: to, Generation: t.cluster.EpochBase + int64(t.index), Run: run, Revision: int64(t.index), JobVersion: job.Version,
			Desired: Run, State: SlotAccepted, CommittedUnixNano: t.now,
			CreateIndex: t.index, ModifyIndex: t.index,
		}}
		s := &slot.Slot
		if t.cluster.FeatureLevel >= ParallelLevel {
			s.Parallel = spec.Parallel
		}
		slot.list[0] = s
		g := t.groupFor(key)
		t.setSlots(g, slot.list[:], job)
		t.renew(g, s, job)
	}
}

// stopSlots stops all slots of a touched group.
func stopSlots(t *txn, g *group) {
	slots := make([]*Slot, len(g.slots))
	for i, s := range g.slots {
		c := *s
		c.Desired, c.ModifyIndex = Stop, t.index
		slots[i] = &c
	}
	t.setSlots(g, slots, nil)
}

func applyStop(t *txn, c *StopLocalJob) error {
	if done, err := repeatedRequest(t, c.Idempotency); done || err != nil {
		return err
	}
	old, ok := t.LocalJob(c.Namespace, c.Name)
	if !ok {
		return fmt.Errorf("%w: job %s", ErrNotFound, JobKey{c.Namespace, c.Name, true}.In(t.cluster.Region))
	}
	if err := checkRevision(t, old.Key(), old, c.CheckRevision); err != nil {
		return err
	}
	if !old.Stopped || c.Purge && !old.Purge {
		l := *old
		l.Notes = notesAtStop(t, old)
		l.Stopped, l.Purge, l.Revision = true, l.Purge || c.Purge, t.index
		t.setLocal(&l)
		t.res.Changed = true
		if !old.Stopped {
			jobEvent(t, EventJobStopped, l.Key(), l.Version)
		}
		for g := range t.groupsOf(l.Key()) {
			stopSlots(t, t.touch(g))
		}
		old = &l
	}
	t.res.Version, t.res.Revision = old.Version, old.Revision
	rememberRequest(t, c.Idempotency)
	return nil
}

// keepVersion stores the version that a submit replaces, and returns the notes about the next one. A new job
// stores nothing. The same spec again stores nothing either, and takes over the tag.
func keepVersion(t *txn, old *LocalJob, next *Job, tag string) *VersionNotes {
	notes := VersionNotes{Tag: tag}
	if old == nil || t.cluster.FeatureLevel < VersionLevel {
		return notes.stored()
	}
	have, ok := t.Job(old.Key(), old.Version)
	switch {
	case !ok:
		return notes.stored()
	case bytes.Equal(have.Spec, next.Spec):
		notes.Tag = cmp.Or(tag, old.Tag())
		return notes.stored()
	}
	v := &StoredVersion{
		Namespace: old.Namespace, Name: old.Name, Version: old.Version, Spec: have.Spec, Tag: old.Tag(),
		SubmittedUnixNano: old.SubmittedUnixNano, ReplacedUnixNano: t.now,
	}
	v.Failed, v.Complete = t.HowItRan(old)
	t.putStored(v)
	trimJob(t, old.Key())
	trimStored(t)
	return notes.stored()
}

// trimJob removes the versions of a job that its bounds do not allow.
func trimJob(t *txn, key JobKey) {
	for _, keep := range []func([]versions.Version) []int{
		func(all []versions.Version) []int { return versions.Keep(all, time.Unix(0, t.now)) },
		func(all []versions.Version) []int { return versions.Within(all, maxJobStored) },
	} {
		stored := t.StoredVersions(key)
		all := make([]versions.Version, len(stored))
		for i, v := range stored {
			all[i] = versions.Version{Number: v.Version, Tag: v.Tag, Replaced: time.Unix(0, v.ReplacedUnixNano), Bytes: v.Bytes()}
		}
		kept := keep(all)
		for i, v := range stored {
			if _, stays := slices.BinarySearch(kept, i); !stays {
				t.dropStored(key, v.Version)
			}
		}
	}
}

// trimStored removes versions of any job while all of them have too many bytes. It also removes some that are too
// old, so that those of jobs without further submits go, too.
func trimStored(t *txn) {
	for n := 0; ; n++ {
		first, ok := storedAge{}, false
		for first = range t.storedAges.All() {
			ok = true
			break
		}
		young := n >= mostExpired || first.tagged || t.now-first.replaced < int64(versions.Age)
		if !ok || t.storedBytes <= MaxStoredBytes && young {
			return
		}
		t.dropStored(first.key, first.version)
	}
}

// notesAtStop returns the notes about a job that is stopped now, or was before.
func notesAtStop(t *txn, l *LocalJob) *VersionNotes {
	notes := l.notes()
	if !l.Stopped && t.cluster.FeatureLevel >= VersionLevel {
		notes.Failed, notes.Complete = t.HowItRan(l)
	}
	return notes.stored()
}

// checkNewTag returns an error if a submit cannot give its version the tag that it names.
func checkNewTag(t *txn, key JobKey, old *LocalJob, c *SubmitLocalJob) error {
	switch {
	case c.Tag == "":
		return nil
	case t.cluster.FeatureLevel < VersionLevel:
		return fmt.Errorf("%w: a tag needs feature level %d, the region has %d", ErrInvalid, VersionLevel, t.cluster.FeatureLevel)
	case old == nil:
		return nil
	}
	have, ok := t.Job(key, old.Version)
	same := ok && bytes.Equal(have.Spec, c.Job.Spec) // it takes over the tag: see keepVersion
	if !same && old.Tag() == c.Tag {
		return tagTaken(t, key, c.Tag)
	}
	return checkTag(t, key, c.Tag)
}

// checkTag returns an error if an earlier version of a job has a tag.
func checkTag(t *txn, key JobKey, tag string) error {
	if tag != "" && slices.ContainsFunc(t.StoredVersions(key), func(v *StoredVersion) bool { return v.Tag == tag }) {
		return tagTaken(t, key, tag)
	}
	return nil
}

func tagTaken(t *txn, key JobKey, tag string) error {
	return fmt.Errorf("%w: a stored version of job %s has the tag %q: remove the tag from it first", ErrTagTaken, key.In(t.cluster.Region), tag)
}

// tagPresent gives the present version of a job a tag.
func tagPresent(t *txn, l *LocalJob, tag string) {
	next, notes := *l, l.notes()
	notes.Tag = tag
	next.Notes = notes.stored()
	t.setLocal(&next)
	t.res.Changed = true
}

func applyTag(t *txn, c *TagVersion) error {
	key := JobKey{c.Namespace, c.Name, true}
	l, ok := t.LocalJob(c.Namespace, c.Name)
	switch {
	case t.cluster.FeatureLevel < VersionLevel:
		return fmt.Errorf("%w: a tag needs feature level %d, the region has %d", ErrInvalid, VersionLevel, t.cluster.FeatureLevel)
	case !ok:
		return fmt.Errorf("%w: job %s", ErrNotFound, key.In(t.cluster.Region))
	}
	t.res.Version, t.res.Revision = cmp.Or(c.Version, l.Version), l.Revision
	all := t.StoredVersions(key)
	at, stored := findStored(all, t.res.Version)
	present := t.res.Version == l.Version
	switch {
	case !present && !stored:
		return fmt.Errorf("%w: version %d of job %s is not stored", ErrNotFound, c.Version, key.In(t.cluster.Region))
	case present && l.Tag() == c.Tag, !present && all[at].Tag == c.Tag:
		return nil
	case !present && c.Tag != "" && l.Tag() == c.Tag:
		return tagTaken(t, key, c.Tag)
	}
	if err := checkTag(t, key, c.Tag); err != nil {
		return err
	}
	if present {
		tagPresent(t, l, c.Tag)
		return nil
	}
	next := *all[at]
	next.Tag = c.Tag
	t.putStored(&next)
	t.res.Changed = true
	return nil
}
