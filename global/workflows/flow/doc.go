// Package flow decides what follows in the run of a workflow: which steps start, wait, are skipped, are tried
// again, time out or end, and how the run ends. Each decision has a reason. It is pure.
//
//	flow.go    Snapshot, Plan
//	decide.go  Decide
//	step.go    what follows for one step
package flow
