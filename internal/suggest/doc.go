// Package suggest names what exists, in messages about a name that does not exist: the known
// name that a mistyped name probably means, or a short list of the known names.
//
//   - suggest.go: the edit distance, the nearest name, and lists of names
package suggest
