package alloc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/filter"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func listCommand(s *cli.Settings) *cobra.Command {
	var jobArg, node string
	var all bool
	var labels map[string]string
	var states *cli.States
	var limit int32
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List allocations: instances on nodes", Args: cli.Positional(),
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			req := &nusav1.ListAllocationsRequest{Region: c.Region, All: all || filter.HasEnded(states.Words()), States: states.Words(), Labels: labels}
			if limit != listDefault {
				req.Limit = limit
			}
			switch {
			case limit < 1 || limit > listMost:
				return fmt.Errorf("--limit: %d is not 1..%d", limit, listMost)
			case jobArg != "":
				ref, err := c.Ref(jobArg)
				if err != nil {
					return err
				}
				req.Job = ref
			case c.Namespace != "":
				req.Job = &nusav1.JobRef{Namespace: c.Namespace}
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			if node != "" {
				n, err := c.Nodes().Get(ctx, &nusav1.GetNodeRequest{Id: node, Region: c.Region})
				if err != nil {
					return err
				}
				req.NodeId = n.GetId()
			}
			resp, err := list(ctx, c, req, states)
			if err != nil {
				return err
			}
			c.WarnPartial(resp.GetErrors())
			if len(resp.GetAllocations()) == 0 {
				if err := checkFilter(ctx, c, req); err != nil {
					return err
				}
			}
			if resp.GetTruncated() {
				c.Warn("there are more: use --limit, or narrow it with --job, --node or --region")
			}
			return c.Print(resp, func(w *term.Screen) {
				if len(resp.GetAllocations()) == 0 {
					fmt.Fprintln(w, noAllocsText(c, jobArg, node, states.Text(), withLabels(labels), all, cli.Incomplete(resp.GetErrors())))
					return
				}
				Write(w, resp.GetAllocations(), true)
			})
		}),
	}
	s.BindRegion(c, "only allocations in this region")
	c.Flags().StringVar(&jobArg, "job", "", "only allocations of this job")
	c.Flags().StringVar(&node, "node", "", "only allocations on this node, by name or id")
	cli.LabelFlag(c, &labels, "allocations of jobs")
	states = cli.StateFlag(c, "allocations", filter.AllocationStates...)
	c.Flags().BoolVarP(&all, "all", "a", false, "also allocations that have ended")
	c.Flags().Int32Var(&limit, "limit", listDefault, "at most this many, 1 to 10000")
	return c
}

const (
	// listMost is the greatest number of allocations in the response of a server, and listDefault the default.
	listMost, listDefault = 10_000, 1000
)

// list returns the allocations that a request selects. It applies the states itself if a server of an earlier version does not
// know them. Such a server cuts the list before, so that it is asked for as many as it returns.
func list(ctx context.Context, c *cli.Session, req *nusav1.ListAllocationsRequest, states *cli.States) (*nusav1.ListAllocationsResponse, error) {
	resp, err := c.Allocs().List(ctx, req)
	if err != nil || resp.GetSelects() || len(req.GetStates())+len(req.GetLabels()) == 0 {
		return resp, err
	}
	if len(req.GetLabels()) > 0 {
		return nil, errors.New("--label: the server has an earlier version, which cannot select allocations by labels: use --job")
	}
	limit := int(cmp.Or(req.GetLimit(), listDefault))
	if resp.GetTruncated() && limit < listMost {
		wide := proto.CloneOf(req)
		wide.Limit = listMost
		if resp, err = c.Allocs().List(ctx, wide); err != nil {
			return nil, err
		}
	}
	if resp.GetTruncated() {
		c.Warn("--state: the server has an earlier version, which selects from the first %d allocations only: narrow it with --job, --node or --region", listMost)
	}
	resp.Allocations = slices.DeleteFunc(resp.GetAllocations(), func(a *nusav1.Allocation) bool {
		return !states.Has(filter.Allocation(a.GetState(), a.GetDesired())...)
	})
	resp.Truncated = len(resp.GetAllocations()) > limit // the warning says what else is missing
	resp.Allocations = resp.GetAllocations()[:min(limit, len(resp.GetAllocations()))]
	return resp, nil
}

func withLabels(labels map[string]string) string {
	if len(labels) == 0 {
		return ""
	}
	return " of jobs with the labels " + term.LabelText(labels)
}

// checkFilter returns an error if the job or the region of a filter does not exist.
func checkFilter(ctx context.Context, c *cli.Session, req *nusav1.ListAllocationsRequest) error {
	if req.GetJob().GetName() != "" {
		if _, err := c.Jobs().Get(ctx, &nusav1.GetJobRequest{Job: req.GetJob()}); err != nil {
			return err
		}
	}
	if req.GetRegion() != "" {
		if _, err := c.Regions().Get(ctx, &nusav1.GetRegionRequest{Name: req.GetRegion()}); err != nil {
			return err
		}
	}
	return nil
}

