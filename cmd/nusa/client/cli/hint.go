package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/suggest"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// hintTimeout bounds the look for what was perhaps meant: the error itself has
	// its answer already.
	hintTimeout = 2 * time.Second
	// hintPages of a list are looked at for that.
	hintPages = 5
)

// hint adds to the error of a job or a node that is not there what was perhaps
// meant, and the command that lists what there is.
func hint(c *Session, err error) error {
	if status.Code(err) != codes.NotFound || c.WantedJob == nil && c.wantedNode == "" {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Ctx, hintTimeout)
	defer cancel()
	message := status.Convert(err).Message()
	switch {
	case c.wantedNode != "" && strings.Contains(message, "node"):
		message, _, _ = strings.Cut(message, ": `nusa node list`")
		return status.Error(codes.NotFound, message+suggestion(c, nearNode(ctx, c), "node list", "the nodes"))
	case c.WantedJob != nil && strings.HasPrefix(message, "job "):
		return status.Error(codes.NotFound, message+suggestion(c, nearJob(ctx, c), "job list", "those that are there"))
	}
	return err
}

// suggestion is the end of an error: a likely name, else how to see all.
func suggestion(c *Session, name, list, what string) string {
	if name != "" {
		return ", did you mean " + name + "?"
	}
	return fmt.Sprintf(": `%s %s` shows %s", c.Program, list, what)
}

// nearJob is a job whose name is like the one sought, as an argument: the same
// name elsewhere, else one that a few letters make of it.
func nearJob(ctx context.Context, c *Session) string {
	best, least := "", suggest.Limit(c.WantedJob.GetName())+1
	token := ""
	for range hintPages {
		page, err := c.Jobs().List(ctx, &nusav1.ListJobsRequest{PageToken: token})
		if err != nil {
			break
		}
		for _, j := range page.GetJobs() {
			name := j.GetSpec().GetName()
			d := suggest.Distance(c.WantedJob.GetName(), name)
			if d < least {
				best, least = RefArg(&nusav1.JobRef{Namespace: j.GetSpec().GetNamespace(), Name: name, Region: j.GetRegion()}), d
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	return best
}

func nearNode(ctx context.Context, c *Session) string {
	resp, err := c.Nodes().List(ctx, &nusav1.ListNodesRequest{Region: c.Region})
	if err != nil {
		return ""
	}
	best, least := "", suggest.Limit(c.wantedNode)+1
	for _, n := range resp.GetNodes() {
		if d := suggest.Distance(c.wantedNode, n.GetName()); d < least {
			best, least = n.GetName(), d
		}
	}
	return best
}

// NodeRef is a node's name or id, remembered for the hint when it is not there.
func NodeRef(c *Session, arg string) string {
	c.wantedNode = arg
	return arg
}
