package schedules

import (
	"cmp"
	"context"
	"slices"
	"strings"

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
	b, err := s.book(ctx)
	if err != nil {
		return nil, err
	}
	call := rights.Of(ctx)
	filtered := call.Filtered()
	found := listed(b, req, func(namespace string) bool { return !filtered || call.May(namespace, "") })
	out, limit := &nusav1.ListSchedulesResponse{}, int(cmp.Or(req.GetLimit(), defaultPage))
	for _, e := range found[:min(len(found), limit)] {
		out.Schedules = append(out.Schedules, b.status(e, nextListed, runsListed))
	}
	if len(found) > limit {
		out.NextPageToken = found[limit-1].key.String()
	}
	return out, nil
}

// listed returns the entries of schedules that a request selects, in order.
func listed(b *Book, req *nusav1.ListSchedulesRequest, may func(namespace string) bool) []*entry {
	b.st.Lock()
	defer b.st.Unlock()
	var out []*entry
	for k, e := range b.byJob {
		if req.GetNamespace() != "" && k.Namespace != req.GetNamespace() || k.String() <= req.GetPageToken() || !may(k.Namespace) {
			continue
		}
		j := b.st.Jobs[k]
		if j == nil || j.Record == nil || j.Record.Stopped() {
			continue
		}
		b.refresh(e)
		if e.spec.GetSchedule() == nil || req.GetPaused() && !stateOf(e, j.Record.Run(j.Revision)).Paused {
			continue
		}
		out = append(out, e)
	}
	slices.SortFunc(out, func(x, y *entry) int { return strings.Compare(x.key.String(), y.key.String()) })
	return out
}
