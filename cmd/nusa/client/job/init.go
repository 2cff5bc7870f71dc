package job

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/job"
)

func initCommand(s *cli.Settings) *cobra.Command {
	var kind, name string
	var force bool
	c := &cobra.Command{
		Use:   "init [FILE]",
		Short: "Write a commented job file to start from",
		Long:  "Writes a commented job file: job.yaml, or - for standard output. An existing file is\noverwritten only with --force.",
		Args:  cli.Positional("[FILE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if s.Output != "table" {
				return fmt.Errorf("--output: the file is YAML, with comments; %s job validate -o %s FILE writes it without", cli.Program(cmd), s.Output)
			}
			jobType, ok := job.ParseType(kind)
			if !ok {
				return fmt.Errorf("--type: %q is not one of service, batch, system", kind)
			}
			if !job.ValidName(name) {
				return fmt.Errorf("--name: %q is not a name: 1 to 63 of a-z, 0-9 and -, starting with a letter", name)
			}
			text, err := job.Sample(name, jobType)
			if err != nil {
				return err
			}
			file := "job.yaml"
			if len(args) == 1 {
				file = args[0]
			}
			if file == "-" {
				_, err = io.WriteString(cmd.OutOrStdout(), text)
				return err
			}
			flags := os.O_WRONLY | os.O_CREATE | os.O_EXCL
			if force {
				flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
			}
			f, err := os.OpenFile(file, flags, 0o644)
			if os.IsExist(err) {
				return fmt.Errorf("%s exists: name another file, or --force", file)
			}
			if err != nil {
				return err
			}
			if _, err := io.WriteString(f, text); err != nil {
				f.Close()
				return err
			}
			if err := f.Close(); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s written; next: %s job validate %s, %s job run %s\n", file, cli.Program(cmd), file, cli.Program(cmd), file)
			return nil
		},
	}
	c.Flags().StringVar(&kind, "type", "service", "service, batch or system")
	c.Flags().StringVar(&name, "name", "my-job", "name of the job")
	c.Flags().BoolVar(&force, "force", false, "overwrite the file")
	return c
}
