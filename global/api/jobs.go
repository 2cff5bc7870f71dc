package api

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/placer"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/filter"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/recorder"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// jobsAPI is the public Jobs service of the federation.
type jobsAPI struct {
	nusav1.UnimplementedJobsServer
	s *Services
}

// checkRef returns the key of the job that a reference names. It fills in the default namespace.
func checkRef(ref *nusav1.JobRef) (state.JobKey, error) {
	k := state.JobKey{Namespace: ref.GetNamespace(), Name: ref.GetName()}
	if k.Namespace == "" {
		k.Namespace = job.DefaultNamespace
	}
	if k.Name == "" || strings.ContainsAny(k.Namespace+k.Name, "/@") {
		return k, invalid("job.name", "must name a job, as NAME or NAMESPACE/NAME")
	}
	return k, nil
}

// JobKeyOf returns the key of the job that a reference names.
func JobKeyOf(ref *nusav1.JobRef) (state.JobKey, error) { return checkRef(ref) }

// JobNotFound returns the error about a job that does not exist.
func JobNotFound(k state.JobKey) error { return jobNotFound(k) }

// ChangeJob commits a change of a job that may be in the history.
func ChangeJob(ctx context.Context, term *Term, k state.JobKey, change func(*state.Tx) error) (revision int64, err error) {
	return recalled(ctx, term, k, change)
}

// regionJobs returns the Jobs service of the region that a reference names, or nil if the job
// belongs to the federation.
func regionJobs(term *Term, ref *nusav1.JobRef) (nusav1.JobsClient, error) {
	if ref.GetRegion() == "" {
		return nil, nil
	}
	conn, err := term.dial(ref.GetRegion())
	if err != nil {
		return nil, err
	}
	return nusav1.NewJobsClient(conn), nil
}

// Get implements nusav1.JobsServer.
func (j *jobsAPI) Get(ctx context.Context, req *nusav1.GetJobRequest) (*nusav1.Job, error) {
	term, err := j.s.term()
	if err != nil {
		return nil, err
	}
	k, err := checkRef(req.GetJob())
	if err != nil {
		return nil, err
	}
	if client, err := regionJobs(term, req.GetJob()); client != nil || err != nil {
		if err != nil {
			return nil, err
		}
		return client.Get(ctx, req)
	}
	for range recallTries {
		term.State.Lock()
		found := term.State.Jobs[k]
		if found != nil && found.Record != nil {
			out := found.ToProto(term.State.Sight())
			term.State.Unlock()
			placer.AddDestinations(term.State, k, out.GetStatus())
			term.queue.AddTo(term.State, out)
			return out, nil
		}
		past := state.MayBeInHistory(term.State, k)
		term.State.Unlock()
		if !past {
			return nil, jobNotFound(k)
		}
		if out, err := state.Past(ctx, term.State, term.Store, k); out != nil || err != nil {
			return out, rpcError(err)
		}
	}
	return nil, rpcError(state.ErrRecall)
}

// recallTries bounds how often a request reads the record of a job again because the job leaves
// memory, or returns, at the same time.
const recallTries = 8

// Stop implements nusav1.JobsServer.
func (j *jobsAPI) Stop(ctx context.Context, req *nusav1.StopJobRequest) (*nusav1.StopJobResponse, error) {
	term, err := j.s.term()
	if err != nil {
		return nil, err
	}
	k, err := checkRef(req.GetJob())
	if err != nil {
		return nil, err
	}
	if client, err := regionJobs(term, req.GetJob()); client != nil || err != nil {
		if err != nil {
			return nil, err
		}
		return client.Stop(ctx, req)
	}
	stored := int64(0)
	revision, err := recalled(ctx, term, k, func(t *state.Tx) error {
		old, rev, err := state.Stored(t, k)
		if err != nil {
			return err
		}
		if old == nil {
			return jobNotFound(k)
		}
		if err := state.CheckRevision("job "+k.String(), req.GetCheckRevision(), true, rev); err != nil {
			return err
		}
		if old.Stopped() && (old.Purge() || !req.GetPurge()) {
			stored = rev
			return nil
		}
		e := audit.Entry{Verb: "stop", Kind: "job", Namespace: k.Namespace, Name: k.Name}
		if req.GetPurge() {
			e.Reason = "and forget"
		}
		if err := t.Audit(e); err != nil {
			return err
		}
		how := "its instances are being stopped"
		if req.GetPurge() {
			how += ", then the job is forgotten"
			if len(t.Slots(k, "")) == 0 {
				t.Event("job.stopped", k.String(), "it has no instances")
				t.Event("job.purged", k.String(), "forgotten")
				return t.DeleteJob(k)
			}
		}
		t.Event("job.stopped", k.String(), "%s", how)
		next := old.Full()
		next.Job.Stopped, next.Job.Run = true, old.Run(rev)
		next.Purge = next.Purge || req.GetPurge()
		return t.PutJob(k, next)
	})
	if err != nil {
		return nil, rpcError(err)
	}
	if stored != 0 {
		return &nusav1.StopJobResponse{Revision: stored}, nil
	}
	term.Log.Info("job stopped", "job", k.String(), "purge", req.GetPurge())
	return &nusav1.StopJobResponse{Revision: revision}, nil
}

