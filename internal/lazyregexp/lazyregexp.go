package lazyregexp

import (
	"regexp"
	"sync"
)

// New returns a function that returns the expression, compiled once. The function panics if the
// pattern is malformed. It is safe for concurrent use.
func New(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}
