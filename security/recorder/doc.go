// Package recorder says who makes a gRPC call, for the audit trail, and collects entries about
// calls that change nothing.
//
//   - recorder.go: the caller of a call
//   - queue.go: Queue: entries that are written together, a moment later
package recorder
