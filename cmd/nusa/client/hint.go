package client

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
	// hintWithin bounds the look for what was perhaps meant: the error itself has
	// its answer already.
	hintWithin = 2 * time.Second
	// hintPages of a list are looked at for that.
	hintPages = 5
)

// hint adds to the error of a job or a node that is not there what was perhaps
// meant, and the command that lists what there is.
func (c *caller) hint(err error) error {
	if status.Code(err) != codes.NotFound || c.sought == nil && c.soughtNode == "" {
		return err
	}
	ctx, cancel := context.WithTimeout(c.ctx, hintWithin)
	defer cancel()
	message := status.Convert(err).Message()
	switch {
	case c.soughtNode != "" && strings.Contains(message, "node"):
		message, _, _ = strings.Cut(message, ": `nusa node list`")
		return status.Error(codes.NotFound, message+c.meant(c.nearNode(ctx), "node list", "the nodes"))
	case c.sought != nil && strings.HasPrefix(message, "job "):
		return status.Error(codes.NotFound, message+c.meant(c.nearJob(ctx), "job list", "those that are there"))
	}
	return err
}

// meant is the end of an error: a likely name, else how to see all.
func (c *caller) meant(name, list, what string) string {
	if name != "" {
		return ", did you mean " + name + "?"
	}
	return fmt.Sprintf(": `%s %s` shows %s", c.nusa, list, what)
}

// nearJob is a job whose name is like the one sought, as an argument: the same
// name elsewhere, else one that a few letters make of it.
func (c *caller) nearJob(ctx context.Context) string {
	best, least := "", suggest.Limit(c.sought.GetName())+1
	token := ""
	for range hintPages {
		page, err := c.jobs().List(ctx, &nusav1.ListJobsRequest{PageToken: token})
		if err != nil {
			break
		}
		for _, j := range page.GetJobs() {
			name := j.GetSpec().GetName()
			d := suggest.Distance(c.sought.GetName(), name)
			if d < least {
				best, least = refArg(&nusav1.JobRef{Namespace: j.GetSpec().GetNamespace(), Name: name, Region: j.GetRegion()}), d
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	return best
}

func (c *caller) nearNode(ctx context.Context) string {
	resp, err := c.nodes().List(ctx, &nusav1.ListNodesRequest{Region: c.region})
	if err != nil {
		return ""
	}
	best, least := "", suggest.Limit(c.soughtNode)+1
	for _, n := range resp.GetNodes() {
		if d := suggest.Distance(c.soughtNode, n.GetName()); d < least {
			best, least = n.GetName(), d
		}
	}
	return best
}

// node is a node's name or id, remembered for the hint when it is not there.
func (c *caller) node(arg string) string {
	c.soughtNode = arg
	return arg
}
