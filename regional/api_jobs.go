package regional

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/counts"
	"github.com/nusa-scheduler/nusa/internal/reason"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

const (
	// watchEvery bounds how often a watch sends: ten times a second.
	watchEvery = 100 * time.Millisecond
	// maxListed is the page size of lists of jobs, listedBytes about how large a
	// page gets: specs may have a MiB each, and a client may take no more than 4.
	maxListed   = 1000
	listedBytes = 2 << 20
)

// jobs is the region's own Jobs service: it takes jobs of the region
// (name@region), also while the global tier is away, and tells what it knows
// of the federation's jobs that run here.
type jobs struct {
	nusav1.UnimplementedJobsServer
	s *server
}

// findJob is the job that a reference means: one of the region's own, or the
// part of a federation's job that is here.
func (l *leader) findJob(view *state.View, ref *nusav1.JobRef) (state.JobKey, error) {
	region := l.s.cfg.Region.GetName()
	name, at, cut := strings.Cut(ref.GetName(), "@")
	if !cut {
		at = ref.GetRegion()
	}
	namespace := ref.GetNamespace()
	if namespace == "" {
		namespace = job.DefaultNamespace
	}
	if at != "" && at != region {
		return state.JobKey{}, status.Errorf(codes.NotFound, "this is region %q, it knows no job %s/%s@%s", region, namespace, name, at)
	}
	global := state.JobKey{Namespace: namespace, Job: name}
	local := state.JobKey{Namespace: namespace, Job: name, Local: true}
	if at == "" {
		for range view.JobGroups(global) {
			return global, nil
		}
	}
	if _, found := view.LocalJob(namespace, name); found {
		return local, nil
	}
	if at != "" {
		return state.JobKey{}, status.Errorf(codes.NotFound, "job %s is not known", local.In(region))
	}
	return state.JobKey{}, status.Errorf(codes.NotFound, "job %s is not known in region %q", global, region)
}

// job is a stored job with its live status here.
func (l *leader) job(view *state.View, k state.JobKey) (*nusav1.Job, error) {
	out := &nusav1.Job{
		// All that is known of one whose every slot is gone.
		Spec:   &nusav1.JobSpec{Namespace: k.Namespace, Name: k.Job},
		Status: &nusav1.JobStatus{Groups: map[string]*nusav1.GroupStatus{}},
	}
	version := int64(0)
	if k.Local {
		own, found := view.LocalJob(k.Namespace, k.Job)
		if !found {
			return nil, status.Errorf(codes.NotFound, "job %s is not known", k.In(l.s.cfg.Region.GetName()))
		}
		version = own.Version
		out.Revision, out.Stopped, out.Submitted = int64(own.Revision), own.Stopped, wire.TimestampToProto(own.SubmittedUnixNano)
		out.Region, out.Run = l.s.cfg.Region.GetName(), own.Run
	}
	left := k.Local
	for g := range view.JobGroups(k) {
		left = left || here(g)
		for _, s := range g.Slots {
			version = max(version, s.JobVersion)
			if !k.Local {
				out.Revision, out.Run = max(out.Revision, s.Revision), max(out.Run, s.Run)
			}
		}
		out.Status.Groups[g.Key.Group] = l.groupStatus(view, g)
	}
	out.Version = version
	if stored, found := view.Job(k, version); found {
		out.Spec = &nusav1.JobSpec{}
		if err := proto.Unmarshal(stored.Spec, out.Spec); err != nil {
			return nil, status.Errorf(codes.Internal, "stored spec of job %s: %v", k.In(l.s.cfg.Region.GetName()), err)
		}
	}
	sumUpJob(out)
	if !left {
		out.Status.State, out.Status.Message = nusav1.JobState_JOB_STATE_STOPPED, "the region has nothing of it any more"
	}
	return out, nil
}

func (l *leader) groupStatus(view *state.View, g *state.GroupView) *nusav1.GroupStatus {
	c := wire.InstanceCountsToProto(g.Counts)
	counts.MoveSurplusToStopping(c, g.Wanted)
	region := l.s.cfg.Region.GetName()
	out := &nusav1.GroupStatus{
		Desired: g.Wanted, Counts: c, Regions: map[string]*nusav1.InstanceCounts{region: c},
		Pending: l.reporter.Reasons(view, g),
	}
	for _, s := range g.Slots {
		out.Slots = append(out.Slots, wire.SlotToProto(s, region))
	}
	return out
}

