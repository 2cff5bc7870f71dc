// Package config fills a command's flags from their other sources: flag >
// NUSA_* environment > YAML file > default. A file's keys are the flags' names,
// so there is one list of settings.
package config

import (
	"io"

	"github.com/spf13/pflag"
)

// Problem is one thing wrong with a source.
type Problem struct {
	// Source: the file's path, or the environment variable.
	Source string
	// Line and Column in the file, 1-based; 0 when not a file.
	Line, Column int
	// Key is the flag's name.
	Key string
	// Message says what is wrong and what would do. It never holds a secret.
	Message string
}

// Error reads "path:line:column: key: message".
func (p Problem) Error() string { panic("unwritten") }

// MarkSecret makes the flag's value never appear in a message or in Print.
func MarkSecret(flags *pflag.FlagSet, name string) { panic("unwritten") }

// Load sets every flag that was not given on the command line from the
// environment (lookup is os.LookupEnv: grpc-addr is NUSA_GRPC_ADDR) or else
// from the YAML file (none if path is empty). The error joins all Problems; no
// flag is changed then.
func Load(flags *pflag.FlagSet, lookup func(string) (string, bool), path string) error {
	panic("unwritten")
}

// Print writes the effective settings as YAML, with their source as a comment
// and secrets masked.
func Print(w io.Writer, flags *pflag.FlagSet) error { panic("unwritten") }
