package region

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func defineCommand(s *cli.Settings) *cobra.Command {
	var file string
	var check int64
	c := &cobra.Command{
		Use: "define FILE", Short: "Create regions, or replace their definitions", Args: cli.Positional("[FILE]"),
		Long:    "Reads region definitions, separated by ---, from a file (- is standard input). All are checked before the first is sent.",
		Example: "  nusa region define examples/region.yaml",
		RunE: s.Run(func(c *cli.Session, args []string) error {
			switch {
			case len(args) == 1 && file != "":
				return fmt.Errorf("%q and --file %s: name one file", args[0], file)
			case len(args) == 1:
				file = args[0]
			case file == "":
				return fmt.Errorf("FILE is missing: a file with definitions, or - for standard input; see %s --help", c.Cmd.CommandPath())
			}
			data, err := c.ReadFile(file)
			if err != nil {
				return err
			}
			defs, err := job.ParseRegions(data, file)
			if err != nil {
				return err
			}
			if check != 0 && len(defs) > 1 {
				return fmt.Errorf("--check-revision is for one region, %s has %d", file, len(defs))
			}
			out := &nusav1.ListRegionsResponse{}
			for _, d := range defs {
				ctx, cancel := c.WithTimeout()
				r, err := c.Regions().Define(ctx, &nusav1.DefineRegionRequest{Definition: d, CheckRevision: check})
				cancel()
				if err != nil {
					return err
				}
				out.Regions = append(out.Regions, r)
				if c.Output == "table" {
					state := c.Style.State(term.Word(r.GetState()))
					if r.GetState() == nusav1.RegionState_REGION_STATE_DEFINED {
						state = "its servers have never connected"
					}
					c.Printf("region %s defined (revision %d): %s\n", d.GetName(), r.GetRevision(), state)
				}
			}
			return c.Print(out, func(*term.Screen) {})
		}),
	}
	c.Flags().StringVarP(&file, "file", "f", "", "the same as FILE")
	c.Flags().Int64Var(&check, "check-revision", 0, "fail unless the stored region has this revision; -1: unless the region does not exist")
	return c
}
