// Package place decides which slots go to which region. It turns one snapshot
// of jobs, regions and distances into one printable plan with reasons. It is
// pure: equal snapshots give equal plans, and a snapshot without work gives an
// empty plan.
//
// The input and the output:
//
//	snapshot.go      the snapshot: regions, jobs, groups, near clauses
//	ask.go           what one instance needs of a node, and the hash of that
//	plan.go          the plan: actions, explanations, reasons, and its text
//
// The planner:
//
//	planner.go       MakePlan: the order in which jobs are decided
//	job.go           what the slots of a job need: update, stop, revoke
//	rollout.go       in which order regions get a new version, which wait, and
//	                 whether a version is kept or reverted; in an order that a job states
//
// The values that the planner works with:
//
//	evaluate.go      the evaluator: how every region suits one group
//	filter.go        its hard filters, the text of each refusal, and its memory of
//	                 rejected and returned work
//	score.go         its score, and the order of regions with equal scores
//	ledger.go        its account of capacity that is assumed to be taken, also from
//	                 plan to plan
//	near.go          its distances for near clauses, and how one region meets each
//	work.go          one group while it is being placed, and its candidate regions
//	placer.go        the placer: offers instances to the best candidates, canaries in the order
//	                 of a job, and asks a region to hold an instance that fits nowhere
//	divide.go        the rule of a group, and how instances are divided among regions
//	colocate.go      groups that must share their regions
//	mover.go         the mover: moves instances because of latency
//	index.go         scores of regions that are kept from plan to plan; finds the best
//	                 regions for a new group without looking at every region
//	reclaim.go       the reclaimer: revokes instances of disconnected nodes, keeps room
//	                 for them, and places them
//	drain.go         the drainer: moves instances out of draining regions
//	failback.go      the returner: lets slots return to where a verdict took them
//	takeover.go      the taker: moves slots of lost regions to their new owners; vacant slots
//	explain.go       the explainer: why each region was taken or refused
//
// Decisions beside the plan, over the same snapshot:
//
//	breach.go        whether instances keep their required latency bounds
//	probe_demand.go  which pairs of regions should be probed more often
//
// The folder rank keeps the scores of regions between plans, and finds the regions with the greatest.
package place
