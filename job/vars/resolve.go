package vars

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/internal/suggest"
	"github.com/nusa-scheduler/nusa/job/doc"
)

// Bounds of what values add to a file. They refuse small files that would become large ones.
const (
	maxText  = 4 << 20
	maxNodes = 100_000
)

// Resolve returns a document of a job file without its declarations and with the values of its
// variables. Values that are given outside of the file come before the defaults; given may be nil. What a
// value adds has the position of the reference. The document is not changed.
func Resolve(root *doc.Node, given *Values) (*doc.Node, []Problem) {
	all, rest, faults := declarations(root)
	if rest == root || len(faults) > 0 {
		return rest, faults
	}
	r := &resolver{values: map[string]*doc.Node{}}
	for _, d := range all {
		r.names = append(r.names, d.Key)
		g, ok := given.find(d.Key)
		value, err := d.initial, error(nil)
		if ok {
			value, err = g.as(d.initial)
		} else if value == nil {
			err = missing(d)
		}
		if err != nil {
			r.fail(d.Line, d.Column, Key+"."+d.Key, "%v", err)
			continue
		}
		r.values[d.Key] = value
	}
	if len(r.faults) > 0 {
		return rest, r.faults
	}
	out := r.node(rest)
	return out, r.faults
}

func missing(d declaration) error {
	about := ""
	if d.about != "" {
		about = " (" + d.about + ")"
	}
	return fmt.Errorf("has no value%s: give it with --var %s=VALUE, --var-file FILE or %s%s", about, d.Key, EnvironmentPrefix, d.Key)
}

// resolver replaces the references of one document.
type resolver struct {
	names       []string
	values      map[string]*doc.Node
	text, nodes int
	faults      []Problem
}

func (r *resolver) fail(line, column int, field, format string, args ...any) {
	r.faults = append(r.faults, Problem{line, column, field, fmt.Sprintf(format, args...)})
}

// node returns a copy of a tree with values in place of references.
func (r *resolver) node(n *doc.Node) *doc.Node {
	switch n.Kind {
	case doc.String:
		if strings.Contains(n.Text, opening) {
			return r.fill(n)
		}
		return n
	case doc.List, doc.Map:
	default:
		return n
	}
	out := &doc.Node{Kind: n.Kind, Line: n.Line, Column: n.Column, Items: slices.Clone(n.Items), Entries: slices.Clone(n.Entries)}
	for i, item := range out.Items {
		out.Items[i] = r.node(item)
	}
	for i, e := range out.Entries {
		if strings.Contains(e.Key, opening) {
			r.fail(e.Line, e.Column, "", "a variable stands in a value, not in the key %q", e.Key)
		}
		out.Entries[i].Value = r.node(e.Value)
	}
	return out
}

const opening = "${var."

// fill returns the value of a text that has references.
func (r *resolver) fill(n *doc.Node) *doc.Node {
	if name, ok := whole(n.Text); ok {
		v := r.find(n, name)
		if v == nil {
			return n
		}
		return r.moved(v, n)
	}
	var b strings.Builder
	for rest := n.Text; ; {
		before, after, found := strings.Cut(rest, opening)
		b.WriteString(before)
		if !found {
			break
		}
		name, next, closed := strings.Cut(after, "}")
		if strings.HasSuffix(before, "$") { // $${var.NAME}
			b.WriteString(opening[1:])
			rest = after
			continue
		}
		if !closed {
			r.fail(n.Line, n.Column, "", "%s has no end: a reference is %sNAME}", opening, opening)
			return n
		}
		v := r.find(n, name)
		switch {
		case v == nil:
			return n
		case v.Kind == doc.List || v.Kind == doc.Map:
			r.fail(n.Line, n.Column, "", "%s%s} is %s: a text cannot have it within", opening, name, v.Kind)
			return n
		}
		b.WriteString(v.Text)
		rest = next
		r.text += len(v.Text)
		if r.text > maxText {
			r.fail(n.Line, n.Column, "", "the values of the variables are too long in all")
			return n
		}
	}
	return &doc.Node{Kind: doc.String, Line: n.Line, Column: n.Column, Text: b.String()}
}

// whole returns the name if a text is nothing but one reference.
func whole(text string) (name string, ok bool) {
	name, ok = strings.CutPrefix(text, opening)
	if !ok {
		return "", false
	}
	name, ok = strings.CutSuffix(name, "}")
	return name, ok && !strings.ContainsAny(name, "}$")
}

// find returns the value of the variable of a reference.
func (r *resolver) find(n *doc.Node, name string) *doc.Node {
	if v := r.values[name]; v != nil {
		return v
	}
	hint := "declared are " + strings.Join(r.names, ", ")
	if near := suggest.Nearest(name, r.names); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	} else if len(r.names) == 0 {
		hint = "the file declares none"
	}
	if len(name) > 63 {
		name = name[:63] + "…"
	}
	r.fail(n.Line, n.Column, "", "%s%s} is not a variable of this file: %s", opening, name, hint)
	return nil
}

// moved returns a value as if it stood at the place of a reference.
func (r *resolver) moved(v, at *doc.Node) *doc.Node {
	r.nodes++
	r.text += len(v.Text)
	if r.nodes > maxNodes || r.text > maxText {
		if len(r.faults) == 0 {
			r.fail(at.Line, at.Column, "", "the values of the variables are too long in all")
		}
		return at
	}
	out := &doc.Node{Kind: v.Kind, Line: at.Line, Column: at.Column, Text: v.Text}
	for _, item := range v.Items {
		out.Items = append(out.Items, r.moved(item, at))
	}
	for _, e := range v.Entries {
		out.Entries = append(out.Entries, doc.Entry{Key: e.Key, Line: at.Line, Column: at.Column, Value: r.moved(e.Value, at)})
	}
	return out
}
