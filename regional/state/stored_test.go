package state

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/versions"
)

var ownKey = JobKey{"default", "api", true}

// own makes a submit of one of the region's own jobs.
func own(name, spec, tag string) Command {
	job := testJob(0, func(g *Group) { g.Count = 1; g.Hash = uint64(len(spec)) })
	job.Key, job.Spec = JobKey{"default", name, true}, []byte(spec)
	return Command{SubmitLocalJob: &SubmitLocalJob{Job: *job, Tag: tag}}
}

func tagOf(version int64, tag string) Command {
	return Command{TagVersion: &TagVersion{Namespace: "default", Name: "api", Version: version, Tag: tag}}
}

// atLevel returns a log with a node, at a feature level.
func atLevel(t *testing.T, level uint32) *log {
	l := newLog(t)
	l.ok(Command{SetLimits: &SetLimits{FeatureLevel: level}})
	l.ok(testNode("n1"))
	return l
}

// listed describes the versions of a job, the present one last: number, spec, tag, and how it ran.
func listed(v *View, key JobKey) string {
	var out []string
	text := func(n int64, spec []byte, tag, failed string, complete bool) {
		s := fmt.Sprintf("%d=%s", n, spec)
		if tag != "" {
			s += " (" + tag + ")"
		}
		if failed != "" {
			s += " failed: " + failed
		}
		if complete {
			s += " ran"
		}
		out = append(out, s)
	}
	for _, s := range v.StoredVersions(key) {
		text(s.Version, s.Spec, s.Tag, s.Failed, s.Complete)
	}
	if l, ok := v.LocalJob(key.Namespace, key.Job); ok {
		job, _ := v.Job(key, l.Version)
		failed, complete := v.HowItRan(l)
		text(l.Version, job.Spec, l.Tag(), failed, complete)
	}
	return strings.Join(out, ", ")
}

// runs places the instance of the job, which then runs or ends.
func (l *log) runs(state AllocState) {
	l.t.Helper()
	v, _ := l.LocalJob("default", "api")
	id := fmt.Sprint("i", l.idx)
	l.ok(Command{ApplyPlan: &ApplyPlan{Places: []PlaceGroup{{
		Key: GroupKey{"default", "api", "web", true}, JobVersion: v.Version, Allocs: []PlaceAlloc{{ID: id, NodeID: "n1"}}}}}})
	l.ok(testReport("n1", AllocReport{ID: id, State: state}))
	if a, ok := l.Alloc(id); ok && a.Proving && a.UpUnixNano > 0 {
		l.ok(Command{ApplyPlan: &ApplyPlan{Proven: []ProveAlloc{{ID: id, UpUnixNano: a.UpUnixNano}}}})
	}
}

// ends ends all instances of the job.
func (l *log) ends(state AllocState) {
	l.t.Helper()
	for a := range l.NodeAllocs("n1") {
		if a.Live() {
			l.ok(testReport("n1", AllocReport{ID: a.ID, State: state}))
		}
	}
}

