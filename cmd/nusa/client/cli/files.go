package cli

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/job"
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
