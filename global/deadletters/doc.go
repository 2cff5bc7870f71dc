// Package deadletters stores a dead letter for each instance of a batch job that has no attempts left, and
// serves the DeadLetters service. An attempt of a step of a workflow that is tried again leaves none. When a summary of a region counts failed instances, the loop asks the region
// for them. The result of a job waits for its dead letters, and is stored in one transaction with the latest ones.
//
//	book.go     Book: the records of one leadership term, in memory
//	loop.go     the loop: which regions to ask for which jobs
//	collect.go  the calls to the regions
//	keep.go     stores what the regions returned
//	logs.go     reads and stores the last lines of logs
//	again.go    notes which instances a retry of a workflow runs again
//	forget.go   forgets old dead letters; the alarm
//	service.go  the gRPC service, except redrives
//	redrive.go  redrives
//
// The folder plan decides.
package deadletters
