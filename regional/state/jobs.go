package state

import (
	"cmp"
	"iter"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state/persist"
)

// jobEntry holds everything about one job. Its slices are replaced, never changed, because
// copies share them.
type jobEntry struct {
	own      *persist.Owner
	versions []*Job    // sorted by Version
	groups   []member  // sorted by name
	local    *LocalJob // nil unless the job is one of the region's own
	override *Override // nil unless a job of the federation has one
}

// member is a group of a job.
type member struct {
	name string
	gid  uint32
}

// version returns the position of a version, or the position where it would be inserted.
func (e *jobEntry) version(n int64) (int, bool) {
	return slices.BinarySearchFunc(e.versions, n, func(j *Job, n int64) int { return cmp.Compare(j.Version, n) })
}

// group returns the position of a group, or the position where it would be inserted.
func (e *jobEntry) group(name string) (int, bool) {
	return slices.BinarySearchFunc(e.groups, name, func(m member, name string) int { return strings.Compare(m.name, name) })
}

// jobEntry returns the entry of a job. If there is none it returns an empty one.
func (v *View) jobEntry(key JobKey) *jobEntry {
	if e, ok := v.jobs.Get(key); ok {
		return e
	}
	return &jobEntry{}
}

// jobEntryFor returns a job's writable entry.
func (s *State) jobEntryFor(key JobKey) *jobEntry {
	e, ok := s.jobs.Get(key)
	if ok && e.own == s.own {
		return e
	}
	c := jobEntry{}
	if ok {
		c = *e
	}
	c.own = s.own
	s.jobs.Set(s.own, key, &c)
	return &c
}

// dropEmptyJob deletes a job's entry if it is empty.
func (s *State) dropEmptyJob(key JobKey) {
	if e := s.jobEntry(key); len(e.versions)+len(e.groups) == 0 && e.local == nil && e.override == nil {
		s.jobs.Delete(s.own, key)
	}
}

func (s *State) addVersion(j *Job) {
	e := s.jobEntryFor(j.Key)
	i, have := e.version(j.Version)
	if have {
		e.versions = slices.Clone(e.versions)
		e.versions[i] = j
	} else {
		e.versions = slices.Insert(slices.Clip(e.versions), i, j)
	}
}

func (s *State) dropVersion(key JobKey, n int64) {
	e := s.jobEntryFor(key)
	if i, have := e.version(n); have {
		e.versions = slices.Concat(e.versions[:i], e.versions[i+1:])
	}
	s.dropEmptyJob(key)
}

func (s *State) addGroup(key GroupKey, gid uint32) {
	e := s.jobEntryFor(key.JobKey())
	i, _ := e.group(key.Group)
	e.groups = slices.Insert(slices.Clip(e.groups), i, member{key.Group, gid})
}

func (s *State) dropGroup(key GroupKey) {
	e := s.jobEntryFor(key.JobKey())
	if i, have := e.group(key.Group); have {
		e.groups = slices.Concat(e.groups[:i], e.groups[i+1:])
	}
	s.dropEmptyJob(key.JobKey())
}

func (s *State) setLocal(l *LocalJob) {
	e := s.jobEntryFor(l.Key())
	if e.local == nil {
		s.localJobs++
	}
	e.local = l
}

func (s *State) dropLocal(key JobKey) {
	e := s.jobEntryFor(key)
	if e.local != nil {
		s.localJobs--
	}
	e.local = nil
	s.dropEmptyJob(key)
}

// Job finds a version of a job.
func (v *View) Job(key JobKey, version int64) (*Job, bool) {
	e := v.jobEntry(key)
	if i, ok := e.version(version); ok {
		return e.versions[i], true
	}
	return nil, false
}

// Lacks reports whether a stored job version may lack fields of its spec that the servers know now, because their
// feature level was lower when the version was stored. full has all fields.
func (v *View) Lacks(have, full *Job) bool {
	return v.Older(have) && !slices.EqualFunc(have.Groups, forLevel(full, v.cluster.FeatureLevel).Groups, func(a, b Group) bool {
		return a.MinHealthy == b.MinHealthy && a.Stagger == b.Stagger && a.Parallel == b.Parallel && a.Rest == b.Rest &&
			reflect.DeepEqual(a.Retry, b.Retry)
	})
}

