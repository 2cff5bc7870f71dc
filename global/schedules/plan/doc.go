// Package plan decides which runs of a schedule begin and which stop. It is pure.
//
//	step.go   Step: from the state, the time and the runs to the next state and what to do
//	name.go   the names of runs; the jitter of a time
package plan
