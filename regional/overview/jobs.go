package overview

import (
	"sync"

	"github.com/nusa-scheduler/nusa/internal/counts"
	"github.com/nusa-scheduler/nusa/internal/overview"
	"github.com/nusa-scheduler/nusa/internal/overview/feed"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/api"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// Jobs notes which jobs change in a term, while there are streams.
type Jobs struct {
	mu sync.Mutex
	// changed is nil while nobody follows. It has each job once.
	changed map[state.JobKey]struct{}
}

// Changed notes that groups have changed. The committed state already has the change.
func (j *Jobs) Changed(groups []state.GroupKey) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.changed == nil {
		return
	}
	for _, g := range groups {
		j.changed[g.JobKey()] = struct{}{}
	}
}

func (j *Jobs) follow(on bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.changed = nil
	if on {
		j.changed = map[state.JobKey]struct{}{}
	}
}

// take returns up to most jobs that have changed, and whether there are more.
func (j *Jobs) take(most int) (keys []state.JobKey, more bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for k := range j.changed {
		if len(keys) == most {
			return keys, true
		}
		delete(j.changed, k)
		keys = append(keys, k)
	}
	return keys, false
}

// jobSource reads the jobs that have a part in the region: feed.JobSource.
type jobSource struct {
	term *Term
	// first are the jobs that After has not returned yet.
	first []state.JobKey
}

// Follow implements feed.JobSource.
func (j *jobSource) Follow(on bool) {
	j.term.Jobs.follow(on)
	j.first = nil
}

// After implements feed.JobSource.
func (j *jobSource) After(key string, most int) (out []feed.Job, next string) {
	view := j.term.server.State.View()
	if key == "" {
		j.first = api.JobKeys(view)
	}
	for len(j.first) > 0 && len(out) < most {
		out, j.first = append(out, j.job(view, j.first[0])), j.first[1:]
	}
	if len(j.first) == 0 {
		return out, ""
	}
	return out, out[len(out)-1].Key
}

// Changed implements feed.JobSource.
func (j *jobSource) Changed(most int) (out []feed.Job, more bool) {
	keys, more := j.term.Jobs.take(most)
	view := j.term.server.State.View()
	for _, k := range keys {
		out = append(out, j.job(view, k))
	}
	return out, more
}

func (j *jobSource) keyOf(k state.JobKey) string {
	if k.Local {
		return overview.Key(k.Namespace, k.Job, j.term.server.Region.GetName())
	}
	return overview.Key(k.Namespace, k.Job, "")
}

// job returns what the index knows of a job.
func (j *jobSource) job(view *state.View, k state.JobKey) feed.Job {
	m := api.Job(j.term.server, j.term.master, view, k)
	return feed.Job{Key: j.keyOf(k), State: m.GetStatus().GetState(), Gone: m == nil, Facts: j.factsOf(m)}
}

func (j *jobSource) factsOf(m *nusav1.Job) feed.Facts {
	return feed.Facts{Label: m.GetSpec().GetLabels(), Regions: []string{j.term.server.Region.GetName()}}
}

// find returns a job by its key, or nil.
func (j *jobSource) find(key string) *nusav1.Job {
	namespace, name, region := overview.CutKey(key)
	return api.Job(j.term.server, j.term.master, j.term.server.State.View(), state.JobKey{Namespace: namespace, Job: name, Local: region != ""})
}

// Facts implements feed.JobSource.
func (j *jobSource) Facts(key string) (feed.Facts, bool) {
	m := j.find(key)
	return j.factsOf(m), m != nil
}

// Line implements feed.JobSource.
func (j *jobSource) Line(key string) *nusav1.OverviewJob {
	m := j.find(key)
	if m == nil {
		return nil
	}
	spec := m.GetSpec()
	out := &nusav1.OverviewJob{
		Job: &nusav1.JobRef{Namespace: spec.GetNamespace(), Name: spec.GetName(), Region: m.GetRegion()}, Type: spec.GetType(),
		State: m.GetStatus().GetState(), Version: m.GetVersion(), Submitted: m.GetSubmitted(), Counts: &nusav1.InstanceCounts{},
		Regions: []string{j.term.server.Region.GetName()}, Message: m.GetStatus().GetMessage(), Labels: spec.GetLabels(), Priority: spec.GetPriority(),
	}
	for _, g := range m.GetStatus().GetGroups() {
		out.Desired += g.GetDesired()
		out.Unplaced += g.GetUnowned()
		counts.Add(out.Counts, g.GetCounts())
	}
	return out
}
