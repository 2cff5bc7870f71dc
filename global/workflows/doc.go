// Package workflows runs the steps of workflows, and serves the Workflows service. A run has one record, and
// each step that was decided about has one of its own. The record of a step and the job that it starts are
// stored in one transaction, so that no server starts a step twice. The end of a step costs time for the steps
// that depend on it, not for all.
//
//	book.go        Book: the runs of one leadership term, in memory
//	definition.go  a workflow in the form that runs need, shared by the runs of one version
//	run.go         run: the state of one run, made from its records
//	bits.go        sets of steps
//	moments.go     when to look at which step of a run
//	loop.go        the loop: it looks at runs whose jobs have changed, and whose times have come
//	turn.go        one plan of a run, carried out in one transaction; the jobs of steps
//	children.go    makes the jobs of steps
//	nested.go      steps that run another workflow
//	payload.go    the payloads of runs, and dispatches
//	outputs.go     the outputs of steps, and the steps that use them
//	letters.go     which failed jobs leave dead letters
//	semaphores.go  which steps hold semaphores, and which wait for them
//	forget.go      forgets old runs
//	service.go     Run, Retry, Approve, Cancel
//	begin.go       begins runs, also for schedules
//	query.go       List, Get, Graph
//	semaphoreservice.go  the Semaphores service
//
// The folder flow decides, and semaphore says who gets units of semaphores.
package workflows
