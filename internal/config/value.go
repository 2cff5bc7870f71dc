package config

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nusa-scheduler/nusa/job/doc"
)

// errShape says that a value in the file has the wrong kind, for example a list for a
// number.
type errShape struct{ want, got string }

func (e errShape) Error() string { return fmt.Sprintf("must be %s, not %s", e.want, e.got) }

// flatten returns the text that would set the flag on a command line to the file's value.
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

// try sets the flag. If keep is false, try only checks that the flag can be set.
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
		return nil // Set adds to the value of a map flag, and cannot be undone
	}
	err := f.Value.Set(text)
	return errors.Join(err, f.Value.Set(before))
}

// set replaces the flag's value. An empty text makes a list empty.
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

// describe returns the message for a value that the flag refuses: which values the flag
// can have, and what is wrong with the given value. It never shows the value of a secret.
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
	if errors.As(err, &number) { // the text of a NumError is for programmers
		return fmt.Sprintf("must be %s, not %q", kind(f), number.Num)
	}
	return fmt.Sprintf("must be %s: %s", kind(f), strings.TrimPrefix(err.Error(), "time: "))
}

// kind says for an operator what values the flag can have.
func kind(f *pflag.Flag) string {
	switch t := f.Value.Type(); t {
	case "int64":
		if strings.Contains(f.Usage, "MiB") {
			return "a whole number of MiB, such as 1024"
		}
		return "a whole number"
	case "bool":
		return "true or false"
	case "int", "int32", "uint", "uint16", "uint32", "uint64", "count":
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

// Derive sets a flag to a value that follows from another setting. Print names source as
// the source of the value. A flag that was given keeps its value. Call Derive after Load.
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

// Print writes the effective settings as a YAML file that Load can read. Each setting has
// its source in a comment. For a secret, Print writes only a comment, without the value.
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

// yamlValue returns the value of a flag in YAML. Strings are quoted as in JSON.
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

// yamlPairs converts the text "[a=b,c=d]", in which pflag prints pairs, to a YAML mapping.
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
