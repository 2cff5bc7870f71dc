package override

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/filter"
	"github.com/nusa-scheduler/nusa/internal/jobstatus"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Command returns the command `nusa job override`.
func Command(s *cli.Settings) *cobra.Command {
	return cli.Noun("override", "See and clear what single regions stop or scale of jobs", listCommand(s), clearCommand(s))
}

func client(c *cli.Session) nusav1.OverridesClient { return nusav1.NewOverridesClient(c.Conn) }

func listCommand(s *cli.Settings) *cobra.Command {
	var labels map[string]string
	var states *cli.States
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the overrides of regions", Args: cli.Positional(),
		Long: `Lists what single regions do not run of the federation's jobs, because an operator stopped
or scaled a job there. A region keeps an override until it is cleared, or until the job is
run again.`,
		Example: "  nusa job override list\n  nusa job override list --region jakarta",
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := client(c).List(ctx, &nusav1.ListOverridesRequest{Namespace: c.Namespace, Region: c.Region, States: states.Words(), Labels: labels})
			if err != nil {
				return err
			}
			c.WarnPartial(resp.GetErrors())
			if err := cli.CheckLabels(labels, len(resp.GetOverrides()), func(labels map[string]string) (int, error) {
				again, err := client(c).List(ctx, &nusav1.ListOverridesRequest{Namespace: c.Namespace, Region: c.Region, Labels: labels})
				return len(again.GetOverrides()), err
			}); err != nil {
				return err
			}
			resp.Overrides = slices.DeleteFunc(resp.Overrides, func(x *nusav1.Override) bool { return !states.Has(filter.Override(x)...) }) // a server of an earlier version does not select
			return c.Print(resp, func(w *term.Screen) {
				if none := cli.NoneSuch(c.Program, "overrides", "job override list", states, labels); len(resp.GetOverrides()) == 0 && none != "" {
					fmt.Fprintln(w, none)
					return
				}
				writeList(w, resp.GetOverrides(), cli.Incomplete(resp.GetErrors()))
			})
		}),
	}
	s.BindRegion(c, "only overrides of this region")
	cli.LabelFlag(c, &labels, "overrides of jobs")
	states = cli.StateFlag(c, "overrides", filter.OverrideStates...)
	return c
}

func writeList(w *term.Screen, all []*nusav1.Override, unseen string) {
	if len(all) == 0 {
		fmt.Fprintf(w, "no overrides%s; %s job stop JOB --override --region REGION sets one\n", unseen, w.Program)
		return
	}
	t := term.NewTable("JOB", "REGION", ">HELD", "SET", "BY", "#OVERRIDE")
	for _, o := range all {
		t.Row(cli.JobName(o.GetNamespace(), o.GetJob(), ""), o.GetRegion(), term.Count(o.GetHeld()), w.Since(o.GetSet())+" ago", o.GetBy(), term.OneLine(jobstatus.OverrideText(o)))
	}
	t.DropEmpty("BY")
	t.Write(w)
}

func clearCommand(s *cli.Settings) *cobra.Command {
	c := &cobra.Command{
		Use: "clear JOB", Short: "Let a region run all of its part of a job again", Args: cli.Positional("JOB"),
		Long: `Removes the override of a job in a region. The region starts what the override kept
stopped. What has no room any more goes back to the federation, like after a loss of nodes.
A server of the region also takes the call while the global tier is away.`,
		Example: "  nusa job override clear web --region jakarta",
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ref, err := c.Ref(args[0])
			if err != nil {
				return err
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := client(c).Clear(ctx, &nusav1.ClearOverrideRequest{Job: ref, Region: c.Region})
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) {
				if !resp.GetCleared() {
					w.Note("", fmt.Sprintf("%s has no override %s: %s job override list shows all", cli.RefName(ref), where(c.Region), w.Program))
					return
				}
				w.Note("", fmt.Sprintf("the override of %s %s is cleared: the region runs all of its part again", cli.RefName(ref), where(c.Region)))
			})
		}),
	}
	s.BindRegion(c, "region of the override; a server of the region needs no --region")
	return c
}

// where names a region; without one it is that of the called server.
func where(region string) string {
	if region == "" {
		return "here"
	}
	return "in " + region
}

// Flags are the flags of a command that acts on one region with --override.
type Flags struct {
	On     bool
	reason string
}

// Bind adds the flags to a command.
func (f *Flags) Bind(s *cli.Settings, c *cobra.Command, what string) {
	c.Flags().BoolVar(&f.On, "override", false, what+" only in one region, which keeps it so until it is cleared")
	c.Flags().StringVar(&f.reason, "reason", "", "with --override: why, for people; at most 256 bytes")
	s.BindRegion(c, "with --override: the region; a server of the region needs no --region")
}

// Check refuses flags that need --override.
func (f *Flags) Check(c *cli.Session) error {
	if !f.On && (f.reason != "" || c.Cmd.Flags().Changed("region")) {
		return errors.New("--region and --reason need --override: without it the job changes in every region")
	}
	return nil
}

// Set sets an override, and says what the region runs then.
func (f *Flags) Set(c *cli.Session, req *nusav1.SetOverrideRequest) error {
	ctx, cancel := c.WithTimeout()
	defer cancel()
	req.Region, req.Reason = c.Region, f.reason
	o, err := client(c).Set(ctx, req)
	if err != nil {
		return noPart(ctx, c, req, err)
	}
	return c.Print(o, func(w *term.Screen) { writeSet(w, req.GetJob(), o) })
}

// noPart tells a job that a region has no part of from a job that does not exist.
func noPart(ctx context.Context, c *cli.Session, req *nusav1.SetOverrideRequest, err error) error {
	if status.Code(err) != codes.NotFound || req.GetGroup() != "" || req.GetRegion() == "" {
		return err
	}
	if _, missing := c.Jobs().Get(ctx, &nusav1.GetJobRequest{Job: req.GetJob()}); missing != nil {
		return err
	}
	return fmt.Errorf("region %s runs nothing of job %s: `%s job status %s` shows where it runs", req.GetRegion(), cli.RefName(req.GetJob()), c.Program, cli.RefArg(req.GetJob()))
}

func writeSet(w *term.Screen, ref *nusav1.JobRef, o *nusav1.Override) {
	text := jobstatus.OverrideText(o)
	if text == "" {
		fmt.Fprintf(w, "%s: %s runs all of its part again\n", cli.RefName(ref), o.GetRegion())
		return
	}
	w.Note("", fmt.Sprintf("%s at %s: %s; %s held", cli.RefName(ref), o.GetRegion(), term.OneLine(text), term.Plural(o.GetHeld(), "instance")))
	w.Note("", "the region keeps it so until: "+term.Whole(fmt.Sprintf("%s job override clear %s --region %s", w.Program, cli.RefArg(ref), o.GetRegion())))
}
