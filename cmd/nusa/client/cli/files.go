package cli

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/job"
)

// ReadFile reads a file, or standard input if the name is "-". It reads at most one byte
// more than the largest job, so that a job that is too large is noticed.
func (c *Session) ReadFile(name string) ([]byte, error) { return ReadFile(c.Cmd, name) }

func ReadFile(cmd *cobra.Command, name string) ([]byte, error) {
	in := cmd.InOrStdin()
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, job.MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return data, nil
}
