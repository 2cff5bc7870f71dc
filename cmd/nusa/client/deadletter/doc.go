// Package deadletter has the commands `nusa deadletter`: instances of batch jobs that have failed for good.
//
//   - command.go: list, show, drop
//   - redrive.go: redrive
package deadletter
