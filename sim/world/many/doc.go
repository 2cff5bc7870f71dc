// Package many runs many worlds on all processors, and looks for worlds that show planted bugs.
//
//   - many.go: many worlds, each on one processor
//   - planted.go: plants the bugs of internal/plant one by one; the worlds must find each of them
package many
