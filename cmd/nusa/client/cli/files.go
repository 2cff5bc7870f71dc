package cli

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/job"
	"github.com/nusa-scheduler/nusa/job/vars"
)

// maxSecret bounds a file with a secret, in bytes.
const maxSecret = 4 << 10

// ReadSecret reads a file with a secret, which only its owner may read, or standard input if the name
// is "-".
func ReadSecret(cmd *cobra.Command, name string) (string, error) {
	in := cmd.InOrStdin()
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return "", err
		}
		defer f.Close()
		info, err := f.Stat()
		switch {
		case err != nil:
			return "", err
		case info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0:
			return "", fmt.Errorf("%s can be read by other users than its owner: run chmod 600 %s", name, name)
		}
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxSecret))
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return strings.TrimSpace(string(text)), nil
}

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

// ReadPayload reads a payload, and no more than one byte beyond its bound.
func ReadPayload(in io.Reader, file string) ([]byte, error) {
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, fmt.Errorf("--payload: %w", err)
		}
		defer f.Close()
		in = f
	}
	out, err := io.ReadAll(io.LimitReader(in, job.MaxPayload+1))
	if err != nil {
		return nil, fmt.Errorf("--payload: %w", err)
	}
	if len(out) > job.MaxPayload {
		return nil, fmt.Errorf("--payload: %s has more than %s, the most a run may have", file, job.FormatBytes(job.MaxPayload))
	}
	return out, nil
}

// Variables are the flags that give values to the variables of job files.
type Variables struct{ assignments, files []string }

// Bind adds the flags to a command.
func (v *Variables) Bind(c *cobra.Command) {
	c.Flags().StringArrayVar(&v.assignments, "var", nil, "value of a variable of the job file, as NAME=VALUE; may be repeated")
	c.Flags().StringArrayVar(&v.files, "var-file", nil, "file with values of variables, a mapping in YAML or JSON; may be repeated")
}

// Values reads what the flags and the environment give. A later flag replaces an earlier one, and --var
// replaces what files give.
func (v Variables) Values(cmd *cobra.Command) (*vars.Values, error) {
	out := &vars.Values{Environment: os.LookupEnv}
	for _, name := range v.files {
		data, err := ReadFile(cmd, name)
		if err != nil {
			return nil, err
		}
		if err := out.AddFile(data, name); err != nil {
			return nil, err
		}
	}
	for _, a := range v.assignments {
		if err := out.Set(a); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Again returns the flags as a user would type them.
func (v Variables) Again() string {
	var b strings.Builder
	for _, f := range v.files {
		b.WriteString(" --var-file " + FileArg(f))
	}
	for _, a := range v.assignments {
		b.WriteString(" --var '" + strings.ReplaceAll(a, "'", `'\''`) + "'")
	}
	return b.String()
}