// TestOwnVersions follows the versions of a job through submits, tags, a stop and a purge. After each step, a
// restored state is the same.
func TestOwnVersions(t *testing.T) {
	l := atLevel(t, VersionLevel)
	is := func(want string) {
		t.Helper()
		if got := listed(l.Snapshot(), ownKey); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
		restored, err := Restore(seq(recordsOf(l.Snapshot())))
		if err != nil || restored.Snapshot().Hash() != l.Snapshot().Hash() || listed(restored.Snapshot(), ownKey) != want {
			t.Errorf("restored: %s, %v", listed(restored.Snapshot(), ownKey), err)
		}
		if restored.storedBytes != l.storedBytes || restored.storedAges.Len() != l.storedAges.Len() {
			t.Errorf("restored: %d bytes of %d versions, want %d of %d", restored.storedBytes, restored.storedAges.Len(), l.storedBytes, l.storedAges.Len())
		}
	}
	l.ok(own("api", "a", "first"))
	is("1=a (first)")
	l.runs(Running)
	is("1=a (first) ran")
	l.ok(own("api", "bb", ""))
	is("1=a (first) ran, 2=bb")
	l.fails(own("api", "ccc", "first"), ErrTagTaken)
	l.fails(tagOf(2, "first"), ErrTagTaken)
	l.fails(tagOf(3, "x"), ErrNotFound)
	l.ok(own("api", "bb", "")) // the same spec again is no version
	is("1=a (first) ran, 2=bb")
	if r := l.ok(own("api", "bb", "second")); !r.Same || !r.Changed || r.Version != 2 {
		t.Errorf("a tag for the present version: %+v", r)
	}
	is("1=a (first) ran, 2=bb (second)")
	if r := l.ok(own("api", "bb", "second")); r.Changed {
		t.Errorf("the same tag again: %+v", r)
	}
	l.fails(tagOf(1, "second"), ErrTagTaken)
	l.ok(tagOf(1, ""))
	is("1=a ran, 2=bb (second)")
	l.ok(tagOf(0, ""))
	l.ok(tagOf(1, "second"))
	if r := l.ok(tagOf(1, "second")); r.Changed {
		t.Errorf("the same tag again: %+v", r)
	}
	l.ok(tagOf(2, "third"))
	is("1=a (second) ran, 2=bb (third)")

	l.ends(Stopped)
	l.runs(Running)
	l.ok(Command{StopLocalJob: &StopLocalJob{Namespace: "default", Name: "api"}})
	is("1=a (second) ran, 2=bb (third) ran")
	l.ends(Stopped)
	is("1=a (second) ran, 2=bb (third) ran")
	l.fails(own("api", "ccc", "third"), ErrTagTaken)
	l.ok(own("api", "bb", "third")) // runs again: another version with the same spec
	is("1=a (second) ran, 3=bb (third)")
	l.ok(Command{StopLocalJob: &StopLocalJob{Namespace: "default", Name: "api"}})
	l.ok(own("api", "bb", ""))
	is("1=a (second) ran, 4=bb (third)")
	l.ok(own("api", "ccc", ""))
	is("1=a (second) ran, 4=bb (third), 5=ccc")

	l.ok(Command{StopLocalJob: &StopLocalJob{Namespace: "default", Name: "api", Purge: true}})
	is("")
	if l.stored.Len() != 0 || l.storedAges.Len() != 0 || l.storedBytes != 0 {
		t.Errorf("after the purge: %d jobs, %d versions, %d bytes", l.stored.Len(), l.storedAges.Len(), l.storedBytes)
	}
}

// TestOwnVersionThatFailed: the state of the instances says what became of a version when it is replaced.
func TestOwnVersionThatFailed(t *testing.T) {
	l := atLevel(t, VersionLevel)
	c := own("api", "a", "")
	c.SubmitLocalJob.Job.Type, c.SubmitLocalJob.Job.Groups[0].Reschedule = Batch, Reschedule{}
	l.ok(c)
	l.runs(Failed)
	if got := listed(l.Snapshot(), ownKey); got != "1=a failed: 1 of 1 instances of group web" {
		t.Error(got)
	}
	c = own("api", "bb", "")
	c.SubmitLocalJob.Job.Type = Batch
	l.ok(c)
	l.runs(Complete)
	if got := listed(l.Snapshot(), ownKey); got != "1=a failed: 1 of 1 instances of group web, 2=bb ran" {
		t.Error(got)
	}
}

// TestOwnVersionThatIsTriedAgain: a version whose instance waits for its next attempt has failed so far.
func TestOwnVersionThatIsTriedAgain(t *testing.T) {
	l := atLevel(t, VersionLevel)
	l.ok(own("api", "a", ""))
	l.runs(Failed)
	if got := listed(l.Snapshot(), ownKey); got != "1=a failed: 1 of 1 instances of group web, which are tried again" {
		t.Error(got)
	}
	l.runs(Running)
	if got := listed(l.Snapshot(), ownKey); got != "1=a ran" {
		t.Error(got)
	}
}

