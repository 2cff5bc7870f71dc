package api

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxListLimit is the largest page of a list, in jobs.
const maxListLimit = 1000

// List implements nusav1.JobsServer.
func (j *jobsAPI) List(ctx context.Context, req *nusav1.ListJobsRequest) (*nusav1.ListJobsResponse, error) {
	term, err := j.s.term()
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
		out.Jobs, out.NextPageToken = federationJobs(term, req, limit)
		from = ""
	}
	if out.NextPageToken == "" {
		addRegionsJobs(ctx, term, req, from, limit, out)
	}
	return out, nil
}

// listedBytes is the approximate bound of a page of a list in bytes. A spec may have a MiB, and a
// client may accept no more than 4 MiB.
const listedBytes = 2 << 20

// ownToken is the prefix of page tokens for the regions' own jobs, which come after the
// federation's jobs. The name of a region follows, then a zero byte and a page token of that
// region.
const ownToken = "@"

// federationJobs returns at most limit of the federation's jobs, and the token of the next page.
func federationJobs(term *Term, req *nusav1.ListJobsRequest, limit int) (out []*nusav1.Job, next string) {
	term.State.Lock()
	defer term.State.Unlock()
	var keys []state.JobKey
	for k, found := range term.State.Jobs {
		if found.Record != nil && (req.GetNamespace() == "" || req.GetNamespace() == k.Namespace) &&
			k.String() > req.GetPageToken() && hasLabels(found.Record.Labels(), req.GetLabels()) {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(x, y state.JobKey) int { return strings.Compare(x.String(), y.String()) })
	size, see := 0, term.State.Sight()
	for i, k := range keys {
		if i == limit || size > listedBytes {
			return out, keys[i-1].String()
		}
		out = append(out, term.State.Jobs[k].ToProto(see))
		size += proto.Size(out[i])
	}
	return out, ""
}

// addRegionsJobs adds the regions' own jobs (name@region) to a page. It asks all regions with such
// jobs at the same time. It asks for jobs that do not fit again with the next page.
func addRegionsJobs(ctx context.Context, term *Term, req *nusav1.ListJobsRequest, from string, limit int, out *nusav1.ListJobsResponse) {
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
	conns, errs := term.reach(regionsWithJobs(term, first))
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
			out.Errors = append(out.Errors, missing...)
			if len(again) == 0 {
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

// regionsWithJobs returns the regions with own jobs whose names are equal to first or follow it.
func regionsWithJobs(term *Term, first string) []string {
	term.State.Lock()
	defer term.State.Unlock()
	names := []string{}
	for _, name := range term.State.RegionNames() {
		for key := range term.State.Regions[name].SummaryKeys {
			if name >= first && strings.HasSuffix(key, "@"+name) {
				names = append(names, name)
				break
			}
		}
	}
	return names
}
