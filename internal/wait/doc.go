// Package wait pauses a goroutine that a context can end.
//
//	wait.go   For
//	pace.go   Pace: at once after a quiet time, then at most once in an interval
package wait
