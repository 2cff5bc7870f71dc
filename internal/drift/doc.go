// Package drift compares what a tier should have with what it has. It is pure.
//
//   - drift.go: Compare, Lasting
package drift