// sumUpJob answers how a job as a whole stands.
func sumUpJob(j *nusav1.Job) {
	var c nusav1.InstanceCounts
	desired, why := int32(0), ""
	for _, name := range slices.Sorted(maps.Keys(j.GetStatus().GetGroups())) {
		g := j.Status.Groups[name]
		desired += g.GetDesired()
		counts.Add(&c, g.GetCounts())
		if len(g.GetPending()) > 0 && why == "" {
			why = name + ": " + reason.WithMessage(g.Pending[0].GetReason(), g.Pending[0].GetMessage())
		}
	}
	live := c.Pending + c.Starting + c.Running + c.Lost
	batch := j.GetSpec().GetType() == nusav1.JobType_JOB_TYPE_BATCH
	message := ""
	switch {
	case j.GetStopped() && c.Starting+c.Running+c.Stopping == 0:
		j.Status.State, why = nusav1.JobState_JOB_STATE_STOPPED, ""
	case j.GetStopped():
		j.Status.State, why = nusav1.JobState_JOB_STATE_STOPPING, beingStopped(c.Starting+c.Running+c.Stopping)
	case c.Failed > 0:
		j.Status.State, message = nusav1.JobState_JOB_STATE_FAILED, fmt.Sprintf("%d of %d instances failed", c.Failed, desired)
	case c.Outdated > 0:
		j.Status.State, message = nusav1.JobState_JOB_STATE_STARTING, fmt.Sprintf("updating: %d of %d instances run version %d",
			max(0, c.Running-c.Outdated), desired, j.GetVersion())
	case batch && live+c.Stopping == 0 && c.Complete > 0:
		j.Status.State = nusav1.JobState_JOB_STATE_COMPLETE
	case c.Pending+c.Lost > 0 || live+c.Complete == 0 && desired > 0:
		j.Status.State = nusav1.JobState_JOB_STATE_PENDING
	case c.Stopping > 0:
		j.Status.State, why = nusav1.JobState_JOB_STATE_STARTING, beingStopped(c.Stopping)
	case c.Starting > 0:
		j.Status.State = nusav1.JobState_JOB_STATE_STARTING
	default:
		j.Status.State = nusav1.JobState_JOB_STATE_RUNNING
	}
	if message != "" && why != "" {
		message += ": "
	}
	j.Status.Message = message + why
}

func beingStopped(n int32) string {
	if n == 1 {
		return "1 instance is being stopped"
	}
	return fmt.Sprintf("%d instances are being stopped", n)
}

// Get answers one job.
func (j jobs) Get(_ context.Context, req *nusav1.GetJobRequest) (*nusav1.Job, error) {
	l, err := j.s.leading()
	if err != nil {
		return nil, err
	}
	view := j.s.fsm.View()
	k, err := l.findJob(view, req.GetJob())
	if err != nil {
		return nil, err
	}
	return l.job(view, k)
}

// List answers the region's own jobs and the federation's that are here.
func (j jobs) List(_ context.Context, req *nusav1.ListJobsRequest) (*nusav1.ListJobsResponse, error) {
	l, err := j.s.leading()
	if err != nil {
		return nil, err
	}
	limit := int(req.GetLimit())
	if limit <= 0 || limit > maxListed {
		limit = maxListed
	}
	view := j.s.fsm.View()
	keys := map[state.JobKey]bool{}
	for own := range view.LocalJobs() {
		keys[own.Key()] = true
	}
	for g := range view.Groups() {
		// Of a job that was stopped, moved or given back ended allocations are left
		// for a while: it is here while a slot is, or something lives.
		if !g.Key.Local && !req.GetOwn() && here(g) {
			keys[g.Key.JobKey()] = true
		}
	}
	out, size := &nusav1.ListJobsResponse{}, 0
	for _, k := range slices.SortedFunc(maps.Keys(keys), state.JobKey.Compare) {
		if req.GetNamespace() != "" && k.Namespace != req.GetNamespace() || pageKey(k) <= req.GetPageToken() {
			continue
		}
		one, err := l.job(view, k)
		if err != nil {
			// One job that cannot be shown must not hide the others.
			out.Errors = append(out.Errors, &nusav1.PartialError{
				Region: l.s.cfg.Region.GetName(), Message: k.In(l.s.cfg.Region.GetName()) + ": " + status.Convert(err).Message()})
			continue
		}
		if !matches(one.GetSpec().GetLabels(), req.GetLabels()) {
			continue
		}
		if len(out.Jobs) == limit || size > listedBytes {
			last := out.Jobs[len(out.Jobs)-1]
			out.NextPageToken = pageKey(state.JobKey{Namespace: last.GetSpec().GetNamespace(), Job: last.GetSpec().GetName(), Local: last.GetRegion() != ""})
			break
		}
		out.Jobs = append(out.Jobs, one)
		size += proto.Size(one)
	}
	return out, nil
}