// TestOwnVersionThatMostRun: one failing instance of three is no failure of the version; two are.
func TestOwnVersionThatMostRun(t *testing.T) {
	l := atLevel(t, VersionLevel)
	c := own("api", "a", "")
	c.SubmitLocalJob.Job.Groups[0].Count = 3
	l.ok(c)
	for i := range 3 {
		id := fmt.Sprint("i", i)
		l.ok(Command{ApplyPlan: &ApplyPlan{Places: []PlaceGroup{{
			Key: GroupKey{"default", "api", "web", true}, JobVersion: 1, Allocs: []PlaceAlloc{{ID: id, Index: int32(i), NodeID: "n1"}}}}}})
		l.ok(testReport("n1", AllocReport{ID: id, State: Running}))
		if a, ok := l.Alloc(id); ok && a.Proving && a.UpUnixNano > 0 {
			l.ok(Command{ApplyPlan: &ApplyPlan{Proven: []ProveAlloc{{ID: id, UpUnixNano: a.UpUnixNano}}}})
		}
	}
	for i, want := range []string{"1=a ran", "1=a", "1=a failed: 2 of 3 instances of group web, which are tried again"} {
		if i > 0 {
			l.ok(testReport("n1", AllocReport{ID: fmt.Sprint("i", i), State: Failed}))
		}
		if got := listed(l.Snapshot(), ownKey); got != want {
			t.Errorf("after %d failures: %s, want %s", i, got, want)
		}
	}
}

// TestOwnVersionsNeedALevel: below the level the state is that of a server that does not know versions.
func TestOwnVersionsNeedALevel(t *testing.T) {
	l := atLevel(t, VersionLevel-1)
	l.ok(own("api", "a", ""))
	l.runs(Running)
	l.ok(own("api", "bb", ""))
	l.ok(Command{StopLocalJob: &StopLocalJob{Namespace: "default", Name: "api"}})
	l.ok(own("api", "ccc", ""))
	l.fails(own("api", "d", "x"), ErrInvalid)
	l.fails(tagOf(0, "x"), ErrInvalid)
	if got := listed(l.Snapshot(), ownKey); got != "3=ccc" {
		t.Error(got)
	}
	for r := range l.Snapshot().Records() {
		if r.Stored != nil || r.Local != nil && r.Local.Notes != nil {
			t.Errorf("a server of an earlier version does not know %+v", r)
		}
	}
	l.ok(Command{SetLimits: &SetLimits{FeatureLevel: VersionLevel}})
	l.ok(own("api", "dddd", "x"))
	if got := listed(l.Snapshot(), ownKey); got != "3=ccc, 4=dddd (x)" {
		t.Error(got)
	}
}

// TestStoredBytesAreBounded: the versions of one job, and those of all jobs, stay within their bounds. All
// specs share one piece of memory.
func TestStoredBytesAreBounded(t *testing.T) {
	l := atLevel(t, VersionLevel)
	large := string(make([]byte, 1<<20))
	job := func(i int) string { return fmt.Sprintf("job%03d", i) }
	specs := [][]byte{[]byte(large), nil}
	specs[1] = specs[0][:1<<20-1]
	submit := func(i, version int) {
		c := own(job(i), "", "")
		c.SubmitLocalJob.Job.Spec = specs[version%2]
		if i == 0 && version == 0 {
			c.SubmitLocalJob.Tag = "keep"
		}
		l.ok(c)
		l.now += second
	}
	for version := range 8 {
		submit(0, version)
	}
	if got := len(l.StoredVersions(JobKey{"default", job(0), true})); got != 3 {
		t.Errorf("%d versions of 1 MiB of one job, want 3", got)
	}
	for i := range 70 {
		submit(i+1, 0)
		submit(i+1, 1)
	}
	if l.storedBytes > MaxStoredBytes || l.storedAges.Len() != 63 {
		t.Errorf("%d bytes of %d versions", l.storedBytes, l.storedAges.Len())
	}
	for i, want := range map[int]int{0: 1, 1: 0, 8: 0, 9: 1, 70: 1} { // the one with a tag stays
		if got := len(l.StoredVersions(JobKey{"default", job(i), true})); got != want {
			t.Errorf("%d versions of %s, want %d", got, job(i), want)
		}
	}
}

