// Package health decides when a task is healthy or unhealthy, when to check the task again,
// and which results are reported. It is pure: each result of a check is one step, with the
// clock and a random number as arguments.
//
//	health.go  policy, phases, results and the step
package health
