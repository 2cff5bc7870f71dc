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
