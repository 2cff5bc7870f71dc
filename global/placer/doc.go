// Package placer is the shell around package place on the active global server:
// it takes snapshots of the state, has the plans made, and writes the plans'
// actions.
//
//	placer.go    Placer: the loop that plans whenever something changed
//	submit.go    what is decided together with a submit, in one transaction
//	snapshot.go  what a plan depends on
//	record.go    what is remembered of a plan: decisions, moves, rollout waits
//	explained.go stored explanations, bounded by the verdicts about regions
//	breach.go    near rules over time: breaches, and which round trips to probe
//	rollout.go   auto_revert: healthy versions and reverts
//	drain.go     which jobs leave draining regions or return, and how far that is
//	former.go    former owners of slots that have nothing to confirm
//	end.go       purges of stopped jobs and results of jobs that ended
//	dryrun.go    a plan for a job that is not stored; questions to regions
//	explain.go   the latest decisions about a job, as Explain shows them
//	outlook.go   where the instances of regions that are cut off would move
package placer
