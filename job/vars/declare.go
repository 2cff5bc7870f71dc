package vars

import (
	"fmt"

	"github.com/nusa-scheduler/nusa/job/doc"
)

// Key is the key of a job file that declares variables.
const Key = "variables"

// maxVariables bounds the variables of a file.
const maxVariables = 100

// Problem is a fault of a job file with its position. Field is the path of the variable's declaration, or
// empty.
type Problem struct {
	Line, Column   int
	Field, Message string
}

// declaration is a variable of a file.
type declaration struct {
	doc.Entry
	initial *doc.Node // nil: the value must be given
	about   string
}

// declarations returns the variables that a file declares, and the file without their declarations.
func declarations(root *doc.Node) (all []declaration, rest *doc.Node, faults []Problem) {
	if root.Kind != doc.Map || root.Get(Key) == nil {
		return nil, root, nil
	}
	rest = &doc.Node{Kind: doc.Map, Line: root.Line, Column: root.Column}
	for _, e := range root.Entries {
		if e.Key != Key {
			rest.Entries = append(rest.Entries, e)
			continue
		}
		at := Problem{Line: e.Line, Column: e.Column, Field: Key}
		switch {
		case e.Value.Kind == doc.Null:
		case e.Value.Kind != doc.Map:
			at.Message = "must be a mapping from names to defaults, such as \"replicas: 3\""
			faults = append(faults, at)
		case len(e.Value.Entries) > maxVariables:
			at.Message = fmt.Sprintf("%d variables, at most %d", len(e.Value.Entries), maxVariables)
			faults = append(faults, at)
		default:
			for _, v := range e.Value.Entries {
				d, fault := declare(v)
				if fault != "" {
					faults = append(faults, Problem{v.Line, v.Column, Key + "." + v.Key, fault})
				}
				all = append(all, d)
			}
		}
	}
	return all, rest, faults
}

// declare reads the declaration of one variable. A mapping whose only keys are default and description is
// a declaration with a description; any other value is the default.
func declare(e doc.Entry) (d declaration, fault string) {
	d.Entry = e
	if !namePattern().MatchString(e.Key) {
		return d, "a name of a variable " + nameRule
	}
	if e.Value.Kind == doc.Null {
		return d, ""
	}
	long := e.Value.Kind == doc.Map && len(e.Value.Entries) > 0
	if long {
		for _, f := range e.Value.Entries {
			long = long && (f.Key == "default" || f.Key == "description")
		}
	}
	if !long {
		d.initial = e.Value
		return d, ""
	}
	if about := e.Value.Get("description"); about != nil {
		if about.Kind != doc.String {
			return d, "description: must be text"
		}
		d.about = about.Text
	}
	d.initial = e.Value.Get("default")
	if d.initial != nil && d.initial.Kind == doc.Null {
		return d, "default: has no value; without a default, the value must be given"
	}
	return d, ""
}
