package api

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/filter"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/rights"
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
	if !isPage(req.GetPageToken()) {
		return nil, rpcerr.NoPage("page_token", req.GetPageToken())
	}
	if err := filter.Check(req.GetStates(), filter.JobStates); err != nil {
		return nil, err
	}
	call := rights.Of(ctx)
	filtered := call.Filtered()
	out := &nusav1.ListJobsResponse{}
	from, own := strings.CutPrefix(req.GetPageToken(), ownToken)
	if !own && !req.GetOwn() {
		out.Jobs, out.NextPageToken = federationJobs(term, req, limit, func(namespace string) bool { return !filtered || call.May(namespace, "") })
		if note := unreadNote(term); note != "" {
			out.Errors = append(out.Errors, &nusav1.PartialError{Message: note})
		}
		from = ""
	}
	if out.NextPageToken == "" {
		addRegionsJobs(ctx, term, req, from, limit, out)
	}
	return out, nil
}

// unreadNote says which jobs a list lacks because the history is still being read.
func unreadNote(term *Term) string {
	term.State.Lock()
	defer term.State.Unlock()
	return state.UnreadNote(term.State)
}

// listedBytes is the approximate bound of a page of a list in bytes. A spec may have a MiB, and a
// client may accept no more than 4 MiB.
const listedBytes = 2 << 20

// ownToken is the prefix of page tokens for the regions' own jobs, which come after the
// federation's jobs. The name of a region follows, then a zero byte and a page token of that
// region.
const ownToken = "@"

// isPage reports whether a token can be one that a list has returned: the name of a job, or that of a region
// with its token, which the region checks.
func isPage(token string) bool {
	if from, own := strings.CutPrefix(token, ownToken); own {
		name, _, _ := strings.Cut(from, "\x00")
		return job.ValidName(name)
	}
	namespace, name, _ := strings.Cut(token, "/")
	return token == "" || job.ValidName(namespace) && job.ValidName(name)
}

// federationJobs returns at most limit of the federation's jobs, and the token of the next page.
// may reports whether the caller may read the jobs of a namespace.
func federationJobs(term *Term, req *nusav1.ListJobsRequest, limit int, may func(namespace string) bool) (out []*nusav1.Job, next string) {
	p := page{req: req, limit: limit, may: may, after: req.GetPageToken()}
	if first := req.GetNamespace() + "/"; req.GetNamespace() != "" && p.after < first {
		p.after = first
	}
	for !p.add(term.State) {
	}
	term.queue.AddTo(term.State, p.jobs...)
	if p.more {
		next = p.last
	}
	return p.jobs, next
}

// page is a page of a list of the federation's jobs while it is being filled.
type page struct {
	req   *nusav1.ListJobsRequest
	limit int
	// may reports whether the caller may read the jobs of a namespace. nil: all.
	may  func(namespace string) bool
	jobs []*nusav1.Job
	size int
	// after is the last name that was checked. last is the name of the last job on the page.
	after, last string
	// more: another job follows after the page.
	more bool
	// made counts the jobs whose states were made, or read from the history.
	made int
}

// add checks some more jobs. It returns true when the page is full or no job is left. Between two
// calls the lock is free for others.
func (p *page) add(st *state.State) (done bool) {
	const looked, listed = 4096, 128 // bounds the jobs that one call checks, and those whose states it makes or reads
	st.Lock()
	defer st.Unlock()
	see, n, until := st.Sight(), 0, p.made+listed
	for name := range st.Names.After(p.after, func(name string) bool { return state.Exists(st, name) }) {
		namespace, short, _ := strings.Cut(name, "/")
		if of := p.req.GetNamespace(); of != "" && namespace != of {
			return true
		}
		full := len(p.jobs) == p.limit || p.size > listedBytes
		if n == looked || p.made == until {
			return false
		}
		n++
		var found *nusav1.Job
		if p.may == nil || p.may(namespace) {
			found = p.listed(st, state.JobKey{Namespace: namespace, Name: short}, see)
		}
		if found == nil {
			p.after = name
			continue
		}
		if full {
			p.more = true
			return true
		}
		p.jobs, p.size, p.after, p.last = append(p.jobs, found), p.size+proto.Size(found), name, name
	}
	return true
}

// listed returns a job in the form of lists, or nil if the request does not select it.
func (p *page) listed(st *state.State, k state.JobKey, see state.Sight) *nusav1.Job {
	if j := st.Jobs[k]; j != nil && j.Record != nil {
		if !filter.Labels(j.Record.Labels(), p.req.GetLabels()) {
			return nil
		}
		p.made++
		out := j.WithoutSpec(see)
		if !filter.Has(p.req.GetStates(), filter.Job(out.GetStatus())...) {
			return nil
		}
		out.Spec = j.Record.Spec()
		if p.req.GetBrief() {
			out.Spec = job.Brief(out.GetSpec())
		}
		return out
	}
	p.made++
	out := state.Line(st, k.String())
	if !filter.Labels(out.GetSpec().GetLabels(), p.req.GetLabels()) || !filter.Has(p.req.GetStates(), filter.Job(out.GetStatus())...) {
		return nil
	}
	return out
}

// addRegionsJobs adds the regions' own jobs (name@region) to a page. It asks all regions with such
// jobs at the same time. It asks for jobs that do not fit again with the next page.
func addRegionsJobs(ctx context.Context, term *Term, req *nusav1.ListJobsRequest, from string, limit int, out *nusav1.ListJobsResponse) {
	first, token, _ := strings.Cut(from, "\x00")
	call := rights.Of(ctx)
	ask := func(ctx context.Context, c regionConn, limit int) (*nusav1.ListJobsResponse, error) {
		page := &nusav1.ListJobsRequest{Namespace: req.GetNamespace(), Labels: req.GetLabels(), States: req.GetStates(), Limit: int32(limit), Own: true, Brief: req.GetBrief()}
		if c.name == first {
			page.PageToken = token
		}
		resp, err := nusav1.NewJobsClient(c.conn).List(ctx, page)
		if err == nil {
			resp.Jobs = slices.DeleteFunc(resp.Jobs, func(found *nusav1.Job) bool {
				other := !filter.Has(req.GetStates(), filter.Job(found.GetStatus())...) // from a region of an earlier version
				return other || found.GetRegion() == "" || call.Filtered() && !call.May(found.GetSpec().GetNamespace(), c.name)
			})
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
