// Package config fills a command's flags from their other sources: flag >
// NUSA_* environment > YAML file > default. A file's keys are the flags' names,
// so there is one list of settings.
package config

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nusa-scheduler/nusa/internal/suggest"
	"github.com/nusa-scheduler/nusa/job/doc"
)

// Problem is one thing wrong with a source.
type Problem struct {
	// Source is the file's path or the environment variable.
	Source string
	// Line and Column in the file, 1-based; 0 when not a file.
	Line, Column int
	// Key is the flag's name; empty when it is the whole file.
	Key string
	// Message says what is wrong and what would do. It never holds a secret.
	Message string
	// Cause, where there is one: fs.ErrNotExist for a file that is not there.
	Cause error
}

// Unwrap returns the cause.
func (p Problem) Unwrap() error { return p.Cause }

// Error reads "nusa.yaml:3:1: grpc-adr: unknown setting, did you mean
// grpc-addr?".
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

// maxFile bounds a configuration file.
const maxFile = 1 << 20

// prefix of environment variables.
const prefix = "NUSA_"

// notSettings are flags that mean something on the command line only.
var notSettings = []string{"help", "config", "version"}

// MarkSecret makes the flag's value never appear in a message or in Print. It
// panics when there is no such flag: a mistake of the program.
func MarkSecret(flags *pflag.FlagSet, name string) {
	if err := flags.SetAnnotation(name, secretMark, []string{"true"}); err != nil {
		panic(err)
	}
}

