// Package logtap lets operators follow what a process logs, live and at a level of their own,
// after the latest records.
//
//   - tap.go: followers, and their bounded queues
//   - handler.go: the slog.Handler that gives records to followers
//   - service.go: the gRPC calls of a process for its own log
package logtap
