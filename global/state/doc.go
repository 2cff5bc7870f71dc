// Package state holds what the active global server knows, under one lock, and
// the one writer that changes the durable part of it in the store. A new State
// is loaded for each leadership term.
//
//	state.go       State: all jobs, regions and sets of work, and the lock
//	job.go         Job: a job with its slots and summaries
//	jobrecord.go   Record: a stored job whose spec stays encoded
//	region.go      Region and its live Session; its orders
//	apply.go       from stored records to the state, and to the orders of regions
//	load.go        the beginning of a term: its number, whether the store is an old copy,
//	               and the load of all records
//	summary.go     regions' summaries of jobs, disconnected instances; Events: the event log of the term
//	checkpoint.go  Checkpoints: summaries stored from time to time
//	committer.go   Committer: the one writer (except for load.go, at the beginning of a term); it
//	               writes waiting submits and other changes in batches, one transaction each;
//	               it compares the election key, so a second server cannot write
//	tx.go          Tx: the state with the changes of a transaction laid over it
//	records.go     Tx: jobs, slots, regions and the leadership term
//	submit.go      Tx: a new version of a job; refuses a submit without room for it
//	history.go     how jobs that have ended leave memory, and how they return
//	recall.go      the records of jobs in the history that were read recently; watches of such jobs;
//	               a term that serves before the history is read
//	audit.go       Tx: audit records, those of regions, and idempotency records
//	sets.go        what each region gets a copy of: origin records, and who may do what; webhooks;
//	               rules with labels or domains that no region has
//	keys.go        keys and values of the store
//	convert.go     stored slots (proto/nusa/v1/job.proto: Slot); slots, answers, sessions, reasons and terms from and to protobuf
//	toplace.go     jobs and regions as package place takes them
//	rollout.go     the rollout of a job: how far it is, for package place and for users; its beginning
//	demand.go      Demand: what groups ask for, for the regions' reports; drivers that no region has, and
//	               config of plugins that every region refuses
//	unplaced.go    Decision: the latest decision about a group; used attempts; groups with instances
//	               without a region; released instances; Refusal: what regions gave back, and how
//	               long no offer follows
//	failover.go    when the slots of a silent or lost region may move, what a recovery stops and starts
//	status.go      a job's status from slots and summaries
package state