// EnvName is the environment variable of a flag: grpc-addr is NUSA_GRPC_ADDR.
func EnvName(flag string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Load sets every flag that was not given on the command line from the
// environment (lookup is os.LookupEnv) or else from the YAML file (none if path
// is empty). All of the file is checked, also what is overridden. The error
// joins every Problem; the flags are of no use then. Call it once.
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

// Check reports what is wrong with a file for these flags, as Load would; the
// flags are changed by it.
func Check(flags *pflag.FlagSet, path string) error {
	return Load(flags, func(string) (string, bool) { return "", false }, path)
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
			return nil, pe.Err // the path is the problem's source already
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

// errShape is a value of a wrong kind in the file.
type errShape struct{ want, got string }

func (e errShape) Error() string { return fmt.Sprintf("must be %s, not %s", e.want, e.got) }

// flatten writes a node of the file as the flag takes it on a command line.
func flatten(f *pflag.Flag, n *doc.Node) (string, error) {
	_, many := f.Value.(pflag.SliceValue)
	pairs := strings.HasPrefix(f.Value.Type(), "stringTo")
	var fields []string
	switch {
	case n.Kind == doc.List && many:
		for _, item := range n.Items {
			if item.Kind == doc.List || item.Kind == doc.Map {
				return "", errShape{"a list of plain values", "a list with " + item.Kind.String()}
			}
			fields = append(fields, item.Text)
		}
	case n.Kind == doc.Map && pairs:
		for _, e := range n.Entries {
			if e.Value.Kind == doc.List || e.Value.Kind == doc.Map {
				return "", errShape{"a mapping to plain values", e.Value.Kind.String() + " under " + e.Key}
			}
			fields = append(fields, e.Key+"="+e.Value.Text)
		}
	case n.Kind == doc.List || n.Kind == doc.Map:
		return "", errShape{kind(f), n.Kind.String()}
	default:
		return n.Text, nil
	}
	if len(fields) == 0 || f.Value.Type() == "stringArray" && len(fields) == 1 {
		return strings.Join(fields, ""), nil
	}
	var b strings.Builder
	w := csv.NewWriter(&b)
	if err := w.Write(fields); err != nil {
		return "", err
	}
	w.Flush()
	return strings.TrimSuffix(b.String(), "\n"), nil
}

// try sets the flag, or with keep false only looks whether it could.
func try(f *pflag.Flag, text string, keep bool) error {
	if keep {
		return set(f, text)
	}
	before := f.Value.String()
	if slice, many := f.Value.(pflag.SliceValue); many {
		items := slice.GetSlice()
		err := f.Value.Set(text)
		return errors.Join(err, slice.Replace(items))
	}
	if strings.HasPrefix(f.Value.Type(), "stringTo") {
		return nil // its Set adds, and cannot be taken back
	}
	err := f.Value.Set(text)
	return errors.Join(err, f.Value.Set(before))
}

// set replaces the flag's value.
func set(f *pflag.Flag, text string) error {
	if slice, many := f.Value.(pflag.SliceValue); many && text == "" {
		f.Changed = true
		return slice.Replace(nil)
	}
	if err := f.Value.Set(text); err != nil {
		return err
	}
	f.Changed = true
	return nil
}

// describe says what value the flag takes, and what was wrong unless that
// would show a secret.
func describe(f *pflag.Flag, err error) string {
	var shape errShape
	switch {
	case errors.As(err, &shape):
		return err.Error()
	case secret(f):
		return "must be " + kind(f)
	}
	var number *strconv.NumError
	if errors.As(err, &number) && errors.Is(err, strconv.ErrRange) {
		return fmt.Sprintf("%s is out of range", number.Num)
	}
	if errors.As(err, &number) { // its own words are those of a library
		return fmt.Sprintf("must be %s, not %q", kind(f), number.Num)
	}
	return fmt.Sprintf("must be %s: %s", kind(f), strings.TrimPrefix(err.Error(), "time: "))
}

// kind names what the flag takes, for an operator.
func kind(f *pflag.Flag) string {
	switch t := f.Value.Type(); t {
	case "bool":
		return "true or false"
	case "int", "int32", "int64", "uint", "uint16", "uint32", "uint64", "count":
		return "a whole number"
	case "float32", "float64":
		return "a number"
	case "duration":
		return `a duration such as "10s"`
	case "string":
		return "text"
	case "stringSlice", "stringArray":
		return "a list of texts"
	case "stringToString":
		return "a mapping of texts"
	default:
		return "a value of type " + t
	}
}

// Derive sets a flag that was not given to a value that follows from another
// setting, which Print names as the source. A flag that was given keeps its
// value. It must be called after Load.
func Derive(flags *pflag.FlagSet, name, value, source string) error {
	f := flags.Lookup(name)
	if f.Changed {
		return nil
	}
	if err := f.Value.Set(value); err != nil {
		return Problem{Source: source, Message: describe(f, err)}
	}
	mark(f, source)
	return nil
}

func mark(f *pflag.Flag, source string) {
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[sourceMark] = []string{source}
}

func secret(f *pflag.Flag) bool { return len(f.Annotations[secretMark]) > 0 }

// Print writes the effective settings as a YAML file that Load reads, each
// with its source as a comment. A secret is written as a comment only.
func Print(w io.Writer, flags *pflag.FlagSet) error {
	var b strings.Builder
	flags.VisitAll(func(f *pflag.Flag) {
		if slices.Contains(notSettings, f.Name) {
			return
		}
		source := "default"
		if s := f.Annotations[sourceMark]; len(s) > 0 {
			source = s[0]
		}
		if secret(f) {
			if source != "default" {
				fmt.Fprintf(&b, "# %s: a secret, from %s\n", f.Name, source)
			}
			return
		}
		fmt.Fprintf(&b, "%s: %s # %s\n", f.Name, yamlValue(f), source)
	})
	_, err := io.WriteString(w, b.String())
	return err
}

// yamlValue writes strings as JSON does, which YAML reads.
func yamlValue(f *pflag.Flag) string {
	quote := func(s string) string { return string((&doc.Node{Kind: doc.String, Text: s}).JSON()) }
	if slice, many := f.Value.(pflag.SliceValue); many {
		items := slice.GetSlice()
		for i := range items {
			items[i] = strings.TrimSpace(quote(items[i]))
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	switch f.Value.Type() {
	case "bool", "int", "int32", "int64", "uint", "uint16", "uint32", "uint64", "float32", "float64", "duration":
		return f.Value.String()
	case "stringToString":
		return yamlPairs(f.Value.String())
	}
	return strings.TrimSpace(quote(f.Value.String()))
}

// yamlPairs turns pflag's "[a=b,c=d]" into a mapping.
func yamlPairs(text string) string {
	fields, err := csv.NewReader(strings.NewReader(strings.Trim(text, "[]"))).Read()
	if err != nil {
		return "{}"
	}
	slices.Sort(fields)
	for i, field := range fields {
		k, v, _ := strings.Cut(field, "=")
		one := &doc.Node{Kind: doc.String, Text: v}
		key := &doc.Node{Kind: doc.String, Text: k}
		fields[i] = strings.TrimSpace(string(key.JSON())) + ": " + strings.TrimSpace(string(one.JSON()))
	}
	return "{" + strings.Join(fields, ", ") + "}"
}

// didYouMean names the setting that key probably means; "" when none is near.
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
