package api

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/filter"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/wait"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/rights"
)

const (
	// A watch may send watchBurst messages at once after a quiet time, and then one message
	// in each watchInterval. A job changes about watchBurst times until it runs.
	watchInterval = 100 * time.Millisecond
	watchBurst    = 10
	// maxPageJobs bounds the jobs on a page. maxPageBytes roughly bounds the page's size: a
	// spec may have 1 MiB, and a client may accept no more than 4 MiB.
	maxPageJobs  = 1000
	maxPageBytes = 2 << 20
)

// jobs is the Jobs service of a region. It manages the region's own jobs (name@region),
// also without the global tier. It only describes jobs of the federation that have
// instances in this region.
type jobs struct {
	nusav1.UnimplementedJobsServer
	s *Server
}

// findJob returns the key of a job. The job is either one of the region's own jobs, or a
// job of the federation that has a part in this region.
func findJob(view *state.View, ref *nusav1.JobRef) (state.JobKey, error) {
	region := view.Cluster().Region
	name, at, cut := strings.Cut(ref.GetName(), "@")
	if !cut {
		at = ref.GetRegion()
	}
	namespace := ref.GetNamespace()
	if namespace == "" {
		namespace = job.DefaultNamespace
	}
	if at != "" && at != region {
		return state.JobKey{}, notFound(rpcerr.KindJob, name, "this is region %q, it knows no job %s/%s@%s", region, namespace, name, at)
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
		return state.JobKey{}, notFound(rpcerr.KindJob, name, "job %s is not known", local.In(region))
	}
	return state.JobKey{}, notFound(rpcerr.KindJob, name, "job %s is not known in region %q", global, region)
}

// FindJob finds a job for the other services of the region: see findJob.
func FindJob(view *state.View, ref *nusav1.JobRef) (state.JobKey, error) { return findJob(view, ref) }

// job returns a stored job with its status in this region.
func (j jobs) job(m *Master, view *state.View, k state.JobKey) (*nusav1.Job, error) {
	out := &nusav1.Job{
		// About a job without slots here the region knows nothing but its name.
		Spec:   &nusav1.JobSpec{Namespace: k.Namespace, Name: k.Job},
		Status: &nusav1.JobStatus{Groups: map[string]*nusav1.GroupStatus{}},
	}
	version := int64(0)
	if k.Local {
		own, found := view.LocalJob(k.Namespace, k.Job)
		if !found {
			return nil, notFound(rpcerr.KindJob, k.Job, "job %s is not known", k.In(j.s.region()))
		}
		version = own.Version
		out.Revision, out.Stopped, out.Submitted = int64(own.Revision), own.Stopped, wire.TimestampToProto(own.SubmittedUnixNano)
		out.Region, out.Run = j.s.region(), own.Run
	}
	present := k.Local
	for g := range view.JobGroups(k) {
		present = present || hasWork(g)
		for _, s := range g.Slots {
			version = max(version, s.JobVersion)
			if !k.Local {
				out.Revision, out.Run = max(out.Revision, s.Revision), max(out.Run, s.Run)
			}
		}
		out.Status.Groups[g.Key.Group] = j.groupStatus(m, view, g)
	}
	out.Version = version
	if stored, found := view.Job(k, version); found {
		out.Spec = &nusav1.JobSpec{}
		if err := proto.Unmarshal(stored.Spec, out.Spec); err != nil {
			return nil, status.Errorf(codes.Internal, "stored spec of job %s: %v", k.In(j.s.region()), err)
		}
	}
	if o, ok := view.Override(k.Namespace, k.Job); ok && !k.Local {
		out.Status.Overrides = []*nusav1.Override{wire.OverrideToProto(o, j.s.region(), view.Held(k))}
	}
	setJobStatus(out)
	if !present {
		out.Status.State, out.Status.Message = nusav1.JobState_JOB_STATE_STOPPED, "the region has no part of the job any more"
	}
	return out, nil
}

// Job returns a job with its status in a region. It returns nil for a job that the region does not
// show.
func Job(s *Server, m *Master, view *state.View, k state.JobKey) *nusav1.Job {
	shown := false
	if k.Local {
		_, shown = view.LocalJob(k.Namespace, k.Job)
	}
	for g := range view.JobGroups(k) {
		shown = shown || !k.Local && hasWork(g)
	}
	if !shown {
		return nil
	}
	out, err := jobs{s: s}.job(m, view, k)
	if err != nil {
		return nil // its spec cannot be read: Get says so
	}
	return out
}

// JobKeys returns the jobs that a region shows, sorted.
func JobKeys(view *state.View) []state.JobKey {
	keys := map[state.JobKey]bool{}
	for own := range view.LocalJobs() {
		keys[own.Key()] = true
	}
	for g := range view.Groups() {
		if !g.Key.Local && hasWork(g) {
			keys[g.Key.JobKey()] = true
		}
	}
	return slices.SortedFunc(maps.Keys(keys), state.JobKey.Compare)
}

// Get returns one job.
func (j jobs) Get(_ context.Context, req *nusav1.GetJobRequest) (*nusav1.Job, error) {
	m, err := j.s.master()
	if err != nil {
		return nil, err
	}
	view := j.s.State.View()
	k, err := findJob(view, req.GetJob())
	if err != nil {
		return nil, err
	}
	return j.job(m, view, k)
}

