package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nusa-scheduler/nusa/internal/suggest"
	"github.com/nusa-scheduler/nusa/job/doc"
)

// Problem is one fault of a source.
type Problem struct {
	// Source is the path of the file or the name of the environment variable.
	Source string
	// Line and Column are the position in the file, from 1; 0 for an environment variable.
	Line, Column int
	// Key is the name of the setting in the file. It is empty if the problem concerns the
	// whole file, and for an environment variable.
	Key string
	// Message says what is wrong and what is valid. It never holds a secret.
	Message string
	// Cause is the underlying error, for example fs.ErrNotExist. It may be nil.
	Cause error
}

// Unwrap returns the cause.
func (p Problem) Unwrap() error { return p.Cause }

// Error returns one line, for example "nusa.yaml:3:1: grpc-adr: unknown setting, did you
// mean grpc-addr?".
func (p Problem) Error() string {
	text := p.Source + ": "
	if p.Line > 0 {
		text = fmt.Sprintf("%s:%d:%d: ", p.Source, p.Line, p.Column)
	}
	if p.Key != "" {
		text += p.Key + ": "
	}
	return text + p.Message
}

// Annotations of flags.
const (
	secretMark = "nusa-secret"
	sourceMark = "nusa-source"
)

// maxFile bounds a configuration file, in bytes.
const maxFile = 1 << 20

// prefix is what the names of Nusa's environment variables begin with.
const prefix = "NUSA_"

// notSettings are the flags that can be given on the command line only.
var notSettings = []string{"help", "config", "version"}

// MarkSecret keeps the value of a flag out of messages and of Print. It panics when
// the flag does not exist, which is a bug of the program.
func MarkSecret(flags *pflag.FlagSet, name string) {
	if err := flags.SetAnnotation(name, secretMark, []string{"true"}); err != nil {
		panic(err)
	}
}

// EnvName returns the name of a flag's environment variable: NUSA_GRPC_ADDR for grpc-addr.
func EnvName(flag string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Load sets every flag that was not given on the command line from the environment, or
// else from the YAML file at path. An empty path means no file. lookup is os.LookupEnv.
// Load checks the whole file, including settings that a flag or a variable overrides. The
// error joins every Problem. After an error the flags are not usable. Call Load once.
func Load(flags *pflag.FlagSet, lookup func(string) (string, bool), path string) error {
	var errs []error
	fail := func(p Problem) { errs = append(errs, p) }
	given := map[string]bool{}
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			given[f.Name] = true
			mark(f, "flag")
		}
	})
	flags.VisitAll(func(f *pflag.Flag) {
		if given[f.Name] || slices.Contains(notSettings, f.Name) {
			return
		}
		name := EnvName(f.Name)
		value, ok := lookup(name)
		if !ok {
			return
		}
		if err := set(f, value); err != nil {
			fail(Problem{Source: name, Message: describe(f, err)})
			return
		}
		given[f.Name] = true
		mark(f, name)
	})
	if path != "" {
		loadFile(flags, path, given, fail)
	}
	return errors.Join(errs...)
}

func loadFile(flags *pflag.FlagSet, path string, given map[string]bool, fail func(Problem)) {
	data, err := readBounded(path)
	if err != nil {
		fail(Problem{Source: path, Message: err.Error(), Cause: err})
		return
	}
	docs, err := doc.Read(data, false)
	if err != nil {
		p := Problem{Source: path, Message: err.Error()}
		var at *doc.Error
		if errors.As(err, &at) {
			p.Line, p.Column, p.Message = at.Line, at.Column, at.Message
		}
		fail(p)
		return
	}
	if len(docs) == 0 || len(docs) == 1 && docs[0].Kind == doc.Null {
		return
	}
	if len(docs) > 1 || docs[0].Kind != doc.Map {
		last := docs[len(docs)-1]
		fail(Problem{Source: path, Line: last.Line, Column: last.Column, Message: "must be one mapping of settings"})
		return
	}
	for _, e := range docs[0].Entries {
		p := Problem{Source: path, Line: e.Line, Column: e.Column, Key: e.Key}
		f := flags.Lookup(e.Key)
		if f == nil || slices.Contains(notSettings, e.Key) {
			p.Message = "unknown setting" + didYouMean(flags, e.Key)
			fail(p)
			continue
		}
		p.Line, p.Column = e.Value.Line, e.Value.Column
		text, err := flatten(f, e.Value)
		if err == nil && e.Value.Kind != doc.Null {
			err = try(f, text, !given[e.Key])
		}
		if err != nil {
			p.Message = describe(f, err)
			fail(p)
			continue
		}
		if !given[e.Key] && e.Value.Kind != doc.Null {
			mark(f, fmt.Sprintf("%s:%d", path, e.Line))
		}
	}
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		var pe *os.PathError
		if errors.As(err, &pe) {
			return nil, pe.Err // the problem already names the path
		}
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("larger than %d bytes", maxFile)
	}
	return data, err
}

// didYouMean returns a question with the setting that key probably means; "" if no setting
// is similar.
func didYouMean(flags *pflag.FlagSet, key string) string {
	var names []string
	flags.VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(notSettings, f.Name) {
			names = append(names, f.Name)
		}
	})
	if best := suggest.Within(key, names, max(2, len(key)/3)); best != "" {
		return fmt.Sprintf(", did you mean %s?", best)
	}
	return ""
}
