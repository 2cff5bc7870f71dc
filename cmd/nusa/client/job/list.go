package job

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/filter"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func listCommand(s *cli.Settings) *cobra.Command {
	var labels map[string]string
	var states *cli.States
	var limit int
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List jobs of every namespace, or of one", Args: cli.Positional(),
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			if limit < 0 {
				return fmt.Errorf("--limit: %d is negative; 0 is all", limit)
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			all, err := list(ctx, c, &nusav1.ListJobsRequest{Namespace: c.Namespace, Labels: labels, States: states.Words(), Brief: c.Output == "table" || c.Output == "name"}, states, limit)
			if err != nil {
				return err
			}
			c.WarnPartial(all.GetErrors())
			if all.GetNextPageToken() != "" {
				c.Warn("there are more: use a greater --limit, or narrow it with --state, --label or --namespace")
			}
			return c.Print(all, func(w *term.Screen) {
				writeJobs(w, all.GetJobs(), noJobsText(c, labels, states, cli.Incomplete(all.GetErrors())))
				writeView(w, c.RegionOf(ctx))
			})
		}),
	}
	cli.LabelFlag(c, &labels, "jobs")
	states = cli.StateFlag(c, "jobs", filter.JobStates...)
	c.Flags().IntVar(&limit, "limit", 0, "at most this many; 0 = all")
	return c
}

// pageMost is the greatest number of jobs that a server returns at once.
const pageMost = 1000

// list returns the jobs that a request selects, at most this many. 0: all. The result has a token if there may be more.
func list(ctx context.Context, c *cli.Session, req *nusav1.ListJobsRequest, states *cli.States, most int) (*nusav1.ListJobsResponse, error) {
	out := &nusav1.ListJobsResponse{}
	err := cli.Pages(func(token string) (string, error) {
		req.PageToken = token
		if most > 0 {
			req.Limit = int32(min(pageMost, most-len(out.GetJobs())))
		}
		page, err := c.Jobs().List(ctx, req)
		out.Errors = append(out.Errors, page.GetErrors()...)
		for _, j := range page.GetJobs() {
			if states.Has(filter.Job(j.GetStatus())...) { // a server of an earlier version does not select
				out.Jobs = append(out.Jobs, j)
			}
		}
		out.NextPageToken = page.GetNextPageToken()
		if most > 0 && len(out.GetJobs()) >= most {
			return "", err
		}
		return page.GetNextPageToken(), err
	})
	return out, err
}

// noJobsText returns a text that says that no job matched the filters, and what to do next.
func noJobsText(c *cli.Session, labels map[string]string, states *cli.States, unseen string) string {
	what, other := "no jobs"+states.Text(), ""
	if len(labels) > 0 {
		what += " with the labels " + term.LabelText(labels)
	}
	if what != "no jobs" {
		other = fmt.Sprintf("%s job list%s shows all", c.Program, c.NamespaceFlag())
	}
	if c.Namespace != "" {
		what += " in namespace " + c.Namespace
		if other == "" {
			other = fmt.Sprintf("without --namespace and NUSA_NAMESPACE, %s job list shows all", c.Program)
		}
	}
	if other == "" {
		other = fmt.Sprintf("submit one with: %s job run FILE", c.Program)
	}
	return what + unseen + "; " + other
}

func writeJobs(w *term.Screen, jobs []*nusav1.Job, none string) {
	if len(jobs) == 0 {
		fmt.Fprintln(w, none)
		return
	}
	t := term.NewTable("JOB", "TYPE", "STATE", ">RUNNING", ">COMPLETE", "REGIONS", ">VERSION", ">AGE", "QUEUE", "#MESSAGE")
	for _, j := range jobs {
		sum, regions := totalsOf(j.GetStatus())
		t.Row(cli.JobName(j.GetSpec().GetNamespace(), j.GetSpec().GetName(), j.GetRegion()), term.Word(j.GetSpec().GetType()),
			w.State(stateText(j.GetStatus())), runningText(j, sum), completeText(j, sum), term.OrDash(regions),
			fmt.Sprint(j.GetVersion()), w.Since(j.GetSubmitted()), queueText(j.GetStatus()), term.OneLine(j.GetStatus().GetMessage()))
	}
	t.DropEmpty("COMPLETE", "QUEUE", "MESSAGE")
	t.Narrow(w.Width, "AGE", "VERSION", "TYPE", "REGIONS")
	t.Write(w)
}

// queueText returns the first place of the groups of a job in a queue, for example "3 of 7". It is empty if
// none waits.
func queueText(s *nusav1.JobStatus) string {
	var first *nusav1.QueuePlace
	for _, g := range s.GetGroups() {
		q := cmp.Or(g.GetQueue(), g.GetGlobalQueue())
		if q != nil && (first == nil || q.GetPosition() < first.GetPosition()) {
			first = q
		}
	}
	if first == nil {
		return ""
	}
	return fmt.Sprintf("%d of %d", first.GetPosition(), first.GetGroups())
}

// runningText says how many instances of a job run. It is "-" if the job is complete, or has none itself.
func runningText(j *nusav1.Job, sum groupTotals) string {
	none := sum.desired == 0 && (j.GetSpec().GetType() == nusav1.JobType_JOB_TYPE_BATCH || job.IsTemplate(j.GetSpec()))
	if none || j.GetStatus().GetState() == nusav1.JobState_JOB_STATE_COMPLETE {
		return "-"
	}
	return fmt.Sprintf("%d/%d", sum.Running, sum.desired)
}

// completeText says how many instances of a batch job are complete. It is "-" for another
// job, and for a job that has no instances itself.
func completeText(j *nusav1.Job, sum groupTotals) string {
	if j.GetSpec().GetType() != nusav1.JobType_JOB_TYPE_BATCH || sum.desired == 0 {
		return "-"
	}
	return fmt.Sprintf("%d/%d", sum.Complete, sum.desired)
}

// writeView says that the server that answered belongs to a region, and knows only a part
// of the federation's jobs.
func writeView(w *term.Screen, region string) {
	if region != "" {
		fmt.Fprintln(w)
		w.Note("", fmt.Sprintf("seen by region %s: its own jobs, and its part of the federation's jobs", region))
	}
}
