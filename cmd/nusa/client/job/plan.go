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

// planning holds the flags of `job plan`.
type planning struct {
	files            []string
	region           string
	explain, verbose bool
	given            cli.Variables
}

func planCommand(s *cli.Settings) *cobra.Command {
	var p planning
	c := &cobra.Command{
		Use: "plan FILE...", Short: "Show what a submit would change, and where instances would go", Args: cobra.ArbitraryArgs,
		Long: `A dry run: shows what job run would change, where instances would go, and which rule
divides them among regions (regions.divide of the job). Nothing is stored. Of several jobs,
each is planned as if the others were not submitted.

Exit codes: 0 no change, 1 changes, 255 error.`,
		Example:     "  nusa job plan hello.yaml\n  nusa job plan -f jobs/",
		Annotations: map[string]string{cli.ErrorCodeKey: fmt.Sprint(planError)},
		RunE:        s.Run(p.run),
	}
	addFileFlag(c, &p.files)
	c.Flags().StringVar(&p.region, "region", "", "plan on this region's own servers, as a job NAME@REGION")
	c.Flags().BoolVar(&p.explain, "explain", false, "also show every region's score")
	c.Flags().BoolVarP(&p.verbose, "verbose", "v", false, "also show notes about the job that need no action")
	p.given.Bind(c)
	return c
}

func (p *planning) run(c *cli.Session, args []string) error {
	args, err := filesOf(c.Cmd, args, p.files)
	if err != nil {
		return err
	}
	jobs, err := readJobs(c.Cmd, args, c.Namespace, p.given)
	if err != nil {
		return err
	}
	if p.region != "" {
		done, err := redial(c, p.region)
		if err != nil {
			return err
		}
		defer done()
	}
	submit := submitFlags(c, p.region) + p.given.Again()
	for _, name := range args {
		submit += " " + cli.FileArg(name)
	}
	changed := 0
	for i, j := range jobs {
		of := planHeader{submit: submit}
		if len(jobs) > 1 {
			of.submit = "" // job run --check-revision takes one job
		}
		switch {
		case i > 0 && c.Output == "yaml":
			c.Printf("---\n")
		case i > 0 && c.Output == "table":
			c.Printf("\n")
		}
		changes, err := p.one(c, j, of)
		if err != nil {
			return err
		}
		if changes {
			changed++
		}
	}
	if changed == 0 {
		return nil
	}
	if len(jobs) > 1 && c.Output == "table" {
		c.Printf("\n%d of %d jobs change; to submit them: %s job run%s\n", changed, len(jobs), c.Program, submit)
	}
	return &cli.ExitError{Code: planChanges}
}

// one shows the plan of one job, and reports whether the job would change.
func (p *planning) one(c *cli.Session, file *jobSource, of planHeader) (changes bool, err error) {
	spec := file.JobSpec
	written := map[string]bool{}
	for _, d := range job.Diff(nil, spec) {
		written[d.GetField()] = true
	}
	ctx, cancel := c.WithTimeout()
	defer cancel()
	plan, err := c.Jobs().Plan(ctx, &nusav1.PlanRequest{Spec: spec})
	if err != nil {
		return false, file.locate(err)
	}
	if err := addStartToPlan(ctx, c, spec, p.region, plan); err != nil {
		return false, err
	}
	at := p.region
	if at == "" {
		at = c.RegionOf(ctx)
	}
	return len(plan.GetDiff()) > 0, c.Print(plan, func(w *term.Screen) {
		of.name, of.written, of.spec = cli.JobName(cli.NamespaceOf(spec), spec.GetName(), at), written, spec
		of.warnings, of.orderNote = submitWarnings(plan.GetWarnings(), spec), orderNote(plan, spec)
		if p.verbose {
			full := proto.CloneOf(spec)
			job.Default(full)
			of.notes = job.Notes(full)
		}
		writePlan(w, of, plan)
		if p.explain {
			writeExplanation(w, plan.GetExplanation())
		}
	})
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
