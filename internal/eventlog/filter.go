package eventlog

import (
	"fmt"
	"slices"
	"strings"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Bounds of a filter.
const (
	// MaxTypes is the greatest number of types in WatchEventsRequest.types.
	MaxTypes = 64
	// maxFilterText is the length of the longest text in a filter, in bytes.
	maxFilterText = 512
)

// Filter selects events by what the request of a watch says.
type Filter struct {
	types   []string
	subject string
	durable bool
}

// FilterError names the field of a request that has a wrong value.
type FilterError struct{ Field, Message string }

func (e *FilterError) Error() string { return e.Field + ": " + e.Message }

// FilterOf returns the filter of a request, or a *FilterError.
func FilterOf(req *nusav1.WatchEventsRequest) (Filter, error) {
	if n := len(req.GetTypes()); n > MaxTypes {
		return Filter{}, &FilterError{"types", fmt.Sprintf("%d types, at most %d: name the beginning that several types share, such as \"job.\"", n, MaxTypes)}
	}
	for i, t := range req.GetTypes() {
		if t == "" || len(t) > maxFilterText {
			return Filter{}, &FilterError{fmt.Sprintf("types[%d]", i), fmt.Sprintf("%d bytes: name the beginning of a type, in 1 to %d bytes", len(t), maxFilterText)}
		}
	}
	if n := len(req.GetSubjectPrefix()); n > maxFilterText {
		return Filter{}, &FilterError{"subject_prefix", fmt.Sprintf("%d bytes, at most %d", n, maxFilterText)}
	}
	return Filter{types: req.GetTypes(), subject: req.GetSubjectPrefix(), durable: req.GetDurable()}, nil
}

// Match reports whether the filter selects an event. Each filter selects the resets.
func (f Filter) Match(e *nusav1.Event) bool {
	if e.GetReset_() {
		return true
	}
	return (!f.durable || e.GetNumber() > 0) && strings.HasPrefix(e.GetSubject(), f.subject) &&
		(len(f.types) == 0 || slices.ContainsFunc(f.types, func(t string) bool { return strings.HasPrefix(e.GetType(), t) }))
}
