package client

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func jobExport(s *settings) *cobra.Command {
	return &cobra.Command{
		Use: "export JOB", Aliases: []string{"get", "inspect"}, Short: "Write a stored job as a job file", Args: takes("JOB"),
		Long: `Writes the stored job as a job file, YAML or (-o json) JSON, that job run and
job plan take: as it stands it changes nothing. Defaults are left out.`,
		Example: "  nusa job export hello > hello.yaml\n  nusa job export hello | nusa job plan -",
		RunE: s.run(func(c *caller, args []string) error {
			ref, err := c.ref(args[0])
			if err != nil {
				return err
			}
			ctx, cancel := c.call()
			defer cancel()
			j, err := c.jobs().Get(ctx, &nusav1.GetJobRequest{Job: ref})
			if err != nil {
				return err
			}
			format := job.YAML
			if c.output == "json" {
				format = job.JSON
			}
			text, err := job.Export(j.GetSpec(), format)
			if err != nil {
				return fmt.Errorf("%s has no file form: %w", refName(ref), err)
			}
			_, err = c.out.Write(text)
			return err
		}),
	}
}
