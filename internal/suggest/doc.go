// Package suggest finds the known name that a mistyped name probably means, for "did you
// mean" in error messages.
//
//   - suggest.go: the edit distance and the nearest name
package suggest