// Older reports whether a job version may have been stored before the feature level was raised last. Commands of one
// entry of the log have the same index.
func (v *View) Older(j *Job) bool { return j.CreateIndex <= v.cluster.LevelIndex }

// versions yields every version of every job, sorted by job and version.
func (v *View) versions() iter.Seq[*Job] {
	return func(yield func(*Job) bool) {
		for _, e := range v.jobs.All() {
			for _, j := range e.versions {
				if !yield(j) {
					return
				}
			}
		}
	}
}

// LongestStop returns the longest kill timeout of all groups that a lease binds.
func (v *View) LongestStop() time.Duration {
	longest := time.Duration(0)
	for j := range v.versions() {
		for i := range j.Groups {
			if g := &j.Groups[i]; g.Binding(j.Key.Local) != BindNone {
				longest = max(longest, g.KillTimeout)
			}
		}
	}
	return longest
}

// LocalJob finds one of the region's own jobs.
func (v *View) LocalJob(namespace, name string) (*LocalJob, bool) {
	l := v.jobEntry(JobKey{namespace, name, true}).local
	return l, l != nil
}

// LocalJobs yields the region's own jobs by namespace and name.
func (v *View) LocalJobs() iter.Seq[*LocalJob] {
	return func(yield func(*LocalJob) bool) {
		for _, e := range v.jobs.All() {
			if e.local != nil && !yield(e.local) {
				return
			}
		}
	}
}

func (v *View) group(key GroupKey) (*group, bool) {
	e := v.jobEntry(key.JobKey())
	if i, ok := e.group(key.Group); ok {
		return v.groups.Get(e.groups[i].gid)
	}
	return nil, false
}

// groupsOf yields the groups of one job by name.
func (v *View) groupsOf(key JobKey) iter.Seq[*group] {
	return func(yield func(*group) bool) {
		for _, m := range v.jobEntry(key).groups {
			if g, ok := v.groups.Get(m.gid); ok && !yield(g) {
				return
			}
		}
	}
}

// allGroups yields every group by job and name.
func (v *View) allGroups() iter.Seq[*group] {
	return func(yield func(*group) bool) {
		for _, e := range v.jobs.All() {
			for _, m := range e.groups {
				if g, ok := v.groups.Get(m.gid); ok && !yield(g) {
					return
				}
			}
		}
	}
}

// localEnded reports whether one of the region's own jobs is a batch job that has ended.
func (v *View) localEnded(l *LocalJob) bool {
	job, ok := v.Job(l.Key(), l.Version)
	return ok && job.Type == Batch && v.Ended(l.Key())
}

// Ended reports whether every wanted instance of a batch job has ended for good.
func (v *View) Ended(key JobKey) bool {
	some := false
	for g := range v.JobGroups(key) {
		n := g.Counts
		if n.Pending+n.Starting+n.Running+n.Lost > 0 {
			return false
		}
		some = some || g.Wanted > 0
	}
	return some
}

// VersionLevel is the feature level from which on the state has the earlier versions of the region's own
// jobs and LocalJob.Notes, and the log may have TagVersion and SubmitLocalJob.Tag.
const VersionLevel = 17

// These are bounds of the earlier versions. Package versions bounds the number of those of a job.
const (
	// MaxStoredBytes bounds the bytes of all earlier versions of a region. The oldest go first, those without
	// a tag before the others. maxJobStored bounds those of one job, so that one job with a large spec cannot
	// displace the versions of all others.
	MaxStoredBytes = 64 << 20
	maxJobStored   = 4 << 20
	// storedOverhead is what counts for a version beside its spec.
	storedOverhead = 256
	// mostExpired bounds the versions of other jobs that a command removes because of their age.
	mostExpired = 100
)

// VersionNotes belong to the present version of one of the region's own jobs.
type VersionNotes struct {
	Tag string
	// Failed and Complete say how the version had run when the job was stopped: see View.HowItRan.
	Failed   string
	Complete bool
}

// stored returns the notes, nil if there are none.
func (n VersionNotes) stored() *VersionNotes {
	if n == (VersionNotes{}) {
		return nil
	}
	out := n // so that only notes that are there take memory
	return &out
}

// notes returns the notes about the present version of a job, which may be nil.
func (l *LocalJob) notes() VersionNotes {
	if l == nil || l.Notes == nil {
		return VersionNotes{}
	}
	return *l.Notes
}

