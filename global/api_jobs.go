package global

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxListLimit is the greatest page of a list of jobs.
const maxListLimit = 1000

// jobsAPI is the public Jobs service of the federation.
type jobsAPI struct {
	nusav1.UnimplementedJobsServer
	s *server
}

// checkRef names the job with its defaults filled in.
func checkRef(ref *nusav1.JobRef) (JobKey, error) {
	k := JobKey{ref.GetNamespace(), ref.GetName()}
	if k.Namespace == "" {
		k.Namespace = job.DefaultNamespace
	}
	if k.Name == "" || strings.ContainsAny(k.Namespace+k.Name, "/@") {
		return k, invalid("job.name", "must name a job, as NAME or NAMESPACE/NAME")
	}
	return k, nil
}

// passed answers the Jobs service of the region that a reference names, nil
// for jobs of the federation.
func (j *jobsAPI) passed(a *active, ref *nusav1.JobRef) (nusav1.JobsClient, error) {
	if ref.GetRegion() == "" {
		return nil, nil
	}
	conn, err := a.dial(ref.GetRegion())
	if err != nil {
		return nil, err
	}
	return nusav1.NewJobsClient(conn), nil
}

func noJob(k JobKey) error {
	return rpcerr.NotFound(rpcerr.KindJob, k.String(), fmt.Sprintf("job %s does not exist", k))
}

// Get implements nusav1.JobsServer.
func (j *jobsAPI) Get(ctx context.Context, req *nusav1.GetJobRequest) (*nusav1.Job, error) {
	a, err := j.s.current()
	if err != nil {
		return nil, err
	}
	k, err := checkRef(req.GetJob())
	if err != nil {
		return nil, err
	}
	if client, err := j.passed(a, req.GetJob()); client != nil || err != nil {
		if err != nil {
			return nil, err
		}
		return client.Get(ctx, req)
	}
	a.st.mu.Lock()
	defer a.st.mu.Unlock()
	found := a.st.Jobs[k]
	if found == nil || found.Record == nil {
		return nil, noJob(k)
	}
	return found.View(), nil
}

// List implements nusav1.JobsServer.
func (j *jobsAPI) List(ctx context.Context, req *nusav1.ListJobsRequest) (*nusav1.ListJobsResponse, error) {
	a, err := j.s.current()
	if err != nil {
		return nil, err
	}
	limit := int(req.GetLimit())
	switch {
	case limit == 0:
		limit = maxListLimit
	case limit < 1 || limit > maxListLimit:
		return nil, invalid("limit", fmt.Sprintf("must be 1..%d", maxListLimit))
	}
	out := &nusav1.ListJobsResponse{}
	from, own := strings.CutPrefix(req.GetPageToken(), ownToken)
	if !own && !req.GetOwn() {
		out.Jobs, out.NextPageToken = a.federationJobs(req, limit)
		from = ""
	}
	if out.NextPageToken == "" {
		a.localJobs(ctx, req, from, limit, out)
	}
	return out, nil
}

// listedBytes is about how large a page of a list gets: specs may have a MiB each,
// and a client may take no more than 4.
const listedBytes = 2 << 20

// ownToken begins the page tokens behind the federation's jobs: then come a
// region's name, and from a zero byte on a token of that region.
const ownToken = "@"

