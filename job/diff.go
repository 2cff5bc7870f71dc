package job

import (
	"strconv"

	"github.com/nusa-scheduler/nusa/job/doc"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Diff returns the fields that differ between two specs, in the order of the job file. A
// nil spec is a job that does not exist. Call Default on both specs first. Otherwise a
// default that only one of them states counts as a change.
func Diff(old, new *nusav1.JobSpec) []*nusav1.DiffLine {
	before, after := leaves(old), leaves(new)
	was := map[string]string{}
	for _, l := range before {
		was[l.path] = l.text
	}
	is := map[string]bool{}
	var out []*nusav1.DiffLine
	for _, l := range after {
		is[l.path] = true
		if old := was[l.path]; old != l.text {
			out = append(out, &nusav1.DiffLine{Field: l.path, Old: old, New: l.text})
		}
	}
	for _, l := range before {
		if !is[l.path] {
			out = append(out, &nusav1.DiffLine{Field: l.path, Old: l.text})
		}
	}
	return out
}

// leaf is a value without values below it: a scalar, or an empty list or mapping. Its text
// is never empty.
type leaf struct{ path, text string }

func leaves(spec *nusav1.JobSpec) []leaf {
	if spec == nil {
		return nil
	}
	n, err := tree(spec.ProtoReflect())
	if err != nil {
		// A spec that Validate accepts can always be written as a file.
		return []leaf{{"", err.Error()}}
	}
	return appendLeaves(nil, n, "")
}

func appendLeaves(to []leaf, n *doc.Node, path string) []leaf {
	for i, item := range n.Items {
		to = appendLeaves(to, item, path+"["+strconv.Itoa(i)+"]")
	}
	for _, e := range n.Entries {
		to = appendLeaves(to, e.Value, join(path, e.Key))
	}
	switch {
	case len(n.Items) > 0 || len(n.Entries) > 0:
	case n.Kind == doc.List:
		to = append(to, leaf{path, "[]"})
	case n.Kind == doc.Map:
		to = append(to, leaf{path, "{}"})
	case n.Kind == doc.Null:
		to = append(to, leaf{path, "null"})
	case n.Kind == doc.String && n.Text == "":
		to = append(to, leaf{path, `""`})
	default:
		to = append(to, leaf{path, n.Text})
	}
	return to
}
