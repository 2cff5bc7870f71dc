// Package alloc has the commands of `nusa alloc`: list and show instances, stop them, read
// their logs, and run commands in them. It also has `nusa job logs`, which shows the same
// logs.
//
//   - command.go: the noun
//   - find.go: the allocations that an argument names
//   - list.go: alloc list, and the table of allocations
//   - status.go: alloc status and alloc stop
//   - stats.go: alloc stats
//   - logs.go: alloc logs and job logs
//   - logprinter.go: lines of several tasks, each line after the name of its task
//   - exec.go: alloc exec
//   - operate.go: alloc restart, alloc signal
//   - files.go: alloc fs ls, cat
//   - copy.go: alloc fs cp
package alloc
