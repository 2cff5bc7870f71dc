package tasks

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/taskpage"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// Bounds of requests and responses.
const (
	defaultLimit = 100
	maxLimit     = 1000
	minPrefix    = 4
	maxPrefix    = 64
	maxAttempts  = 20
)

// Service is the Tasks service of a global server.
type Service struct {
	nusav1.UnimplementedTasksServer
	// Current returns the present term, or nil if this server is not active.
	Current func() *api.Term
}

func (s *Service) term() (*api.Term, error) {
	if t := s.Current(); t != nil {
		return t, nil
	}
	return nil, state.RPCErrors.Err(state.ErrNotActive)
}

func wrong(field, message string) error {
	return rpcerr.Invalid(&nusav1.Problem{Field: field, Message: message})
}

// List implements nusav1.TasksServer.
func (s *Service) List(ctx context.Context, req *nusav1.ListTasksRequest) (*nusav1.ListTasksResponse, error) {
	term, err := s.term()
	if err != nil {
		return nil, err
	}
	limit := cmp.Or(int(req.GetLimit()), defaultLimit)
	if limit < 1 || limit > maxLimit {
		return nil, wrong("limit", fmt.Sprintf("must be 1..%d", maxLimit))
	}
	if req.GetPageToken() != "" {
		if _, err := taskpage.ParseToken(req.GetPageToken()); err != nil {
			return nil, wrong("page_token", err.Error())
		}
	}
	var names []string // all
	if name := cmp.Or(req.GetRegion(), req.GetJob().GetRegion()); name != "" {
		if err := api.KnownRegion(term, name); err != nil {
			return nil, err
		}
		names = []string{name}
	}
	lists, errs := api.AskRegions(ctx, term, names, func(ctx context.Context, _ string, conn *grpc.ClientConn) (*nusav1.ListTasksResponse, error) {
		return nusav1.NewTasksClient(conn).List(ctx, req)
	})
	return merge(ctx, lists, errs, limit)
}

// merge makes one page of the pages of regions.
func merge(ctx context.Context, lists []*nusav1.ListTasksResponse, errs []*nusav1.PartialError, limit int) (*nusav1.ListTasksResponse, error) {
	out := &nusav1.ListTasksResponse{Errors: errs}
	var pages []taskpage.Page[*nusav1.TaskRecord]
	for _, l := range lists {
		p := taskpage.Page[*nusav1.TaskRecord]{Items: l.GetTasks()}
		if l.GetNextPageToken() != "" {
			k, err := taskpage.ParseToken(l.GetNextPageToken())
			if err != nil {
				return nil, status.Errorf(codes.Internal, "a region returned a page token that cannot be read: %v", err)
			}
			p.Next = &k
		}
		pages = append(pages, p)
		out.Retention = append(out.Retention, l.GetRetention()...)
	}
	page := taskpage.Merge(pages, keyOf, limit)
	out.Tasks = page.Items
	if page.Next != nil {
		out.NextPageToken = page.Next.Token()
	}
	if call := rights.Of(ctx); call.Filtered() {
		out.Tasks = slices.DeleteFunc(out.Tasks, func(x *nusav1.TaskRecord) bool { return !call.May(x.GetNamespace(), x.GetRegion()) })
	}
	return out, nil
}

func keyOf(rec *nusav1.TaskRecord) taskpage.Key {
	id, _ := taskpage.ParseID(rec.GetId())
	return taskpage.Key{Placed: rec.GetPlaced().AsTime().UnixNano(), ID: id}
}

// found is what a region has for a prefix of an id.
type found struct {
	region    string
	history   *nusav1.TaskHistory
	ambiguous error
}

// Get implements nusav1.TasksServer.
func (s *Service) Get(ctx context.Context, req *nusav1.GetTaskRequest) (*nusav1.TaskHistory, error) {
	term, err := s.term()
	if err != nil {
		return nil, err
	}
	prefix := req.GetId()
	if len(prefix) < minPrefix || len(prefix) > maxPrefix {
		return nil, wrong("id", fmt.Sprintf("must be %d..%d characters of a task's id", minPrefix, maxPrefix))
	}
	all, errs := api.AskRegions(ctx, term, nil, func(ctx context.Context, region string, conn *grpc.ClientConn) (found, error) {
		h, err := nusav1.NewTasksClient(conn).Get(ctx, req)
		switch status.Code(err) {
		case codes.NotFound:
			return found{}, nil
		case codes.InvalidArgument: // several records of the region match
			return found{region: region, ambiguous: err}, nil
		}
		return found{region: region, history: h}, err
	})
	all = slices.DeleteFunc(all, func(f found) bool { return f.region == "" })
	call := rights.Of(ctx)
	missing := func() error {
		if call.Confined() {
			return rpcerr.NotFound(rpcerr.KindAlloc, prefix, call.Missing(prefix))
		}
		return rpcerr.NotFound(rpcerr.KindAlloc, prefix, fmt.Sprintf("no history has a task whose id begins with %q: `nusa task list --limit 0` shows all that are kept", prefix))
	}
	switch {
	case len(all) > 1 && call.Confined(), len(all) == 1 && all[0].ambiguous != nil && call.Confined():
		return nil, wrong("id", "give the whole id: several ids may begin with "+prefix)
	case len(all) > 0 && all[0].ambiguous != nil:
		return nil, all[0].ambiguous
	case len(all) > 1:
		return nil, wrong("id", fmt.Sprintf("%q matches tasks in %s and %s: give more characters of the id", prefix, all[0].region, all[1].region))
	case len(all) == 1:
		h := all[0].history
		if err := call.Find(h.GetTask().GetNamespace(), all[0].region, h.GetTask().GetId(), missing); err != nil {
			return nil, err
		}
		s.addAttempts(ctx, term, h, errs)
		return h, nil
	case len(errs) > 0:
		return nil, status.Errorf(codes.Unavailable, "no task has an id that begins with %q in the regions that responded; %s: %s", prefix, errs[0].GetRegion(), errs[0].GetMessage())
	}
	return nil, missing()
}

// addAttempts adds the attempts that other regions have of the same instance. The job may have moved.
func (s *Service) addAttempts(ctx context.Context, term *api.Term, h *nusav1.TaskHistory, errs []*nusav1.PartialError) {
	rec := h.GetTask()
	if rec.GetOwn() {
		return
	}
	index := rec.GetIndex()
	req := &nusav1.ListTasksRequest{
		Job: &nusav1.JobRef{Namespace: rec.GetNamespace(), Name: rec.GetJob()}, Group: rec.GetGroup(), Index: &index, Limit: maxAttempts,
	}
	lists, failed := api.AskRegions(ctx, term, nil, func(ctx context.Context, region string, conn *grpc.ClientConn) (*nusav1.ListTasksResponse, error) {
		if region == rec.GetRegion() {
			return nil, nil
		}
		return nusav1.NewTasksClient(conn).List(ctx, req)
	})
	for _, l := range lists {
		h.Attempts = append(h.Attempts, l.GetTasks()...)
	}
	slices.SortFunc(h.Attempts, func(a, b *nusav1.TaskRecord) int { return keyOf(b).Compare(keyOf(a)) })
	h.Attempts = h.Attempts[:min(len(h.Attempts), maxAttempts)]
	h.Errors = errs
	for _, e := range failed {
		if !slices.ContainsFunc(errs, func(x *nusav1.PartialError) bool { return x.GetRegion() == e.GetRegion() }) {
			h.Errors = append(h.Errors, e)
		}
	}
}