// federationJobs are at most limit of the federation's jobs, and the token of
// the next page.
func (a *active) federationJobs(req *nusav1.ListJobsRequest, limit int) (out []*nusav1.Job, next string) {
	a.st.mu.Lock()
	defer a.st.mu.Unlock()
	var keys []JobKey
	for k, found := range a.st.Jobs {
		if found.Record != nil && (req.GetNamespace() == "" || req.GetNamespace() == k.Namespace) &&
			k.String() > req.GetPageToken() && hasLabels(found.Record.GetJob().GetSpec().GetLabels(), req.GetLabels()) {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(x, y JobKey) int { return strings.Compare(x.String(), y.String()) })
	size := 0
	for i, k := range keys {
		if i == limit || size > listedBytes {
			return out, keys[i-1].String()
		}
		out = append(out, a.st.Jobs[k].View())
		size += proto.Size(out[i])
	}
	return out, ""
}

func hasLabels(have, want map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// localJobs adds the jobs that are a region's own (name@region) to a page, of
// those regions that have any: all are asked at once, and what does not fit is
// asked for again with the next page.
func (a *active) localJobs(ctx context.Context, req *nusav1.ListJobsRequest, from string, limit int, out *nusav1.ListJobsResponse) {
	first, token, _ := strings.Cut(from, "\x00")
	ask := func(ctx context.Context, c regionConn, limit int) (*nusav1.ListJobsResponse, error) {
		page := &nusav1.ListJobsRequest{Namespace: req.GetNamespace(), Labels: req.GetLabels(), Limit: int32(limit), Own: true}
		if c.name == first {
			page.PageToken = token
		}
		resp, err := nusav1.NewJobsClient(c.conn).List(ctx, page)
		if err == nil {
			resp.Jobs = slices.DeleteFunc(resp.Jobs, func(found *nusav1.Job) bool { return found.GetRegion() == "" })
		}
		return resp, err
	}
	type answer struct {
		from regionConn
		page *nusav1.ListJobsResponse
	}
	conns, errs := a.reach(a.withOwnJobs(first))
	left := limit - len(out.GetJobs())
	answers, failed := askAll(ctx, conns, func(ctx context.Context, c regionConn) (answer, error) {
		page, err := ask(ctx, c, max(1, left))
		return answer{c, page}, err
	})
	out.Errors = append(errs, failed...)
	for _, got := range answers {
		left := limit - len(out.GetJobs())
		if proto.Size(out) > listedBytes {
			left = 0
		}
		if left == 0 && len(got.page.GetJobs()) > 0 {
			out.NextPageToken = ownToken + got.from.name
			if got.from.name == first {
				out.NextPageToken += "\x00" + token
			}
			return
		}
		page := got.page
		if len(page.GetJobs()) > left {
			again, missing := askAll(ctx, []regionConn{got.from}, func(ctx context.Context, c regionConn) (*nusav1.ListJobsResponse, error) {
				return ask(ctx, c, left)
			})
			if out.Errors = append(out.Errors, missing...); len(again) == 0 {
				continue
			}
			page = again[0]
		}
		out.Jobs = append(out.Jobs, page.GetJobs()...)
		out.Errors = append(out.Errors, page.GetErrors()...)
		if page.GetNextPageToken() != "" {
			out.NextPageToken = ownToken + got.from.name + "\x00" + page.GetNextPageToken()
			return
		}
	}
}

// withOwnJobs are the regions that have jobs of their own, from a name on.
func (a *active) withOwnJobs(first string) []string {
	a.st.mu.Lock()
	defer a.st.mu.Unlock()
	names := []string{}
	for _, name := range a.st.RegionNames() {
		for key := range a.st.Regions[name].SummaryKeys {
			if name >= first && strings.HasSuffix(key, "@"+name) {
				names = append(names, name)
				break
			}
		}
	}
	return names
}

// Stop implements nusav1.JobsServer.
func (j *jobsAPI) Stop(ctx context.Context, req *nusav1.StopJobRequest) (*nusav1.StopJobResponse, error) {
	a, err := j.s.current()
	if err != nil {
		return nil, err
	}
	k, err := checkRef(req.GetJob())
	if err != nil {
		return nil, err
	}
	if client, err := j.passed(a, req.GetJob()); client != nil || err != nil {
		if err != nil {
			return nil, err
		}
		return client.Stop(ctx, req)
	}
	stored, forgotten := int64(0), false
	revision, err := a.commit.Do(ctx, func(t *Tx) error {
		old, rev := t.Job(k)
		if old == nil {
			return noJob(k)
		}
		if err := CheckRevision("job "+k.String(), req.GetCheckRevision(), true, rev); err != nil {
			return err
		}
		if old.GetJob().GetStopped() && (old.GetPurge() || !req.GetPurge()) {
			stored = rev
			return nil
		}
		if err := t.Audit("job.stopped", k.String(), fmt.Sprintf("purge %t", req.GetPurge())); err != nil {
			return err
		}
		if forgotten = req.GetPurge() && len(t.Slots(k, "")) == 0; forgotten {
			return t.DeleteJob(k)
		}
		next := proto.CloneOf(old)
		next.Job.Stopped, next.Job.Run = true, RunOf(old, rev)
		next.Purge = next.Purge || req.GetPurge()
		return t.PutJob(k, next)
	})
	if err != nil {
		return nil, apiError(err)
	}
	if stored != 0 {
		return &nusav1.StopJobResponse{Revision: stored}, nil
	}
	how := "its instances are being stopped"
	switch {
	case forgotten:
		how = "nothing of it runs"
	case req.GetPurge():
		how += ", then it is forgotten"
	}
	a.st.Events.Add("job.stopped", k.String(), "%s", how)
	if forgotten {
		a.st.Events.Add("job.purged", k.String(), "forgotten")
	}
	a.log.Info("job stopped", "job", k.String(), "purge", req.GetPurge())
	return &nusav1.StopJobResponse{Revision: revision}, nil
}

// Adopt implements nusav1.JobsServer.
func (j *jobsAPI) Adopt(context.Context, *nusav1.AdoptRequest) (*nusav1.SubmitResponse, error) {
	return nil, status.Error(codes.Unimplemented, "adopting a region's job is not supported yet; stop it there and submit it here")
}

// Watch implements nusav1.JobsServer.
func (j *jobsAPI) Watch(req *nusav1.GetJobRequest, stream grpc.ServerStreamingServer[nusav1.Job]) error {
	a, err := j.s.current()
	if err != nil {
		return err
	}
	k, err := checkRef(req.GetJob())
	if err != nil {
		return err
	}
	if client, err := j.passed(a, req.GetJob()); client != nil || err != nil {
		if err != nil {
			return err
		}
		up, err := client.Watch(stream.Context(), req)
		if err != nil {
			return err
		}
		return relay(up, stream.Send)
	}
	var sent *nusav1.Job
	stamp := uint64(0)
	return a.follow(stream.Context(), func() (bool, error) {
		a.st.mu.Lock()
		found := a.st.Jobs[k]
		if found == nil || found.Record == nil {
			a.st.mu.Unlock()
			if sent == nil {
				return false, noJob(k)
			}
			return false, nil // purged
		}
		if sent != nil && found.Stamp == stamp {
			a.st.mu.Unlock()
			return true, nil
		}
		now := found.View()
		stamp = found.Stamp
		a.st.mu.Unlock()
		if proto.Equal(now, sent) {
			return true, nil
		}
		sent = now
		return true, stream.Send(now)
	})
}

// relay copies a stream from a region to the caller.
func relay[T any](up grpc.ServerStreamingClient[T], send func(*T) error) error {
	for {
		m, err := up.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := send(m); err != nil {
			return err
		}
	}
}

// sortedKeys are a map's keys in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
