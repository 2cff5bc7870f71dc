package job

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func listCommand(s *cli.Settings) *cobra.Command {
	var labels map[string]string
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List jobs of every namespace, or of one", Args: cli.Positional(),
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			all := &nusav1.ListJobsResponse{}
			for token := ""; ; {
				page, err := c.Jobs().List(ctx, &nusav1.ListJobsRequest{Namespace: c.Namespace, Labels: labels, PageToken: token})
				if err != nil {
					return err
				}
				all.Jobs = append(all.Jobs, page.GetJobs()...)
				all.Errors = append(all.Errors, page.GetErrors()...)
				token = page.GetNextPageToken()
				if token == "" {
					break
				}
			}
			c.WarnPartial(all.GetErrors())
			return c.Print(all, func(w *term.Screen) {
				writeJobs(w, all.GetJobs(), noJobsText(c, labels, cli.Incomplete(all.GetErrors())))
			})
		}),
	}
	c.Flags().StringToStringVarP(&labels, "label", "l", nil, "only jobs with this label, KEY=VALUE")
	return c
}

// noJobsText returns a text that says that no job matched the filters, and what to do next.
func noJobsText(c *cli.Session, labels map[string]string, unseen string) string {
	what, other := "no jobs", ""
	if len(labels) > 0 {
		what, other = what+" with the labels "+term.LabelText(labels), fmt.Sprintf("%s job list%s shows all", c.Program, c.NamespaceFlag())
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
	t := term.NewTable("JOB", "TYPE", "STATE", ">RUNNING", "REGIONS", ">VERSION", ">AGE", "#MESSAGE")
	for _, j := range jobs {
		sum, regions := totalsOf(j.GetStatus())
		t.Row(cli.JobName(j.GetSpec().GetNamespace(), j.GetSpec().GetName(), j.GetRegion()), term.Word(j.GetSpec().GetType()),
			w.State(term.Word(j.GetStatus().GetState())), fmt.Sprintf("%d/%d", sum.runningOrComplete(), sum.desired), term.OrDash(regions),
			fmt.Sprint(j.GetVersion()), w.Since(j.GetSubmitted()), term.OneLine(j.GetStatus().GetMessage()))
	}
	t.DropEmpty("MESSAGE")
	t.Narrow(w.Width, "AGE", "VERSION", "TYPE", "REGIONS")
	t.Write(w)
}
