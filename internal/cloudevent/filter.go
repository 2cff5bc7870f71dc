package cloudevent

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/internal/expr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Bounds of a filter.
const (
	MaxTypes      = 64
	MaxTypeBytes  = 128
	MaxNamespaces = 64
	// MaxExpression is the longest CEL expression, in bytes.
	MaxExpression = expr.MaxEventFilter
)

// Filter selects events. An event must match all of types, namespaces and the expression. The zero
// Filter selects every event. A Filter is safe for concurrent use.
type Filter struct {
	types      []string
	namespaces []string
	where      *expr.EventFilter
}

// NewFilter compiles a filter. types are types of events; "job.*" matches every type that begins with
// "job.". An empty list, or an empty expression, selects every event. The error is one line, names
// the part, and for an expression the column.
func NewFilter(types, namespaces []string, where string) (*Filter, error) {
	if len(types) > MaxTypes || len(namespaces) > MaxNamespaces {
		return nil, fmt.Errorf("%d types and %d namespaces: the limits are %d and %d", len(types), len(namespaces), MaxTypes, MaxNamespaces)
	}
	for i, t := range types {
		if err := checkType(t); err != nil {
			return nil, fmt.Errorf("types[%d]: %w", i, err)
		}
	}
	for i, n := range namespaces {
		if n == "" || len(n) > MaxTypeBytes {
			return nil, fmt.Errorf("namespaces[%d]: a name has 1 to %d bytes", i, MaxTypeBytes)
		}
	}
	f := &Filter{types: slices.Clone(types), namespaces: slices.Clone(namespaces)}
	if where == "" {
		return f, nil
	}
	var err error
	f.where, err = expr.CompileEvent(where)
	if err != nil {
		return nil, fmt.Errorf("filter: %w", err)
	}
	return f, nil
}

func checkType(t string) error {
	bare := strings.TrimSuffix(t, "*")
	switch {
	case t == "*":
		return nil
	case len(t) > MaxTypeBytes || bare == "":
		return fmt.Errorf("a type has 1 to %d bytes", MaxTypeBytes)
	case strings.Contains(bare, "*"), bare != t && !strings.HasSuffix(bare, "."):
		return fmt.Errorf("%q: a * stands only at the end, after a dot, for example job.*", t)
	case strings.HasPrefix(t, TypePrefix):
		return fmt.Errorf("%q: leave out the prefix %q", t, TypePrefix)
	}
	return nil
}

// Match reports whether an event is selected. If the expression fails on the event, the event is
// not selected, and the error says why.
func (f *Filter) Match(e *nusav1.Event) (bool, error) {
	if len(f.types) > 0 && !slices.ContainsFunc(f.types, func(t string) bool { return matchType(t, e.GetType()) }) {
		return false, nil
	}
	if len(f.namespaces) > 0 && !slices.Contains(f.namespaces, e.GetNamespace()) {
		return false, nil
	}
	if f.where == nil {
		return true, nil
	}
	return f.where.Holds(&expr.Event{
		Type: e.GetType(), Subject: e.GetSubject(), Message: e.GetMessage(), Namespace: e.GetNamespace(),
		Region: e.GetRegion(), Number: int64(e.GetNumber()), Log: e.GetLog(), Time: e.GetTime().AsTime(),
	})
}

func matchType(pattern, kind string) bool {
	prefix, open := strings.CutSuffix(pattern, "*")
	if open {
		return strings.HasPrefix(kind, prefix)
	}
	return pattern == kind
}

// Selection selects the events of a consumer that is an object itself, for example a webhook. Events
// about such objects are selected only if a type names them, so that the failure of one object does not
// cause events to all others. The events about the consumer itself are never selected.
type Selection struct {
	filter  *Filter
	own     bool
	kind    string
	subject string
}

// NewSelection compiles a selection: see NewFilter. kind is the beginning of the types of events about
// such objects, with its dot.
func NewSelection(kind, subject string, types, namespaces []string, where string) (*Selection, error) {
	f, err := NewFilter(types, namespaces, where)
	if err != nil {
		return nil, err
	}
	own := slices.ContainsFunc(types, func(t string) bool { return strings.HasPrefix(t, kind) })
	return &Selection{filter: f, own: own, kind: kind, subject: subject}, nil
}

// Match reports whether an event is selected: see Filter.Match.
func (s *Selection) Match(e *nusav1.Event) (bool, error) {
	if strings.HasPrefix(e.GetType(), s.kind) && (!s.own || e.GetSubject() == s.subject) {
		return false, nil
	}
	return s.filter.Match(e)
}

// Check calls wrong for each part of a new filter that is not valid: types, namespaces or filter. A type that
// no event has is not valid.
func Check(types, namespaces []string, where string, wrong func(part, problem string)) {
	if _, err := NewFilter(types, nil, ""); err != nil {
		wrong("types", err.Error())
	} else if i, why := firstUnknown(types); why != "" {
		wrong("types", fmt.Sprintf("types[%d]: %s", i, why))
	}
	if _, err := NewFilter(nil, namespaces, ""); err != nil {
		wrong("namespaces", err.Error())
	}
	if _, err := NewFilter(nil, nil, where); err != nil {
		wrong("filter", strings.TrimPrefix(err.Error(), "filter: "))
	}
}
