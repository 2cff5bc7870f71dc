// Package world runs whole federations in virtual time on one goroutine: a seed gives a
// world, and the same seed gives the same trace, byte for byte. The decisions are those of
// the shipped cores: global/region, global/place, global/failover, regional/state,
// regional/sched, regional/accept, regional/regionlease, agent/lease, agent/reconcile,
// internal/link. Around them stand copies of the shells, without their I/O. Only Raft,
// etcd and the kernel are modelled.
//
// The invariants are checked by true time, whenever something changes that they depend on: see
// watch.go. A violation names the seed, and the seed replays it.
//
// What the federation stands on:
//
//	raft.go      the model of a region's replicated log
//	kernel.go    supervisors and the processes that they fork
//	machine      hosts, processes, timers, disks and streams in virtual time
//	store        the model of the store of the global tier
//
// The federation:
//
//	world.go     a world and its run; which invariants the planted bugs break; processes of the earlier feature
//	             level, and their upgrade one by one; nodes that are removed
//	life.go      retry policies, arrays and rollouts: their rules in jobs, what must hold, and what
//	             operators do with rollouts
//	jobs.go      jobs, their versions, policies and rollouts; slots and answers between the tiers
//	campaign.go  the election of the active global server
//	global.go    a leadership term and its transactions
//	sessions.go  the sessions of the regions
//	placer.go    plans, and verdicts
//	children.go  the runs of schedules and workflows, and what must hold of them
//	schedules.go schedules, their runs by time, by backfill and by operators
//	flows.go     workflows
//	retries.go   attempts that count in the next region, dead letters, and what must hold of both
//	region.go    the master of a region and its plans
//	uplink.go    a region's session with the global tier
//	nodes.go     a master's sessions with the agents
//	agent.go     an agent, its store and its session
//	runs.go      what the agent's engine does
//
// What happens to it:
//
//	operator.go  operations
//	faults.go    random faults, second processes with the names of others, and scenes: sequences
//	             of faults that chance seldom makes
//	overrides.go jobs that operators stop or scale in one region; what must hold of them, and of rollouts
//	             that go from region to region
//	stages.go    rollouts that go from region to region, and versions that are taken back
//	watch.go     what must always hold, and counts of events
//	checks.go    more of what must hold: leases that are passed on, owners, states that
//	             only advance, and the state at the end
//
// The folder rollout steps one rollout, letters collects dead letters, attempts checks retries, and ends says how a run of
// a workflow must end. The folder many runs many worlds and plants bugs (internal/plant): the
// worlds must find each of them. The command that does both is in the folder simulate.
package world
