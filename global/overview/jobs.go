package overview

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/counts"
	"github.com/nusa-scheduler/nusa/internal/overview"
	"github.com/nusa-scheduler/nusa/internal/overview/feed"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// maxDueJobs bounds the jobs whose broken bounds are shown.
const maxDueJobs = 256

// jobs reads the federation's jobs: feed.JobSource. It also notes the broken bounds of the jobs that it
// reads.
type jobs struct {
	st     *state.State
	broken map[state.JobKey][]breach
}

// breach is a broken latency bound that becomes sustained at a time.
type breach struct {
	at          time.Duration
	group, text string
}

// Follow implements feed.JobSource.
func (j *jobs) Follow(on bool) {
	j.st.Lock()
	defer j.st.Unlock()
	state.FollowJobs(j.st, on)
	clear(j.broken)
}

// After implements feed.JobSource.
func (j *jobs) After(key string, most int) (out []feed.Job, next string) {
	j.st.Lock()
	defer j.st.Unlock()
	see := j.st.Sight()
	for name := range j.st.Names.After(key, func(name string) bool { return state.Exists(j.st, name) }) {
		if len(out) == most {
			return out, next
		}
		namespace, job, _ := strings.Cut(name, "/")
		out, next = append(out, j.job(state.JobKey{Namespace: namespace, Name: job}, see)), name
	}
	return out, ""
}

// Changed implements feed.JobSource.
func (j *jobs) Changed(most int) (out []feed.Job, more bool) {
	j.st.Lock()
	defer j.st.Unlock()
	keys, more := state.TakeChanged(j.st, most)
	see := j.st.Sight()
	for _, k := range keys {
		out = append(out, j.job(k, see))
	}
	return out, more
}

// job returns what the index knows of a job. The lock is held.
func (j *jobs) job(k state.JobKey, see state.Sight) feed.Job {
	out := feed.Job{Key: overview.Key(k.Namespace, k.Name, "")}
	of := j.st.Jobs[k]
	if of != nil && of.Record != nil {
		out.State = of.Status(see).GetState()
		out.Facts = feed.Facts{Label: of.Record.Labels(), Regions: of.Regions()}
		j.note(k, of)
		return out
	}
	delete(j.broken, k)
	line := state.Line(j.st, k.String())
	out.Gone = line == nil
	out.State, out.Label = line.GetStatus().GetState(), line.GetSpec().GetLabels()
	return out
}

// note notes the broken bounds of a job. The lock is held.
func (j *jobs) note(k state.JobKey, of *state.Job) {
	delete(j.broken, k)
	for _, b := range of.Notes().Breaches {
		if b.State != topology.Broken || !b.Over || len(j.broken) >= maxDueJobs && j.broken[k] == nil {
			continue
		}
		j.broken[k] = append(j.broken[k], breach{
			at: j.st.Clock() + topology.BreachSustain - b.Balance, group: b.Group,
			text: fmt.Sprintf("group %s in %s breaks %s, now at %v: its instances may move then", b.Group, b.Region, b.Near, b.Latest.Round(100*time.Microsecond)),
		})
	}
}

// due returns when broken bounds become sustained: the first one of each job.
func (j *jobs) due(now time.Duration) (out []*nusav1.OverviewDue) {
	wall := time.Now()
	j.st.Lock()
	defer j.st.Unlock()
	for k, all := range j.broken {
		first := slices.MinFunc(all, func(a, b breach) int { return int(a.at - b.at) })
		out = append(out, &nusav1.OverviewDue{
			Kind: "latency_move", Subject: k.String(), At: timestamppb.New(wall.Add(max(0, first.at-now))), Message: first.text,
		})
	}
	return out
}

// Facts implements feed.JobSource.
func (j *jobs) Facts(key string) (feed.Facts, bool) {
	namespace, name, _ := overview.CutKey(key)
	k := state.JobKey{Namespace: namespace, Name: name}
	j.st.Lock()
	defer j.st.Unlock()
	if of := j.st.Jobs[k]; of != nil && of.Record != nil {
		return feed.Facts{Label: of.Record.Labels(), Regions: of.Regions()}, true
	}
	line := state.Line(j.st, k.String())
	return feed.Facts{Label: line.GetSpec().GetLabels()}, line != nil
}

var types = map[place.JobType]nusav1.JobType{
	place.Service: nusav1.JobType_JOB_TYPE_SERVICE, place.Batch: nusav1.JobType_JOB_TYPE_BATCH, place.System: nusav1.JobType_JOB_TYPE_SYSTEM,
	place.Workflow: nusav1.JobType_JOB_TYPE_WORKFLOW,
}

// Line implements feed.JobSource.
func (j *jobs) Line(key string) *nusav1.OverviewJob {
	namespace, name, _ := overview.CutKey(key)
	k := state.JobKey{Namespace: namespace, Name: name}
	j.st.Lock()
	defer j.st.Unlock()
	of := j.st.Jobs[k]
	if of == nil || of.Record == nil {
		line := state.Line(j.st, k.String())
		if line == nil {
			return nil
		}
		out := lineOf(k, line)
		out.Type, out.Labels, out.Priority = line.GetSpec().GetType(), line.GetSpec().GetLabels(), line.GetSpec().GetPriority()
		return out
	}
	out := lineOf(k, of.WithoutSpec(j.st.Sight()))
	out.Type, out.Labels, out.Priority, out.Regions = types[of.Record.Type()], of.Record.Labels(), int32(of.Place().Priority), of.Regions()
	return out
}

// lineOf returns the line of a job, without what its spec says.
func lineOf(k state.JobKey, m *nusav1.Job) *nusav1.OverviewJob {
	out := &nusav1.OverviewJob{
		Job: &nusav1.JobRef{Namespace: k.Namespace, Name: k.Name}, State: m.GetStatus().GetState(), Version: m.GetVersion(),
		Submitted: m.GetSubmitted(), Counts: &nusav1.InstanceCounts{}, Message: m.GetStatus().GetMessage(),
	}
	for _, g := range m.GetStatus().GetGroups() {
		out.Desired += g.GetDesired()
		out.Unplaced += g.GetUnowned()
		counts.Add(out.Counts, g.GetCounts())
	}
	return out
}