// noAllocsText returns a text that says that no allocation matched the filters, and what to
// do next.
func noAllocsText(c *cli.Session, jobArg, node, inState, labeled string, all bool, unseen string) string {
	var of []string
	next := c.Program + " job run FILE starts some"
	if inState+labeled != "" {
		next = c.Program + " alloc list --all shows all"
	}
	if c.Namespace != "" && jobArg == "" {
		of, next = append(of, "in namespace "+c.Namespace), fmt.Sprintf("%s job list -n %s shows its jobs", c.Program, c.Namespace)
	}
	if c.Region != "" {
		of, next = append(of, "in region "+c.Region), fmt.Sprintf("%s region status %s shows the region", c.Program, c.Region)
	}
	if node != "" {
		of, next = append(of, "on node "+node), fmt.Sprintf("%s node status %s shows the node", c.Program, node)
	}
	if jobArg != "" {
		of, next = append(of, "of job "+jobArg), fmt.Sprintf("%s job status %s shows the job", c.Program, jobArg)
	}
	what := strings.Join(append([]string{"allocations" + inState + labeled}, of...), " ")
	switch {
	case inState == "" && !all && labeled != "" && len(of) == 0: // the next step is --all already
		what = "live " + what
	case inState == "" && !all:
		what, next = "live "+what, "--all shows those that have ended; "+next
	}
	what = "no " + what
	return what + unseen + "; " + next
}

// Write writes a table of allocations. jobs adds a column with their jobs.
func Write(w *term.Screen, allocs []*nusav1.Allocation, jobs bool) {
	t := term.NewTable("ALLOC", "JOB", "INSTANCE", "REGION", "NODE", "STATE", ">EXIT", ">VERSION", ">AGE", "PORTS", "#MESSAGE")
	for _, a := range allocs {
		name := ""
		if jobs {
			name = cli.JobName(a.GetNamespace(), a.GetJob(), "")
		}
		t.Row(term.ShortID(a.GetId()), name, instance(a), a.GetRegion(), nodeOf(a), stateNow(w, a), exitText(a), fmt.Sprint(a.GetJobVersion()),
			w.Since(a.GetCreated()), ports(a.GetPorts()), reasonText(a))
	}
	t.DropBlank("EXIT")
	t.DropEmpty("JOB", "PORTS", "MESSAGE")
	t.Narrow(w.Width, "AGE", "VERSION", "PORTS", "REGION", "NODE", "JOB")
	t.Write(w)
}

// exitText says how the tasks of an ended allocation ended. It is "0" if all exit codes are
// 0. Otherwise it lists the other exit codes by task, for example "init=3 side=signal 9".
// It is "" if no task has ended.
func exitText(a *nusav1.Allocation) string {
	if a.GetState() < nusav1.AllocState_ALLOC_STATE_COMPLETE {
		return ""
	}
	var parts []string
	ended := false
	for _, name := range slices.Sorted(maps.Keys(a.GetTasks())) {
		t := a.GetTasks()[name]
		if t.GetState() < nusav1.AllocState_ALLOC_STATE_COMPLETE {
			continue
		}
		ended = true
		code := term.Count(t.GetExitCode())
		switch {
		case t.GetSignal() != 0:
			code = "signal " + term.Count(t.GetSignal())
		case t.GetExitCode() < 0:
			code = "-"
		}
		if code == "0" {
			continue
		}
		if len(a.GetTasks()) > 1 {
			code = name + "=" + code
		}
		parts = append(parts, code)
	}
	if ended && len(parts) == 0 {
		return "0"
	}
	return strings.Join(parts, " ")
}

func instance(a *nusav1.Allocation) string { return fmt.Sprintf("%s[%d]", a.GetGroup(), a.GetIndex()) }

func nodeOf(a *nusav1.Allocation) string {
	if a.GetNodeName() != "" {
		return a.GetNodeName()
	}
	return term.ShortID(a.GetNodeId())
}

// stateText returns the state of an allocation, or "stopping" if the allocation was ordered
// to stop and has not ended.
func stateText(a *nusav1.Allocation) string {
	if a.GetDesired() == nusav1.AllocDesired_ALLOC_DESIRED_STOP && a.GetState() < nusav1.AllocState_ALLOC_STATE_COMPLETE {
		return "stopping"
	}
	return term.Word(a.GetState())
}

// stateNow returns the state of an allocation, and for how long its node has been silent.
func stateNow(w *term.Screen, a *nusav1.Allocation) string {
	now := w.State(stateText(a))
	if a.GetNodeSilent() != nil {
		now += ", " + w.Wait("silent "+term.Age(a.GetNodeSilent()))
	}
	return now
}

func ports(p map[string]int32) string {
	var parts []string
	for _, label := range slices.Sorted(maps.Keys(p)) {
		parts = append(parts, fmt.Sprintf("%s=%d", label, p[label]))
	}
	return strings.Join(parts, " ")
}
