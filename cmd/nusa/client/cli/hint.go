package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/suggest"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// hintTimeout bounds the search for a similar name. The error is already known, so the
	// user should not wait long.
	hintTimeout = 2 * time.Second
	// hintPages bounds how many pages of a list are searched for a similar name.
	hintPages = 5
)

// hint adds a suggestion to the error of a job or node that does not exist: a similar name,
// or the command that lists all names. A call that only global servers know gets the advice to call one.
func hint(c *Session, err error) error {
	if rpcerr.UnknownCall(err) {
		ctx, cancel := context.WithTimeout(c.Ctx, hintTimeout)
		defer cancel()
		if region := c.RegionOf(ctx); region != "" {
			return fmt.Errorf("%s is a server of region %s, which does not know this call (%s): name a global server with --addr or NUSA_ADDR", c.Addr, region, rpcerr.From(err).Message)
		}
		return err
	}
	kind, name, ok := rpcerr.Missing(err)
	if !ok {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Ctx, hintTimeout)
	defer cancel()
	text := ""
	switch {
	case kind == rpcerr.KindNode:
		text = fmt.Sprintf("node %q does not exist", name) + suggestion(c, nearNode(ctx, c, name), "node list", "the nodes")
	case kind == rpcerr.KindJob && c.WantedJob != nil:
		text = "job " + RefName(c.WantedJob) + " does not exist" + suggestion(c, nearJob(ctx, c, c.WantedJob.GetName()), "job list", "those that exist")
	default:
		return err
	}
	return rpcerr.NotFound(kind, name, text)
}

// suggestion returns the end of an error: a similar name, or the command that lists all
// names if there is no similar name.
func suggestion(c *Session, name, list, what string) string {
	if name != "" {
		return ", did you mean " + name + "?"
	}
	return fmt.Sprintf(": `%s %s` shows %s", c.Program, list, what)
}

// nearJob returns a similar job, in the form of an argument. A job with the same name in
// another namespace or region is the best one, then a job whose name differs in a few
// letters.
func nearJob(ctx context.Context, c *Session, wanted string) string {
	best, least := "", suggest.Limit(wanted)+1
	token := ""
	for range hintPages {
		page, err := c.Jobs().List(ctx, &nusav1.ListJobsRequest{PageToken: token, Brief: true})
		if err != nil {
			break
		}
		for _, j := range page.GetJobs() {
			name := j.GetSpec().GetName()
			d := suggest.Distance(wanted, name)
			if d < least {
				best, least = RefArg(&nusav1.JobRef{Namespace: j.GetSpec().GetNamespace(), Name: name, Region: j.GetRegion()}), d
			}
		}
		token = page.GetNextPageToken()
		if token == "" {
			break
		}
	}
	return best
}

// nearNode returns the name of the node that differs least from the wanted name, by a few
// letters at most.
func nearNode(ctx context.Context, c *Session, wanted string) string {
	resp, err := c.Nodes().List(ctx, &nusav1.ListNodesRequest{Region: c.Region})
	if err != nil {
		return ""
	}
	best, least := "", suggest.Limit(wanted)+1
	for _, n := range resp.GetNodes() {
		if n.GetName() == wanted { // the request named another region
			return wanted + " of region " + n.GetRegion()
		}
		if d := suggest.Distance(wanted, n.GetName()); d < least {
			best, least = n.GetName(), d
		}
	}
	return best
}
