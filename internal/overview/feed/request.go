package feed

import (
	"fmt"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/internal/overview"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	minInterval     = 250 * time.Millisecond
	defaultInterval = time.Second
	maxInterval     = time.Minute
	// defaultJobs and maxJobs bound the jobs that a stream shows.
	defaultJobs = 200
	maxJobs     = 1000
	// maxText bounds the texts of a filter, and maxLabels its labels.
	maxText   = 253
	maxLabels = 64
)

// request is a checked request.
type request struct {
	interval  time.Duration
	edges     bool
	nodesOf   string
	onlyNodes bool
	filter    overview.Filter
}

func invalid(field, message string) error {
	return rpcerr.Invalid(&nusav1.Problem{Field: field, Message: message})
}

// parse checks a request.
func parse(req *nusav1.WatchOverviewRequest) (*request, error) {
	out := &request{interval: defaultInterval, edges: req.GetEdges(), nodesOf: req.GetNodesOf(), onlyNodes: req.GetOnlyNodes()}
	if req.GetInterval() != nil {
		out.interval = req.GetInterval().AsDuration()
	}
	switch {
	case out.interval < minInterval || out.interval > maxInterval:
		return nil, invalid("interval", fmt.Sprintf("%v: must be %v to %v; leave it out for %v", out.interval, minInterval, maxInterval, defaultInterval))
	case len(out.nodesOf) > maxText:
		return nil, invalid("nodes_of", fmt.Sprintf("has more than %d bytes", maxText))
	case out.onlyNodes && out.nodesOf == "":
		return nil, invalid("only_nodes", "needs nodes_of, the region of the nodes")
	case out.onlyNodes && (out.edges || req.GetJobs() != nil):
		return nil, invalid("only_nodes", "excludes edges and jobs")
	case req.GetJobs() == nil:
		return out, nil
	}
	f := req.GetJobs()
	out.filter = overview.Filter{
		Namespace: f.GetNamespace(), Search: f.GetSearch(), Labels: f.GetLabels(), Region: f.GetRegion(), Limit: int(f.GetLimit()),
	}
	if out.filter.Limit == 0 {
		out.filter.Limit = defaultJobs
	}
	for field, text := range map[string]string{"jobs.namespace": f.GetNamespace(), "jobs.search": f.GetSearch(), "jobs.region": f.GetRegion()} {
		if len(text) > maxText || strings.ContainsRune(text, 0) {
			return nil, invalid(field, fmt.Sprintf("has more than %d bytes, or a zero byte", maxText))
		}
	}
	for _, state := range f.GetStates() {
		if _, known := nusav1.JobState_name[int32(state)]; !known {
			return nil, invalid("jobs.states", fmt.Sprintf("%d is not a state of jobs", state))
		}
		out.filter.States |= 1 << uint(state)
	}
	switch {
	case out.filter.Limit < 1 || out.filter.Limit > maxJobs:
		return nil, invalid("jobs.limit", fmt.Sprintf("%d: must be 1..%d; leave it out for %d", out.filter.Limit, maxJobs, defaultJobs))
	case len(f.GetLabels()) > maxLabels:
		return nil, invalid("jobs.labels", fmt.Sprintf("%d labels, at most %d", len(f.GetLabels()), maxLabels))
	}
	if after := f.GetAfter(); after != nil {
		out.filter.After = overview.Key(after.GetNamespace(), after.GetName(), after.GetRegion())
		if len(out.filter.After) > 3*maxText {
			return nil, invalid("jobs.after", fmt.Sprintf("has more than %d bytes", 3*maxText))
		}
	}
	return out, nil
}
