// Package wait pauses a goroutine until a time or the end of a context.
//
//	wait.go   For
//	pace.go   Pace: actions at once after a quiet time, then at most once in an interval
package wait
