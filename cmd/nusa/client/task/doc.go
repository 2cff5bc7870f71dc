// Package task has the commands `nusa task`: the history of allocations.
//
//   - command.go: list, and the flags that select tasks
//   - show.go: show
package task
