package job

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func exportCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "export JOB", Aliases: []string{"get", "inspect"}, Short: "Write a stored job as a job file", Args: cli.Positional("JOB"),
		Long: `Writes the stored job as a job file, YAML or (-o json) JSON, for job run and job
plan. Submitting the file changes nothing. Defaults are left out.`,
		Example: "  nusa job export hello > hello.yaml\n  nusa job export hello | nusa job plan -",
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ref, err := c.Ref(args[0])
			if err != nil {
				return err
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			j, err := c.Jobs().Get(ctx, &nusav1.GetJobRequest{Job: ref})
			if err != nil {
				return err
			}
			format := job.YAML
			if c.Output == "json" {
				format = job.JSON
			}
			text, err := job.Export(j.GetSpec(), format)
			if err != nil {
				return fmt.Errorf("%s cannot be written as a job file: %w", cli.RefName(ref), err)
			}
			_, err = c.Out.Write(text)
			return err
		}),
	}
}
