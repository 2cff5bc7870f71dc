// Package health decides from the results of a task's checks when the task is
// healthy or unhealthy, when to check again and which results are reported. It is
// pure: one step for each result, with the clock and a random number as arguments.
//
//	health.go  policy, phases, results and the step
package health
