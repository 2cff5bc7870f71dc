// Package schedules begins the runs of jobs with a schedule and of jobs that are dispatched, and serves
// the Schedules service. A run is a batch job of its own. Its job, its record and the record of the
// schedule are stored in one transaction, so that no other server begins the run again.
//
//	book.go      Book: the records of one leadership term, in memory
//	loop.go      the loop: it looks at jobs that have changed, and at schedules whose times have come
//	step.go      calls plan.Step, and stores what follows; forgets old runs, and schedules of jobs that do
//	             not exist
//	facts.go     what is known of a schedule and its runs, in the form of package plan
//	run.go       the job of a run
//	child.go     jobs of runs that another package begins; stops and forgets jobs of runs
//	workflow.go  the runs of workflows, which another package begins
//	service.go   the gRPC service, except lists and dispatches
//	list.go      lists
//	dispatch.go  dispatches
//
// The folder plan decides.
package schedules
