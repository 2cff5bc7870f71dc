package state

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/events"
	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/internal/jobstatus"
	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/notify"
	"github.com/nusa-scheduler/nusa/internal/reason"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// SummaryKey returns the key of a summary in its region's set, which is the key that regions use:
// "namespace/job", or "namespace/job@region" for the region's own jobs.
func SummaryKey(region string, s *nusav1.JobSummary) string {
	key := s.GetNamespace() + "/" + s.GetJob()
	if s.GetLocal() {
		key += "@" + region
	}
	return key
}

// NoteSummary notes that a region has sent a summary with the given SummaryKey. The lock is held.
func NoteSummary(st *State, r *Region, key string, sum *nusav1.JobSummary) {
	part, known := r.SummaryKeys[key]
	if !known {
		part = noPart
		r.SummaryKeys[sharedKey(st, key, sum)] = part
	}
	r.stored.note(part)
}

// sharedKey returns the key of a summary, as one string for all regions, which takes less memory. The lock is held.
func sharedKey(st *State, key string, sum *nusav1.JobSummary) string {
	if j := st.Jobs[JobKey{sum.GetNamespace(), sum.GetJob()}]; j != nil && j.path == key {
		return j.path
	}
	return key
}

// ForgetSummary removes the summary with a SummaryKey. The lock is held.
func ForgetSummary(st *State, r *Region, key string) {
	if part, known := r.SummaryKeys[key]; known {
		delete(r.SummaryKeys, key)
		r.stored.note(part)
	}
	namespace, name, _ := strings.Cut(key, "/")
	k := JobKey{namespace, name}
	if j := st.Jobs[k]; j != nil {
		j.Summaries.Delete(r.Name)
		st.JobChanged(j)
	}
	delete(r.Disconnected, k)
}

// forgetSummaries removes everything that a region reported about jobs. The lock is held.
func (st *State) forgetSummaries(r *Region) {
	for _, j := range st.Jobs {
		j.Summaries.Delete(r.Name)
	}
	r.SummariesAt, r.CheckpointDue = link.Position{}, true
	clear(r.SummaryKeys)
	for i := range r.stored.parts {
		r.stored.parts[i].changed = true
	}
	clear(r.Disconnected)
}

// ApplySummary stores a region's summary of a job, unless a newer one is known. encoded is what compact.Encode
// returned for the summary. It reports whether the disconnected instances differ from those in the previous summary. The
// lock is held.
func (st *State) ApplySummary(r *Region, sum *nusav1.JobSummary, encoded []byte) (disconnectedChanged bool) {
	k := JobKey{sum.GetNamespace(), sum.GetJob()}
	j := st.Jobs[k]
	if sum.GetLocal() || j == nil || j.Record == nil {
		return false
	}
	old := j.Summaries.Get(r.Name)
	if old != nil && (old.GetIncarnation() > sum.GetIncarnation() ||
		old.GetIncarnation() == sum.GetIncarnation() && old.GetIndex() > sum.GetIndex()) {
		return false
	}
	j.Summaries.PutEncoded(r.Name, encoded)
	// The disconnected instances of a checkpoint do not count, because their nodes may be back.
	if st.loading || len(sum.GetDisconnected()) == 0 {
		delete(r.Disconnected, k)
	} else {
		disconnectedChanged = r.setDisconnected(k, sum.GetDisconnected())
		st.Pend(k)
	}
	if !st.loading {
		st.Events.addFailedInstances(r.Name, k, old, sum)
		st.Events.addOverride(r.Name, k, old.GetOverride(), sum.GetOverride())
	}
	st.summaryChanged(j)
	if j.Record.Type() == place.Batch {
		if slices.ContainsFunc(j.Place().Groups, func(g place.Group) bool { return g.Parallel > 0 }) {
			st.Pend(k) // another region may run what this one no longer needs
		}
		st.Ended[k] = struct{}{}
		st.Letters.note(k, sum)
	}
	return disconnectedChanged
}

// summaryChanged notes that a job has a new summary. The lock is held.
func (st *State) summaryChanged(j *Job) {
	st.JobChanged(j)
	if j.Revertible() || j.rollsOut() {
		st.Rollouts[j.Key] = struct{}{}
	}
}

// Letters connects the state with package deadletters. The lock of the State guards it. The functions are
// set before the term serves, and are called with the lock.
type Letters struct {
	// failed are the batch jobs whose new summary counts failed instances. Wake is notified when one is
	// added.
	failed JobSet
	Wake   notify.Signal
	// Awaited reports whether the result of a job must wait for dead letters. Add adds those that are not
	// stored yet to the transaction of the result. nil: there are none.
	Awaited func(*Job) bool
	Add     func(*Tx, JobKey) error
	// Retried reports whether a failed job is an attempt of a step of a workflow after which the step is tried again.
	// It leaves no dead letter. known is false until the server has read the runs of workflows; then Wake is
	// notified. nil: there are no workflows.
	Retried func(JobKey) (again, known bool)
	// RunAgain returns the job of the latest attempt of a step of a workflow, if that is a later one than the given
	// job: an operator has retried the workflow. nil: there are no workflows.
	RunAgain func(JobKey) (as JobKey, is bool)
}

func (l *Letters) note(k JobKey, sum *nusav1.JobSummary) {
	for _, c := range sum.GetGroups() {
		if c.GetFailed() > 0 {
			if l.failed == nil {
				l.failed = JobSet{}
			}
			l.failed[k] = struct{}{}
			l.Wake.Notify()
			return
		}
	}
}