// Tag returns the tag of the present version. Empty: it has none.
func (l *LocalJob) Tag() string { return l.notes().Tag }

// StoredVersion is an earlier version of one of the region's own jobs. Its spec is not compressed: the bytes of a
// compressor may change from build to build, and the states of all servers must be equal.
type StoredVersion struct {
	Namespace string
	Name      string
	Version   int64
	Spec      []byte
	Tag       string
	// Failed and Complete say how it had run when it was replaced, or when the job was stopped before that: see
	// View.HowItRan.
	Failed            string
	Complete          bool
	SubmittedUnixNano int64
	ReplacedUnixNano  int64
}

// Bytes is what the version counts in the bounds.
func (s *StoredVersion) Bytes() int { return len(s.Spec) + len(s.Failed) + storedOverhead }

func (s *StoredVersion) key() JobKey { return JobKey{s.Namespace, s.Name, true} }

func (s *StoredVersion) age() storedAge {
	return storedAge{s.Tag != "", s.ReplacedUnixNano, s.key(), s.Version}
}

// storedAge orders the earlier versions of all jobs: those without a tag first, and the oldest first.
type storedAge struct {
	tagged   bool
	replaced int64
	key      JobKey
	version  int64
}

func (a storedAge) Compare(b storedAge) int {
	switch {
	case a.tagged != b.tagged && b.tagged:
		return -1
	case a.tagged != b.tagged:
		return 1
	}
	return cmp.Or(cmp.Compare(a.replaced, b.replaced), a.key.Compare(b.key), cmp.Compare(a.version, b.version))
}

// StoredVersions returns the earlier versions of one of the region's own jobs, by version. They must not be
// changed.
func (v *View) StoredVersions(key JobKey) []*StoredVersion {
	all, _ := v.stored.Get(key)
	return all
}

// HowItRan says how the present version of one of the region's own jobs runs, or ran until the job was stopped:
// what has failed, and whether every instance runs the version, or has completed. It is derived from the
// instances, so it does not know what was before. A service has not failed while most of its instances run the version:
// it may have run for weeks before one of them crashed.
func (v *View) HowItRan(l *LocalJob) (failed string, complete bool) {
	job, ok := v.Job(l.Key(), l.Version)
	if l.Stopped || !ok {
		return l.notes().Failed, l.notes().Complete
	}
	good, wanted := Running, int32(0)
	if job.Type == Batch {
		good = Complete
	}
	complete = true
	for i := range job.Groups {
		g, ok := v.group(GroupKey{l.Namespace, l.Name, job.Groups[i].Name, true})
		if !ok {
			continue
		}
		if job.Type == Batch || 2*(g.byState[Running]-g.outdated) <= g.wanted {
			failed = cmp.Or(failed, g.failing(job.Groups[i].Name))
		}
		wanted += g.wanted
		complete = complete && g.byState[good] == g.wanted && g.outdated == 0
	}
	return failed, complete && wanted > 0 && failed == ""
}

// putStored stores an earlier version. It replaces the same version.
func (s *State) putStored(v *StoredVersion) {
	key := v.key()
	s.dropStored(key, v.Version)
	all, _ := s.stored.Get(key)
	i, _ := findStored(all, v.Version)
	s.stored.Set(s.own, key, slices.Insert(slices.Clip(all), i, v))
	s.storedAges.Set(s.own, v.age(), struct{}{})
	s.storedBytes += v.Bytes()
}

// dropStored removes an earlier version if it is stored.
func (s *State) dropStored(key JobKey, version int64) {
	all, _ := s.stored.Get(key)
	i, ok := findStored(all, version)
	if !ok {
		return
	}
	s.storedAges.Delete(s.own, all[i].age())
	s.storedBytes -= all[i].Bytes()
	if len(all) == 1 {
		s.stored.Delete(s.own, key)
		return
	}
	s.stored.Set(s.own, key, slices.Concat(all[:i], all[i+1:]))
}

// dropAllStored removes the earlier versions of a job.
func (s *State) dropAllStored(key JobKey) {
	for _, v := range s.StoredVersions(key) {
		s.dropStored(key, v.Version)
	}
}

// findStored returns the position of a version, or the position where it would be inserted.
func findStored(all []*StoredVersion, version int64) (int, bool) {
	return slices.BinarySearchFunc(all, version, func(v *StoredVersion, n int64) int { return cmp.Compare(v.Version, n) })
}
