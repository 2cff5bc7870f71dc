// Package wait pauses a goroutine until a time or the end of a context.
//
//	wait.go   For; Ticks: a loop that runs at each interval
//	pace.go   Pace: actions at once after a quiet time, then at most once in an interval
package wait
