// Package glob compares names with patterns. In a pattern, * is any text (also none), and ? is
// one byte. All other bytes stand for themselves, and a slash is like any other byte.
//
//   - glob.go: Match and Check
package glob

import (
	"fmt"
	"strings"
)

// MaxPattern bounds a pattern, in bytes.
const MaxPattern = 255

// Match reports whether the whole name matches a pattern. It takes at most
// len(pattern)*len(name) steps and no memory.
func Match(pattern, name string) bool {
	p, n := 0, 0
	star, from := -1, 0 // the last * of the pattern that was passed, and the first byte after its text
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, from = p, n
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == name[n]):
			p++
			n++
		case star >= 0:
			from++
			p, n = star+1, from
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// All reports whether every name matches a pattern.
func All(pattern string) bool { return pattern != "" && strings.Trim(pattern, "*") == "" }

// Check returns an error if a text is no pattern: patterns have 1 to MaxPattern visible bytes
// of ASCII.
func Check(pattern string) error {
	if pattern == "" || len(pattern) > MaxPattern {
		return fmt.Errorf("pattern %.40q has %d bytes, allowed are 1 to %d", pattern, len(pattern), MaxPattern)
	}
	for i := range len(pattern) {
		if c := pattern[i]; c <= ' ' || c > '~' {
			return fmt.Errorf("pattern %q has the byte %#x: use letters, digits, signs, * and ?", pattern, c)
		}
	}
	return nil
}
