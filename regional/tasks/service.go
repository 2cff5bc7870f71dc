package tasks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/taskpage"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/rights"
)

const (
	// minPrefix is the least length of a prefix that may stand for an id.
	minPrefix    = 4
	maxPrefix    = 64
	defaultLimit = 100
	maxLimit     = 1000
	maxLabels    = 8
	// maxAttempts bounds the other attempts of an instance in a response.
	maxAttempts = 20
)

// Service is the Tasks service of a region.
type Service struct {
	nusav1.UnimplementedTasksServer
	Recorder *Recorder
}

// List implements nusav1.TasksServer.
func (s *Service) List(ctx context.Context, req *nusav1.ListTasksRequest) (*nusav1.ListTasksResponse, error) {
	call := rights.Of(ctx)
	filtered := call.Filtered()
	region, store := s.Recorder.Region, s.Recorder.Store
	if r := cmp.Or(req.GetRegion(), req.GetJob().GetRegion()); r != "" && r != region {
		return &nusav1.ListTasksResponse{}, nil
	}
	limit, below, err := check(req)
	if err != nil {
		return nil, err
	}
	s.Recorder.Sync(ctx)
	q := newQuery(req, region, func(namespace string) bool { return !filtered || call.May(namespace, "") })
	page, err := store.list(q, below, limit, maxSteps)
	if err != nil {
		return nil, s.status(err)
	}
	out := &nusav1.ListTasksResponse{Tasks: page.Items}
	gaps := store.position().GetGaps()
	for _, rec := range out.Tasks {
		rec.Incomplete = len(overlapping(gaps, rec)) > 0
		brief(rec)
	}
	if page.Next != nil {
		out.NextPageToken = page.Next.Token()
	}
	if below == nil {
		keeps, err := store.Retention(region)
		if err != nil {
			return nil, s.status(err)
		}
		out.Retention = []*nusav1.TaskRetention{keeps}
	}
	return out, nil
}

// check returns the limit of a request and the key below which it reads.
func check(req *nusav1.ListTasksRequest) (limit int, below *taskpage.Key, err error) {
	limit = cmp.Or(int(req.GetLimit()), defaultLimit)
	if limit < 1 || limit > maxLimit {
		return 0, nil, rpcerr.Invalid(&nusav1.Problem{Field: "limit", Message: fmt.Sprintf("must be 1..%d", maxLimit)})
	}
	if n := len(req.GetLabels()); n > maxLabels {
		return 0, nil, rpcerr.Invalid(&nusav1.Problem{Field: "labels", Message: fmt.Sprintf("has %d labels, at most %d are allowed", n, maxLabels)})
	}
	if req.GetPageToken() != "" {
		k, err := taskpage.ParseToken(req.GetPageToken())
		if err != nil {
			return 0, nil, rpcerr.Invalid(&nusav1.Problem{Field: "page_token", Message: err.Error()})
		}
		below = &k
	}
	return limit, below, nil
}

// brief removes what a list does not show.
func brief(rec *nusav1.TaskRecord) { rec.Changes, rec.ChangesDropped, rec.Tasks = nil, 0, nil }

// overlapping returns the gaps that may hide changes of a record.
func overlapping(gaps []*nusav1.TaskGap, rec *nusav1.TaskRecord) []*nusav1.TaskGap {
	return slices.DeleteFunc(slices.Clone(gaps), func(g *nusav1.TaskGap) bool {
		return before(g.GetTo(), rec.GetPlaced()) || rec.GetEnded() != nil && g.GetFrom() != nil && before(rec.GetEnded(), g.GetFrom())
	})
}

func before(a, b *timestamppb.Timestamp) bool { return a.AsTime().Before(b.AsTime()) }

// Get implements nusav1.TasksServer.
func (s *Service) Get(ctx context.Context, req *nusav1.GetTaskRequest) (*nusav1.TaskHistory, error) {
	prefix := req.GetId()
	if len(prefix) < minPrefix || len(prefix) > maxPrefix {
		return nil, status.Errorf(codes.InvalidArgument, "task %q: give %d to %d characters of its id", prefix, minPrefix, maxPrefix)
	}
	s.Recorder.Sync(ctx)
	call := rights.Of(ctx)
	found, err := s.Recorder.Store.find(prefix)
	var several errAmbiguous
	switch {
	case errors.As(err, &several) && call.Confined():
		return nil, status.Errorf(codes.InvalidArgument, "task %q: give the whole id: several ids may begin with this", prefix) // err names the ids
	case errors.As(err, &several):
		return nil, status.Errorf(codes.InvalidArgument, "task %q: %s", prefix, several)
	case err != nil:
		return nil, s.status(err)
	case found == nil && call.Confined():
		return nil, rpcerr.NotFound(rpcerr.KindAlloc, prefix, call.Missing(prefix))
	case found == nil:
		return nil, rpcerr.NotFound(rpcerr.KindAlloc, prefix, fmt.Sprintf("the history has no task whose id begins with %q: `nusa task list --limit 0` shows all that are kept", prefix))
	}
	rec := found.Task
	if err := call.Find(rec.GetNamespace(), "", rec.GetId(), func() error { return rpcerr.NotFound(rpcerr.KindAlloc, prefix, call.Missing(prefix)) }); err != nil {
		return nil, err
	}
	if a, ok := s.Recorder.Log.View().Alloc(rec.GetId()); ok && rec.GetEnded() == nil {
		source{}.complete(rec, a)
	}
	out := &nusav1.TaskHistory{Task: rec, Gaps: overlapping(s.Recorder.Store.position().GetGaps(), rec)}
	rec.Incomplete = len(out.Gaps) > 0
	out.Attempts, err = s.attempts(rec)
	if err != nil {
		return nil, s.status(err)
	}
	return out, nil
}

// attempts returns the other attempts of an instance.
func (s *Service) attempts(rec *nusav1.TaskRecord) ([]*nusav1.TaskRecord, error) {
	index := rec.GetIndex()
	req := &nusav1.ListTasksRequest{Job: &nusav1.JobRef{Namespace: rec.GetNamespace(), Name: rec.GetJob()}, Group: rec.GetGroup(), Index: &index}
	page, err := s.Recorder.Store.list(newQuery(req, s.Recorder.Region, func(string) bool { return true }), nil, maxAttempts+1, maxSteps)
	others := slices.DeleteFunc(page.Items, func(x *nusav1.TaskRecord) bool { return x.GetId() == rec.GetId() })
	others = others[:min(len(others), maxAttempts)]
	for _, x := range others {
		brief(x)
	}
	return others, err
}

// status returns the gRPC status of an error of the store.
func (s *Service) status(err error) error {
	return status.Errorf(codes.Unavailable, "region %s: the history of tasks cannot be read: %v", s.Recorder.Region, err)
}

// Copy implements nusav1.TasksServer.
func (s *Service) Copy(ctx context.Context, req *nusav1.CopyTasksRequest) (*nusav1.CopyTasksResponse, error) {
	if call := rights.Of(ctx); call != nil {
		call.Filtered() // only the region's own servers may call it, and they have the log
	}
	s.Recorder.Sync(ctx)
	began := time.Now()
	out, err := copyPart(s.Recorder.Store, req, func() bool { return time.Since(began) > copyFor })
	if err != nil {
		return nil, s.status(err)
	}
	return out, nil
}