// here says that a group has more than ended allocations in the region.
func here(g *state.GroupView) bool {
	c := g.Counts
	return len(g.Slots) > 0 || c.Pending+c.Starting+c.Running+c.Lost > 0
}

// pageKey orders jobs as JobKey.Compare does.
func pageKey(k state.JobKey) string {
	local := "0"
	if k.Local {
		local = "1"
	}
	return k.Namespace + "\x00" + k.Job + "\x00" + local
}

func matches(labels, want map[string]string) bool {
	for k, v := range want {
		if have, found := labels[k]; !found || have != v {
			return false
		}
	}
	return true
}

// Stop ends one of the region's own jobs.
func (j jobs) Stop(ctx context.Context, req *nusav1.StopJobRequest) (*nusav1.StopJobResponse, error) {
	l, err := j.s.leading()
	if err != nil {
		return nil, err
	}
	k, err := l.findJob(j.s.fsm.View(), req.GetJob())
	if err != nil {
		return nil, err
	}
	if !k.Local {
		return nil, status.Errorf(codes.FailedPrecondition, "job %s belongs to the federation: stop it through a global server", k)
	}
	r, err := l.seq.Commit(ctx, state.Command{StopLocalJob: &state.StopLocalJob{
		Namespace: k.Namespace, Name: k.Job, Purge: req.GetPurge(), CheckRevision: req.GetCheckRevision(),
	}})
	if err != nil {
		return nil, wireError(err)
	}
	if r.Changed && len(r.Purged) == 0 { // else leader.purged has told it
		then := ""
		if req.GetPurge() {
			then = ", then it is forgotten"
		}
		l.events.Add("job.stopped", k.In(j.s.cfg.Region.GetName()), "its instances are being stopped%s", then)
	}
	return &nusav1.StopJobResponse{Revision: int64(r.Revision)}, nil
}

// Adopt will be the global tier's.
func (j jobs) Adopt(context.Context, *nusav1.AdoptRequest) (*nusav1.SubmitResponse, error) {
	return nil, status.Error(codes.Unimplemented, "job adopt is not supported yet: a region's own job stays its own, submit it to the federation under another name")
}

// Watch sends the job at once and after each change.
func (j jobs) Watch(req *nusav1.GetJobRequest, stream grpc.ServerStreamingServer[nusav1.Job]) error {
	l, err := j.s.leading()
	if err != nil {
		return err
	}
	k, err := l.findJob(j.s.fsm.View(), req.GetJob())
	if err != nil {
		return err
	}
	ctx := stream.Context()
	var sent *nusav1.Job
	for {
		view, changed := j.s.fsm.Watch()
		now, err := l.job(view, k)
		if status.Code(err) == codes.NotFound || err == nil && !k.Local && len(now.Status.Groups) == 0 {
			return nil // purged, or no longer this region's
		}
		if err != nil {
			return err
		}
		if !proto.Equal(now, sent) {
			if err := stream.Send(now); err != nil {
				return err
			}
			sent = now
		}
		pause(ctx, watchEvery)
		select {
		case <-ctx.Done():
			return nil
		case <-l.ctx.Done():
			return errNoMaster
		case <-changed:
		}
	}
}
