package job

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func planCommand(s *cli.Settings) *cobra.Command {
	var region string
	var explain, verbose bool
	var given variables
	c := &cobra.Command{
		Use: "plan FILE", Short: "Show what a submit would change, and where instances would go", Args: cli.Positional("FILE"),
		Long:        "A dry run: shows what job run would change, where instances would go, and which rule\ndivides them among regions (regions.divide of the job). Nothing is stored.\n\nExit codes: 0 no change, 1 changes, 255 error.",
		Annotations: map[string]string{cli.ErrorCodeKey: fmt.Sprint(planError)},
		RunE: s.Run(func(c *cli.Session, args []string) error {
			file, err := readJob(c.Cmd, args[0], c.Namespace, given)
			if err != nil {
				return err
			}
			spec := file.JobSpec
			if region != "" {
				done, err := redial(c, region)
				if err != nil {
					return err
				}
				defer done()
			}
			written := map[string]bool{}
			for _, d := range job.Diff(nil, spec) {
				written[d.GetField()] = true
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			plan, err := c.Jobs().Plan(ctx, &nusav1.PlanRequest{Spec: spec})
			if err != nil {
				return file.locate(err)
			}
			if err := addStartToPlan(ctx, c, spec, region, plan); err != nil {
				return err
			}
			at := region
			if at == "" {
				at = c.RegionOf(ctx)
			}
			err = c.Print(plan, func(w *term.Screen) {
				of := planHeader{
					name: cli.JobName(cli.NamespaceOf(spec), spec.GetName(), at), submit: submitFlags(c, region) + given.again() + " " + cli.FileArg(args[0]),
					written: written, warnings: submitWarnings(plan.GetWarnings(), spec), orderNote: orderNote(plan, spec), spec: spec,
				}
				if verbose {
					full := proto.CloneOf(spec)
					job.Default(full)
					of.notes = job.Notes(full)
				}
				writePlan(w, of, plan)
				if explain {
					writeExplanation(w, plan.GetExplanation())
				}
			})
			if err != nil {
				return err
			}
			if len(plan.GetDiff()) > 0 {
				return &cli.ExitError{Code: planChanges}
			}
			return nil
		}),
	}
	c.Flags().StringVar(&region, "region", "", "plan on this region's own servers, as a job NAME@REGION")
	c.Flags().BoolVar(&explain, "explain", false, "also show every region's score")
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "also show notes about the job that need no action")
	given.addFlags(c)
	return c
}

// The exit codes of job plan.
const (
	planChanges = 1
	planError   = 255
)

// stoppedField is the field of the diff line which says that the stored job is stopped.
const stoppedField = "stopped"

// addStartToPlan adds the line that a submit starts a stopped job again to the plan of a
// region. Plans of the global tier already have that line.
func addStartToPlan(ctx context.Context, c *cli.Session, spec *nusav1.JobSpec, region string, plan *nusav1.PlanResponse) error {
	isLine := func(d *nusav1.DiffLine) bool { return d.GetField() == stoppedField }
	if region == "" || plan.GetRevision() == 0 || slices.ContainsFunc(plan.GetDiff(), isLine) {
		return nil
	}
	j, err := c.Jobs().Get(ctx, &nusav1.GetJobRequest{Job: &nusav1.JobRef{Namespace: cli.NamespaceOf(spec), Name: spec.GetName(), Region: region}})
	if err != nil {
		return err
	}
	if j.GetStopped() {
		plan.Diff = append(plan.Diff, &nusav1.DiffLine{Field: stoppedField, Old: "true"})
	}
	return nil
}

// submitFlags returns the flags of the plan that the submit also needs.
func submitFlags(c *cli.Session, region string) string {
	flags := c.NamespaceFlag()
	if region != "" {
		flags += " --region " + region
	}
	return flags
}
