// Package state holds what the active global server knows, under one lock, and
// the one writer that changes the durable part of it in the store. A new State
// is loaded for each leadership term.
//
//	state.go       State: all jobs, regions and sets of work, and the lock
//	job.go         Job: a job with its slots, summaries and decisions
//	jobrecord.go   Record: a stored job whose spec stays encoded
//	region.go      Region and its live Session
//	apply.go       from stored records to the state, and to the orders of regions
//	load.go        the beginning of a term: its number, and all records
//	summary.go     regions' summaries of jobs, disconnected instances
//	checkpoint.go  Checkpoints: summaries stored from time to time
//	committer.go   Committer: the one durable write; its election key stops a second server
//	tx.go          Tx: the state with the changes of a transaction laid over it
//	records.go     Tx: jobs, slots, regions and the leadership term
//	submit.go      Tx: a new version of a job, durable once the committer has written it
//	audit.go       Tx: audit records and idempotency records
//	origins.go     Origins: origin records and their table
//	keys.go        keys and values of the store
//	convert.go     slots, answers, sessions, reasons and terms from and to protobuf
//	toplace.go     jobs and regions as package place takes them
//	demand.go      Demand: what groups ask for, for the regions' reports
//	unplaced.go    groups with instances without a region; released instances
//	refusal.go     Refusal: what regions gave back, its back-off, how long it counts
//	rollout.go     whether a version is healthy, and how far its rollout is
//	failover.go    when the slots of a silent or lost region may move, and what a recovery stops
//	status.go      a job's status from slots and summaries
//	events.go      Events: the event log of the term
package state