// TestStoredVersionsEnd: versions end after 90 days, also those of jobs without further submits.
func TestStoredVersionsEnd(t *testing.T) {
	l := atLevel(t, VersionLevel)
	for _, name := range []string{"old", "tagged", "api"} {
		l.ok(own(name, "a", map[string]string{"tagged": "v1.0"}[name]))
		l.ok(own(name, "bb", ""))
	}
	l.now += int64(versions.Age)
	l.ok(own("api", "ccc", ""))
	for name, want := range map[string]string{"old": "2=bb", "tagged": "1=a (v1.0), 2=bb", "api": "2=bb, 3=ccc"} {
		if got := listed(l.Snapshot(), JobKey{"default", name, true}); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// TestStoredVersionsAtRandom compares the versions with a list that is kept by hand, and the indices of the state
// with its versions.
func TestStoredVersionsAtRandom(t *testing.T) {
	for seed := range uint64(5) {
		r := rand.New(rand.NewPCG(seed, 1))
		l := atLevel(t, VersionLevel)
		type version struct {
			number, replaced int64
			spec, tag        string
		}
		jobs := map[string][]version{} // the present version is the last
		for range 300 {
			l.now += int64(r.IntN(4)) * int64(24*time.Hour) / 2
			name := fmt.Sprint("j", r.IntN(3))
			key, all := JobKey{"default", name, true}, jobs[name]
			taken := func(tag string) bool { return slices.ContainsFunc(all, func(v version) bool { return v.tag == tag }) }
			tag := ""
			if r.IntN(3) == 0 {
				tag = fmt.Sprint("t", r.IntN(30))
			}
			switch k := r.IntN(20); {
			case k == 0 && len(all) > 0:
				l.ok(Command{StopLocalJob: &StopLocalJob{Namespace: "default", Name: name, Purge: true}})
				delete(jobs, name)
				continue
			case k < 5 && len(all) > 0:
				at := r.IntN(len(all))
				c := Command{TagVersion: &TagVersion{Namespace: "default", Name: name, Version: all[at].number, Tag: tag}}
				if tag != "" && tag != all[at].tag && taken(tag) {
					l.fails(c, ErrTagTaken)
					continue
				}
				l.ok(c)
				all[at].tag = tag
				continue
			}
			spec := strings.Repeat("s", 1+r.IntN(5))
			same := len(all) > 0 && all[len(all)-1].spec == spec
			c := own(name, spec, tag)
			switch {
			case tag != "" && taken(tag) && !(same && all[len(all)-1].tag == tag):
				l.fails(c, ErrTagTaken)
				continue
			case same:
				l.ok(c)
				all[len(all)-1].tag = cmp.Or(tag, all[len(all)-1].tag)
				continue
			}
			res := l.ok(c)
			if len(all) > 0 {
				all[len(all)-1].replaced = l.now
			}
			var kept []version
			for i, v := range all {
				later, laterTagged := 0, 0 // those that count before it
				for _, o := range all[i+1:] {
					if l.now-o.replaced < int64(versions.Age) && later < versions.Most {
						later++
					} else if o.tag != "" {
						laterTagged++
					}
				}
				if l.now-v.replaced < int64(versions.Age) && later < versions.Most || v.tag != "" && laterTagged < versions.Tagged {
					kept = append(kept, v)
				}
			}
			jobs[name] = append(kept, version{res.Version, 0, spec, tag})
			for other, all := range jobs { // too old
				if other != name {
					jobs[other] = slices.DeleteFunc(all, func(v version) bool {
						return v.replaced > 0 && v.tag == "" && l.now-v.replaced >= int64(versions.Age)
					})
				}
			}
			var want []string
			for _, v := range jobs[name] {
				s := fmt.Sprintf("%d=%s", v.number, v.spec)
				if v.tag != "" {
					s += " (" + v.tag + ")"
				}
				want = append(want, s)
			}
			if got := listed(l.Snapshot(), key); got != strings.Join(want, ", ") {
				t.Fatalf("seed %d, %s: %s\nwant %s", seed, name, got, strings.Join(want, ", "))
			}
		}
		n, bytes := 0, 0
		for _, all := range l.stored.All() {
			n += len(all)
			for _, v := range all {
				bytes += v.Bytes()
			}
		}
		if n != l.storedAges.Len() || bytes != l.storedBytes || l.stored.Len() > len(jobs) {
			t.Errorf("seed %d: %d versions of %d jobs with %d bytes, the indices have %d of %d with %d", seed, n, len(jobs), bytes, l.storedAges.Len(), l.stored.Len(), l.storedBytes)
		}
		restored, err := Restore(seq(recordsOf(l.Snapshot())))
		if err != nil || restored.Snapshot().Hash() != l.Snapshot().Hash() || restored.storedBytes != bytes {
			t.Errorf("seed %d: the restored state differs: %v", seed, err)
		}
	}
}
