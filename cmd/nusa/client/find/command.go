package find

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/top"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// listMost bounds the jobs and the allocations that a name is looked for in. shownMost bounds the
	// objects that are shown.
	listMost, shownMost = 10_000, 50
)

// Command returns the command.
func Command() *cobra.Command {
	s := &cli.Settings{}
	c := &cobra.Command{
		Use: "status [NAME]", Short: "Show the state of everything, or find a job, region, node or allocation", Args: cli.Positional("[NAME]"),
		Long: `Shows alarms, what will happen unless something changes, and each region with its use,
once (nusa top follows them). With NAME it shows the status of the job, run of a workflow,
region, node or allocation with this name, or lists those whose name or id begins with it.`,
		Example: "  nusa status\n  nusa status hello\n  nusa status 1f3a",
		RunE: s.Run(func(c *cli.Session, args []string) error {
			if len(args) == 0 {
				return top.Once(c)
			}
			return find(c, args[0])
		}),
	}
	s.Bind(c)
	s.BindNamespace(c)
	return c
}

// find shows the one object that a text names, or lists the objects.
func find(c *cli.Session, text string) error {
	all, err := load(c)
	if err != nil {
		return err
	}
	found := match(all, text)
	switch len(found) {
	case 0:
		return fmt.Errorf("no job, run, region, node or allocation begins with %q: see %s job list, workflow list, region list, node list", text, c.Program)
	case 1:
		return show(c, found[0])
	}
	if c.Output != "table" {
		return fmt.Errorf("%q is the beginning of %d names: give more of it, or use the table", text, len(found))
	}
	t := term.NewTable("KIND", "NAME", "STATE")
	w := c.Screen()
	for _, o := range found[:min(len(found), shownMost)] {
		t.Row(o.kind, o.name, w.State(o.state))
	}
	t.Write(w)
	if more := len(found) - shownMost; more > 0 {
		fmt.Fprintf(w, "%d more: give more of the name\n", more)
	}
	return nil
}

// load lists what the server has, at the same time.
func load(c *cli.Session) ([]object, error) {
	ctx, cancel := c.WithTimeout()
	defer cancel()
	var jobs []*nusav1.Job
	runs := &nusav1.ListWorkflowRunsResponse{}
	regions, nodes, allocs := &nusav1.ListRegionsResponse{}, &nusav1.ListNodesResponse{}, &nusav1.ListAllocationsResponse{}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return cli.Pages(func(token string) (string, error) {
			page, err := c.Jobs().List(ctx, &nusav1.ListJobsRequest{Namespace: c.Namespace, PageToken: token, Brief: true})
			jobs = append(jobs, page.GetJobs()...)
			if len(jobs) >= listMost {
				return "", err
			}
			return page.GetNextPageToken(), err
		})
	})
	g.Go(func() (err error) {
		runs, err = nusav1.NewWorkflowsClient(c.Conn).List(ctx, &nusav1.ListWorkflowRunsRequest{Namespace: c.Namespace})
		if status.Code(err) == codes.Unimplemented { // only the global tier has workflows
			return nil
		}
		return err
	})
	g.Go(func() (err error) { regions, err = c.Regions().List(ctx, &nusav1.ListRegionsRequest{}); return err })
	g.Go(func() (err error) { nodes, err = c.Nodes().List(ctx, &nusav1.ListNodesRequest{}); return err })
	g.Go(func() (err error) {
		allocs, err = c.Allocs().List(ctx, &nusav1.ListAllocationsRequest{Limit: listMost})
		return err
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	c.WarnPartial(nodes.GetErrors())
	return objects(runs.GetRuns(), jobs, regions.GetRegions(), nodes.GetNodes(), allocs.GetAllocations()), nil
}

// show runs the command that shows an object, with the flags of this one.
func show(c *cli.Session, o object) error {
	args := []string{o.kind, "status", o.arg}
	c.Cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Name != "namespace" { // the argument has it
			args = append(args, "--"+f.Name+"="+f.Value.String())
		}
	})
	root := c.Cmd.Root()
	root.SetArgs(args)
	return root.ExecuteContext(c.Ctx)
}