// recalled commits a change of a job that may be in the history.
func recalled(ctx context.Context, term *Term, k state.JobKey, change func(*state.Tx) error) (revision int64, err error) {
	for range recallTries {
		if err = state.Recall(ctx, term.State, term.Store, k); err != nil {
			return 0, err
		}
		if revision, err = term.Commit.Do(ctx, change); !errors.Is(err, state.ErrRecall) {
			break
		}
	}
	return revision, err
}

// Watch implements nusav1.JobsServer.
func (j *jobsAPI) Watch(req *nusav1.GetJobRequest, stream grpc.ServerStreamingServer[nusav1.Job]) error {
	term, err := j.s.term()
	if err != nil {
		return err
	}
	k, err := checkRef(req.GetJob())
	if err != nil {
		return err
	}
	if client, err := regionJobs(term, req.GetJob()); client != nil || err != nil {
		if err != nil {
			return err
		}
		up, err := client.Watch(stream.Context(), req)
		if err != nil {
			return err
		}
		return relay(up, stream.Send)
	}
	var sent *nusav1.Job // without the spec
	var record *state.Record
	var spec *nusav1.JobSpec // the spec of record
	var seen int64           // revision of the history record that was sent last
	places := watchedPlaces{}
	return term.followAgain(stream.Context(), func() (<-chan struct{}, time.Duration, error) {
		term.State.Lock()
		found := term.State.Jobs[k]
		var now *nusav1.Job
		var latest *state.Record // nil for a job in the history
		var changed <-chan struct{}
		past, known := term.State.History.Get(k.String())
		if !known && !term.State.History.Certain(k.String()) {
			term.State.Unlock()
			if err := state.Learn(stream.Context(), term.State, term.Store, k); err != nil {
				return nil, 0, rpcError(err)
			}
			term.State.Lock()
			found = term.State.Jobs[k]
			past, known = term.State.History.Get(k.String())
		}
		switch {
		case found != nil && found.Record != nil:
			changed, now, latest = found.Watched(), found.WithoutSpec(term.State.Sight()), found.Record
			term.State.Unlock()
		case known:
			changed = state.PastWatched(term.State, k)
			term.State.Unlock()
			if past.Revision == seen {
				return changed, 0, nil
			}
			now, err = state.Past(stream.Context(), term.State, term.Store, k)
			if now == nil || err != nil {
				return changed, 0, rpcError(err) // without an error, the job has returned from the history meanwhile
			}
			seen, spec, record, now.Spec = past.Revision, now.GetSpec(), nil, nil
		default:
			term.State.Unlock()
			if sent == nil {
				return nil, 0, jobNotFound(k)
			}
			return nil, 0, nil // the job was purged
		}
		again := soonest(places.addTo(term, k, now), canariesDue(now))
		if latest == record && proto.Equal(now, sent) {
			return changed, again, nil
		}
		if latest != record {
			record, spec = latest, latest.Spec()
		}
		sent, now.Spec = now, spec
		err := stream.Send(now)
		now.Spec = nil
		return changed, again, err
	})
}

// canariesPause is the time between two looks of a watch at a rollout whose canaries are not healthy for min_healthy yet:
// that they are changes no record.
const canariesPause = time.Second

// canariesDue returns when the canaries of a job are looked at again, or 0 if the job has none that are awaited.
func canariesDue(j *nusav1.Job) time.Duration {
	r := j.GetStatus().GetRollout()
	if r.GetState() != nusav1.RolloutState_ROLLOUT_STATE_CANARY || r.GetAwaitsPromotion() || r.GetHealthyCanaries() < r.GetCanaries() {
		return 0
	}
	return canariesPause
}

