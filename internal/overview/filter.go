package overview

import "strings"

// Filter selects jobs.
type Filter struct {
	// Namespace is the only namespace. "": all that May allows.
	Namespace string
	// Search is a part of the names.
	Search string
	// States are the only states, as bits. 0: all.
	States uint64
	Labels map[string]string
	// Region is the only region.
	Region string
	// After is the key of the job after which the selection begins.
	After string
	// Limit is the greatest number of jobs that the reader sees.
	Limit int
	// May reports whether the reader may see the jobs of a namespace. nil: all.
	May func(namespace string) bool
}

// Key returns the key of a job, in whose order jobs are shown.
func Key(namespace, name, region string) string { return namespace + "\x00" + name + "\x00" + region }

// CutKey returns the parts of a key.
func CutKey(key string) (namespace, name, region string) {
	namespace, rest, _ := strings.Cut(key, "\x00")
	name, region, _ = strings.Cut(rest, "\x00")
	return namespace, name, region
}

// Facts are what a filter reads of a job beyond its key.
type Facts interface {
	Labels() map[string]string
	// In reports whether the job has instances in a region.
	In(region string) bool
}

// Reads reports whether the filter reads facts.
func (f *Filter) Reads() bool { return len(f.Labels) > 0 || f.Region != "" }

// matches reports whether the filter selects a job, without regard to After and Limit.
func (f *Filter) matches(key string, state uint8, facts Facts) bool {
	namespace, name, _ := CutKey(key)
	switch {
	case f.Namespace != "" && f.Namespace != namespace, f.Search != "" && !strings.Contains(name, f.Search),
		f.States != 0 && f.States>>state&1 == 0, f.May != nil && !f.May(namespace):
		return false
	case !f.Reads():
		return true
	case facts == nil, f.Region != "" && !facts.In(f.Region):
		return false
	}
	has := facts.Labels()
	for k, v := range f.Labels {
		if got, ok := has[k]; !ok || got != v {
			return false
		}
	}
	return true
}