// List returns the region's own jobs, and the federation's jobs that have a part in this
// region.
func (j jobs) List(ctx context.Context, req *nusav1.ListJobsRequest) (*nusav1.ListJobsResponse, error) {
	m, err := j.s.master()
	if err != nil {
		return nil, err
	}
	limit := int(req.GetLimit())
	if limit <= 0 || limit > maxPageJobs {
		limit = maxPageJobs
	}
	if !isPage(req.GetPageToken()) {
		return nil, rpcerr.NoPage("page_token", req.GetPageToken())
	}
	if err := filter.Check(req.GetStates(), filter.JobStates); err != nil {
		return nil, err
	}
	view := j.s.State.View()
	keys := map[state.JobKey]bool{}
	for own := range view.LocalJobs() {
		keys[own.Key()] = true
	}
	for g := range view.Groups() {
		// Ended allocations stay in the state for a while after a job was stopped, moved or
		// returned. A job that only has ended allocations is not listed.
		if !g.Key.Local && !req.GetOwn() && hasWork(g) {
			keys[g.Key.JobKey()] = true
		}
	}
	out, size := &nusav1.ListJobsResponse{}, 0
	call := rights.Of(ctx)
	filtered := call.Filtered()
	for _, k := range slices.SortedFunc(maps.Keys(keys), state.JobKey.Compare) {
		if filtered && !call.May(k.Namespace, "") {
			continue
		}
		if req.GetNamespace() != "" && k.Namespace != req.GetNamespace() || pageKey(k) <= req.GetPageToken() {
			continue
		}
		one, err := j.job(m, view, k)
		if err != nil {
			// One job that cannot be shown must not hide the other jobs.
			out.Errors = append(out.Errors, &nusav1.PartialError{
				Region: j.s.region(), Message: k.In(j.s.region()) + ": " + status.Convert(err).Message()})
			continue
		}
		if !filter.Labels(one.GetSpec().GetLabels(), req.GetLabels()) || !filter.Has(req.GetStates(), filter.Job(one.GetStatus())...) {
			continue
		}
		if len(out.Jobs) == limit || size > maxPageBytes {
			last := out.Jobs[len(out.Jobs)-1]
			out.NextPageToken = pageKey(state.JobKey{Namespace: last.GetSpec().GetNamespace(), Job: last.GetSpec().GetName(), Local: last.GetRegion() != ""})
			break
		}
		if req.GetBrief() {
			one.Spec = job.Brief(one.GetSpec())
		}
		out.Jobs = append(out.Jobs, one)
		size += proto.Size(one)
	}
	return out, nil
}

// hasWork reports whether a group has slots or live instances in the region.
func hasWork(g *state.GroupView) bool {
	c := g.Counts
	return len(g.Slots) > 0 || c.Pending+c.Starting+c.Running+c.Lost > 0
}

// pageKey returns a string for each job. The strings have the same order as JobKey.Compare.
func pageKey(k state.JobKey) string {
	local := "0"
	if k.Local {
		local = "1"
	}
	return k.Namespace + "\x00" + k.Job + "\x00" + local
}

// isPage reports whether a token can be one that a list has returned: see pageKey.
func isPage(token string) bool {
	parts := strings.Split(token, "\x00")
	return token == "" || len(parts) == 3 && job.ValidName(parts[0]) && job.ValidName(parts[1]) && (parts[2] == "0" || parts[2] == "1")
}

// Stop stops one of the region's own jobs.
func (j jobs) Stop(ctx context.Context, req *nusav1.StopJobRequest) (*nusav1.StopJobResponse, error) {
	m, err := j.s.master()
	if err != nil {
		return nil, err
	}
	k, err := findJob(j.s.State.View(), req.GetJob())
	if err != nil {
		return nil, err
	}
	if !k.Local {
		return nil, status.Errorf(codes.FailedPrecondition, "job %s belongs to the federation: stop it through a global server, or only what region %s runs of it with `nusa job stop %s --override`",
			k, j.s.region(), k.Job)
	}
	e := audit.Entry{Verb: "stop", Kind: "job", Namespace: k.Namespace, Name: k.Job}
	if req.GetPurge() {
		e.Reason = "and forget"
	}
	r, err := m.Log.Commit(ctx, j.s.audited(ctx, state.Command{StopLocalJob: &state.StopLocalJob{
		Namespace: k.Namespace, Name: k.Job, Purge: req.GetPurge(), CheckRevision: req.GetCheckRevision(),
	}}, e))
	if err != nil {
		return nil, raftlog.StatusError(err)
	}
	return &nusav1.StopJobResponse{Revision: int64(r.Revision)}, nil
}

// WatchGroups sends the counts of all groups that the request selects. Then it sends the
// counts of each group that changes.
func (j jobs) WatchGroups(req *nusav1.WatchGroupsRequest, stream groupStream) error {
	return watchGroups(j.s, req, stream)
}

// Watch sends the job now and after each change.
func (j jobs) Watch(req *nusav1.GetJobRequest, stream grpc.ServerStreamingServer[nusav1.Job]) error {
	m, err := j.s.master()
	if err != nil {
		return err
	}
	k, err := findJob(j.s.State.View(), req.GetJob())
	if err != nil {
		return err
	}
	ctx := stream.Context()
	pace := wait.NewPace(watchInterval, watchBurst)
	var sent *nusav1.Job
	for {
		pace.Wait(ctx)
		view, changed := j.s.State.Watch()
		now, err := j.job(m, view, k)
		if status.Code(err) == codes.NotFound || err == nil && !k.Local && len(now.Status.Groups) == 0 {
			return nil // the job was purged, or has moved to another region
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
		select {
		case <-ctx.Done():
			return nil
		case <-m.Done:
			return raftlog.ErrNoMaster
		case <-changed:
		}
	}
}
