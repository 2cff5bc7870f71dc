package schedules

import (
	"cmp"
	"context"

	"github.com/nusa-scheduler/nusa/internal/filter"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// Bounds of a list. Each entry has a next time and the latest runs.
const (
	maxPage     = 1000
	defaultPage = 200
	nextListed  = 1
	runsListed  = 5
)

// List implements nusav1.SchedulesServer.
func (s *Service) List(ctx context.Context, req *nusav1.ListSchedulesRequest) (*nusav1.ListSchedulesResponse, error) {
	if n := req.GetLimit(); n < 0 || n > maxPage {
		return nil, invalid("limit", "must be 0..%d", maxPage)
	}
	if err := filter.Check(req.GetStates(), filter.ScheduleStates); err != nil {
		return nil, err
	}
	b, err := s.book(ctx)
	if err != nil {
		return nil, err
	}
	call := rights.Of(ctx)
	filtered := call.Filtered()
	found, next := listed(b, req, func(namespace string) bool { return !filtered || call.May(namespace, "") })
	out := &nusav1.ListSchedulesResponse{NextPageToken: next}
	for _, e := range found {
		out.Schedules = append(out.Schedules, b.status(e, nextListed, runsListed))
	}
	return out, nil
}

// listed returns a page of the entries of schedules that a request selects, in order, and the token of the next page.
func listed(b *Book, req *nusav1.ListSchedulesRequest, may func(namespace string) bool) ([]*entry, string) {
	b.st.Lock()
	defer b.st.Unlock()
	first := filter.NewFirst[*entry](int(cmp.Or(req.GetLimit(), defaultPage))+1, req.GetPageToken())
	for k, e := range b.byJob {
		key := k.String()
		if req.GetNamespace() != "" && k.Namespace != req.GetNamespace() || !first.Wants(key) || !may(k.Namespace) {
			continue
		}
		j := b.st.Jobs[k]
		if j == nil || j.Record == nil || j.Record.Stopped() {
			continue
		}
		b.refresh(e)
		if e.spec.GetSchedule() != nil && selected(req, e, j.Record.Run(j.Revision)) {
			first.Add(key, e)
		}
	}
	return first.Page()
}

// selected reports whether a request selects the schedule of a job. The lock is held.
func selected(req *nusav1.ListSchedulesRequest, e *entry, run int64) bool {
	if !filter.Labels(e.spec.GetLabels(), req.GetLabels()) {
		return false
	}
	if len(req.GetStates()) == 0 && !req.GetPaused() {
		return true
	}
	s := stateOf(e, run)
	return (s.Paused || !req.GetPaused()) &&
		filter.Has(req.GetStates(), filter.Schedule(s.Paused, len(e.active), len(s.Waiting)+s.BackfillLeft, s.Failures)...)
}
