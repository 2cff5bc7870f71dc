package vars

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/internal/lazyregexp"
	"github.com/nusa-scheduler/nusa/internal/suggest"
	"github.com/nusa-scheduler/nusa/job/doc"
)

// namePattern is what a name of a variable looks like.
var namePattern = lazyregexp.New(`^[a-z][a-z0-9_]{0,62}$`)

const nameRule = "must begin with a letter, and have small letters, digits and _, at most 63"

// Values are values of variables that are given outside of job files. The zero value has none. It notes
// which variables the files declare. It must not be used at the same time by several goroutines.
type Values struct {
	given map[string]given
	// Environment returns the value of an environment variable, as os.LookupEnv does. Nil: none.
	Environment func(name string) (string, bool)
	declared    []string
}

type given struct {
	node *doc.Node // of a file
	text string    // of the command line or the environment
	from string
}

// EnvironmentPrefix begins the names of environment variables that give values.
const EnvironmentPrefix = "NUSA_VAR_"

// Set gives a value in the form NAME=VALUE. A later value of a name replaces an earlier one.
func (v *Values) Set(assignment string) error {
	name, text, ok := strings.Cut(assignment, "=")
	if !ok {
		return fmt.Errorf("--var %s: must have the form NAME=VALUE", assignment)
	}
	return v.put(name, given{text: text, from: "--var"})
}

// AddFile gives the values of a file, a mapping from names to values in YAML or JSON.
func (v *Values) AddFile(data []byte, filename string) error {
	docs, err := doc.Read(data, false)
	switch {
	case err != nil:
		return fmt.Errorf("%s:%w", filename, err)
	case len(docs) != 1 || docs[0].Kind != doc.Map:
		return fmt.Errorf("%s: must be one mapping from names of variables to values, such as \"replicas: 3\"", filename)
	}
	for _, e := range docs[0].Entries {
		if err := v.put(e.Key, given{node: e.Value, from: fmt.Sprintf("%s:%d", filename, e.Line)}); err != nil {
			return fmt.Errorf("%s:%d: %w", filename, e.Line, err)
		}
	}
	return nil
}

func (v *Values) put(name string, g given) error {
	if !namePattern().MatchString(name) {
		return fmt.Errorf("%q is not a name of a variable: a name %s", name, nameRule)
	}
	if v.given == nil {
		v.given = map[string]given{}
	}
	v.given[name] = g
	return nil
}

// Undeclared returns an error if Set gave a value for a variable that none of the resolved files declares.
// A file of values may have more than one job needs.
func (v *Values) Undeclared() error {
	names := make([]string, 0, len(v.given))
	for name, g := range v.given {
		if g.node == nil && !slices.Contains(v.declared, name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	name := slices.Min(names)
	hint := fmt.Sprintf("it declares none: write \"variables: {%s: {description: …}}\" into it, and ${var.%s} where the value belongs", name, name)
	if near := suggest.Nearest(name, v.declared); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	} else if len(v.declared) > 0 {
		hint = "declared are " + strings.Join(slices.Compact(slices.Sorted(slices.Values(v.declared))), ", ")
	}
	return fmt.Errorf("%s: %s is not a variable of the job file: %s", v.given[name].from, name, hint)
}

// find returns the value that is given for a variable, and where it was given.
func (v *Values) find(name string) (g given, ok bool) {
	if v == nil {
		return given{}, false
	}
	v.declared = append(v.declared, name)
	g, ok = v.given[name]
	if ok || v.Environment == nil {
		return g, ok
	}
	text, ok := v.Environment(EnvironmentPrefix + name)
	return given{text: text, from: EnvironmentPrefix + name}, ok
}

// as returns a given value as a variable with a default has it. A text of the command line is read as
// YAML, unless the default is a text.
func (g given) as(initial *doc.Node) (*doc.Node, error) {
	n := g.node
	switch {
	case n != nil:
	case initial != nil && initial.Kind == doc.String, strings.TrimSpace(g.text) == "":
		n = &doc.Node{Kind: doc.String, Text: g.text}
	default:
		docs, err := doc.Read([]byte(g.text), false)
		if err != nil || len(docs) != 1 {
			n = &doc.Node{Kind: doc.String, Text: g.text} // such as "a: b: c"
			break
		}
		n = docs[0]
	}
	switch {
	case n.Kind == doc.Null:
		return nil, fmt.Errorf("the value of %s is empty", g.from)
	case initial == nil || n.Kind == initial.Kind:
		return n, nil
	case initial.Kind == doc.String && (n.Kind == doc.Number || n.Kind == doc.Bool):
		return &doc.Node{Kind: doc.String, Text: n.Text}, nil
	}
	return nil, fmt.Errorf("the value of %s is %s, and the default is %s", g.from, n.Kind, initial.Kind)
}
