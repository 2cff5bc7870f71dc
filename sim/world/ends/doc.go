// Package ends says how a run of a workflow must end, by the ends of its steps. It reads the conditions itself, so that
// a fault of the packages flow and steps shows.
//
//   - ends.go: the conditions of steps, and the outcome of a run
package ends