// soonest returns the shorter one of two times, where 0 stands for never.
func soonest(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// placesPause is the shortest time between two looks of a watch at the queue.
const placesPause = 2 * time.Second

// watchedPlaces are the places in the queue of the global tier that a watch shows.
type watchedPlaces struct {
	read   time.Time
	groups map[string]*nusav1.QueuePlace
}

// addTo adds the places to the status of a job. It returns when they are read again, or 0 if no instance waits.
func (p *watchedPlaces) addTo(term *Term, k state.JobKey, j *nusav1.Job) (again time.Duration) {
	for name, g := range j.GetStatus().GetGroups() {
		if g.GetUnowned() == 0 {
			continue
		}
		if again == 0 {
			if age := time.Since(p.read); age < placesPause {
				again = placesPause - age
			} else {
				again, p.read, p.groups = placesPause, time.Now(), map[string]*nusav1.QueuePlace{}
				for name := range j.GetStatus().GetGroups() {
					p.groups[name] = term.queue.Recent(term.State).Of(k, name)
				}
			}
		}
		g.GlobalQueue = p.groups[name]
	}
	return again
}

// overridesAPI is the Overrides service over all regions. Each region keeps its own overrides.
type overridesAPI struct {
	nusav1.UnimplementedOverridesServer
	s *Services
}

// List implements nusav1.OverridesServer. A region of an earlier version has no overrides.
func (o *overridesAPI) List(ctx context.Context, req *nusav1.ListOverridesRequest) (*nusav1.ListOverridesResponse, error) {
	if err := filter.Check(req.GetStates(), filter.OverrideStates); err != nil {
		return nil, err
	}
	term, err := o.s.term()
	if err != nil {
		return nil, err
	}
	var names []string
	if name := req.GetRegion(); name != "" {
		if _, err := term.region(name); err != nil {
			return nil, err
		}
		names = []string{name}
	}
	conns, errs := term.reach(names)
	parts, failed := askAll(ctx, conns, func(ctx context.Context, c regionConn) (*nusav1.ListOverridesResponse, error) {
		part, err := nusav1.NewOverridesClient(c.conn).List(ctx, &nusav1.ListOverridesRequest{
			Namespace: req.GetNamespace(), Region: c.name, States: req.GetStates(), // labels: the global tier knows those of all jobs
		})
		if rpcerr.UnknownCall(err) {
			return &nusav1.ListOverridesResponse{}, nil
		}
		return part, err
	})
	out := &nusav1.ListOverridesResponse{Errors: append(errs, failed...)}
	for _, part := range parts {
		out.Overrides = append(out.Overrides, part.GetOverrides()...)
	}
	selectOverrides(term.State, req, out)
	if call := rights.Of(ctx); call.Filtered() {
		out.Overrides = slices.DeleteFunc(out.Overrides, func(x *nusav1.Override) bool { return !call.May(x.GetNamespace(), x.GetRegion()) })
	}
	slices.SortFunc(out.Overrides, func(x, y *nusav1.Override) int {
		return cmp.Or(cmp.Compare(x.GetNamespace(), y.GetNamespace()), cmp.Compare(x.GetJob(), y.GetJob()), cmp.Compare(x.GetRegion(), y.GetRegion()))
	})
	return out, nil
}

// selectOverrides applies the filters of a request. A region of an earlier version knows no filters, and a region may
// have an earlier version of a job.
func selectOverrides(st *state.State, req *nusav1.ListOverridesRequest, out *nusav1.ListOverridesResponse) {
	st.Lock()
	defer st.Unlock()
	out.Overrides = slices.DeleteFunc(out.Overrides, func(x *nusav1.Override) bool {
		if !filter.Has(req.GetStates(), filter.Override(x)...) {
			return true
		}
		if len(req.GetLabels()) == 0 {
			return false
		}
		k := state.JobKey{Namespace: x.GetNamespace(), Name: x.GetJob()}
		if j := st.Jobs[k]; j != nil && j.Record != nil {
			return !filter.Labels(j.Record.Labels(), req.GetLabels())
		}
		return !filter.Labels(state.Line(st, k.String()).GetSpec().GetLabels(), req.GetLabels())
	})
}

// Set implements nusav1.OverridesServer. The region has an entry of its own once the override is stored.
func (o *overridesAPI) Set(ctx context.Context, req *nusav1.SetOverrideRequest) (*nusav1.Override, error) {
	c, err := o.region(ctx, req.GetJob(), req.GetRegion(), "set")
	if err != nil {
		return nil, err
	}
	named := proto.CloneOf(req)
	named.Caller = recorder.Of(ctx).Who
	out, err := c.Set(ctx, named)
	return out, ofRegion(req.GetRegion(), err)
}

// Clear implements nusav1.OverridesServer.
func (o *overridesAPI) Clear(ctx context.Context, req *nusav1.ClearOverrideRequest) (*nusav1.ClearOverrideResponse, error) {
	c, err := o.region(ctx, req.GetJob(), req.GetRegion(), "clear")
	if err != nil {
		return nil, err
	}
	out, err := c.Clear(ctx, req)
	return out, ofRegion(req.GetRegion(), err)
}

// region records a change of an override, and returns the service of its region.
func (o *overridesAPI) region(ctx context.Context, ref *nusav1.JobRef, name, how string) (nusav1.OverridesClient, error) {
	term, err := o.s.term()
	if err != nil {
		return nil, err
	}
	k, err := checkRef(ref)
	if err != nil {
		return nil, err
	}
	if name == "" {
		return nil, invalid("region", "must name a region, because each region has its own overrides: `nusa job status JOB` shows where the job runs")
	}
	conn, err := term.dial(name)
	if err != nil {
		return nil, err
	}
	e := audit.Entry{Verb: "override", Kind: rpcerr.KindJob, Namespace: k.Namespace, Name: k.Name, Region: name, Reason: how, Outcome: audit.Started}
	return nusav1.NewOverridesClient(conn), term.record(ctx, e)
}