// Noted reports whether TakeFailed would return a job. The lock is held.
func (l *Letters) Noted(k JobKey) bool {
	_, noted := l.failed[k]
	return noted
}

// TakeFailed returns the jobs with failed instances in summaries that came since it returned them last. One
// caller may take them. The lock is held.
func TakeFailed(st *State) JobSet {
	out := st.Letters.failed
	st.Letters.failed = nil
	return out
}

// setDisconnected replaces the disconnected instances of a job, and reports whether they have
// changed.
func (r *Region) setDisconnected(k JobKey, instances []*nusav1.DisconnectedInstances) (changed bool) {
	old, had := r.Disconnected[k]
	if r.Disconnected == nil {
		r.Disconnected = map[JobKey][]*nusav1.DisconnectedInstances{}
	}
	r.Disconnected[k] = instances
	return !had || !slices.EqualFunc(old, instances, func(a, b *nusav1.DisconnectedInstances) bool { return proto.Equal(a, b) })
}

// DisconnectedOf returns the instances of a job that may still run on lost nodes. Only connected
// regions count, because only they can be asked to give the instances up. Reports about slots that
// have changed since do not count. The lock is held.
func (st *State) DisconnectedOf(j *Job) []place.Disconnected {
	var out []place.Disconnected
	seen := map[string]bool{}
	for s := range j.Slots.All() {
		r := st.Regions[s.Region]
		if r == nil || r.Session == nil || seen[s.Region] {
			continue
		}
		seen[s.Region] = true
		for _, a := range r.Disconnected[j.Key] {
			if j.owns(s.Region, a) {
				out = append(out, place.Disconnected{
					Group: a.GetGroup(), Region: s.Region, From: int(a.GetFrom()), To: int(a.GetTo()), Generation: a.GetGeneration(), Node: a.GetNode(),
				})
			}
		}
	}
	slices.SortFunc(out, func(a, b place.Disconnected) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.From, b.From))
	})
	return out
}

// Events is the event log of the federation in one leadership term. Most events are added under the
// state's lock; the log can be read without it.
type Events struct{ *events.Log }

// FlushEvents makes a transaction for the events that wait. It returns events.ErrHeld if the store
// takes no events now.
func FlushEvents(ctx context.Context, c *Committer) error {
	_, err := c.Do(ctx, func(t *Tx) error {
		if t.State.Leadership.GetConflict() != nil || t.State.Room.Usage().NoSpace {
			return events.ErrHeld
		}
		return nil
	})
	return err
}

// RemoveEvents makes a transaction that removes the events that have expired.
func RemoveEvents(ctx context.Context, c *Committer) error {
	_, err := c.Do(ctx, func(t *Tx) error {
		if t.State.Leadership.GetConflict() != nil {
			return events.ErrHeld
		}
		return nil
	})
	return err
}

// AddLostNodes adds an event when the number of lost nodes in a region's report has changed since
// the last report.
func (e Events) AddLostNodes(name string, was, is *nusav1.RegionReport) {
	switch d := is.GetNodesLost() - was.GetNodesLost(); {
	case was == nil && is.GetNodesLost() == 0 || d == 0:
	case d > 0:
		e.Add("node.lost", name, "%d more lost, %d in all; %d ready", d, is.GetNodesLost(), is.GetNodesReady())
	default:
		e.Add("node.back", name, "%d back or forgotten, %d still lost; %d ready", -d, is.GetNodesLost(), is.GetNodesReady())
	}
}

// addFailedInstances adds events for the instances of a job that a region has lost, or will not try
// again, according to its summaries.
func (e Events) addFailedInstances(from string, k JobKey, was, is *nusav1.JobSummary) {
	any := false
	for _, c := range is.GetGroups() {
		any = any || c.GetFailed() > 0 || c.GetLost() > 0
	}
	if !any {
		return // as in most summaries
	}
	subject := k.String()
	for _, group := range slices.Sorted(maps.Keys(is.GetGroups())) {
		old, now := was.GetGroups()[group], is.GetGroups()[group]
		if n := now.GetFailed() - old.GetFailed(); n > 0 {
			why := ""
			for _, c := range is.GetReasons()[group].GetReasons() {
				if c.GetWhat() == "instance" && c.GetReason() != nusav1.Reason_REASON_BACKOFF {
					why = ": " + reason.WithMessage(c.GetReason(), c.GetMessage())
				}
			}
			e.AddAt(from, "instance.given_up", subject, "%s: %d at %s will not be tried again%s", group, n, from, why)
		}
		if n := now.GetLost() - old.GetLost(); n > 0 {
			e.AddAt(from, "instance.lost", subject, "%s: %d at %s on lost nodes", group, n, from)
		}
	}
}

// addOverride adds an event when a region has set, changed or cleared its override of a job.
func (e Events) addOverride(from string, k JobKey, was, is *nusav1.Override) {
	switch {
	case is == nil && was != nil:
		e.AddAt(from, "job.override_cleared", k.String(), "%s runs all of its part again", from)
	case is != nil && !was.GetSet().AsTime().Equal(is.GetSet().AsTime()):
		e.AddAt(from, "job.overridden", k.String(), "at %s: %s", from, jobstatus.OverrideText(is))
	}
}

// TakeReport stores a report of a connected region. If it includes fewer slots than the last
// report, the region's log was restored, and all its slots are charged again. The lock is held.
func (st *State) TakeReport(r *Region, rep *nusav1.RegionReport) {
	fewer := rep.GetSlotsRevision() < r.Report.GetSlotsRevision()
	r.SetReport(rep, st.Clock(), false)
	if fewer {
		st.chargeAll(r.Name)
	}
}
