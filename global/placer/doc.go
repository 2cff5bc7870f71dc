// Package placer is the shell around package place on the active global server:
// it takes snapshots of the state, has the plans made, and writes the plans'
// actions.
//
//	placer.go    Placer: the loop that plans whenever something has changed
//	due.go       which jobs the next plan has
//	submit.go    offers of new jobs, in the transaction of their submit
//	snapshot.go  the snapshot that a plan is made from
//	record.go    what is kept of a plan: decisions, moves, rollout waits
//	explained.go stored explanations, bounded by the verdicts about regions
//	breach.go    near rules over time: breaches, and which round trips to probe
//	rollout.go   auto_revert: healthy versions and reverts
//	progress.go  how far rollouts are, and their deadlines
//	drain.go     which jobs leave draining regions or return, and the progress of that
//	former.go    former owners of slots that have nothing to confirm
//	end.go       purges of stopped jobs and results of jobs that ended
//	dryrun.go    a plan for a job that is not stored, with counts that regions give for it
//	explain.go   the latest decisions about a job, as Explain shows them
//	queue.go     the places of groups that wait for a region
//	outlook.go   where the instances of regions that are cut off would move
package placer
