// Package world runs whole federations in virtual time on one goroutine: a seed gives a
// world, and the same seed gives the same trace, byte for byte. The decisions are those of
// the shipped cores: global/region, global/place, global/failover, regional/state,
// regional/sched, regional/accept, regional/regionlease, agent/lease, agent/reconcile,
// internal/link. Around them stand copies of the shells, without their I/O. Only Raft,
// etcd and the kernel are modelled.
//
// What must always hold is checked by true time where it changes: see watch.go. A
// violation names the seed, and the seed replays it.
//
// The engine:
//
//	engine.go    true time, the queue of events, randomness, the trace
//	host.go      hosts with clocks that are off, processes, timers, disks
//	net.go       streams that are late and break, cuts
//	etcd.go      the model of the store
//	raft.go      the model of a region's replicated log
//	kernel.go    supervisors and the processes that they fork
//
// The federation:
//
//	world.go     a world and its run; many worlds on all processors
//	jobs.go      jobs, their versions and policies; slots and answers between the tiers
//	campaign.go  the election of the active global server
//	global.go    a leadership term and its transactions
//	sessions.go  the sessions of the regions
//	placer.go    plans
//	failover.go  verdicts
//	region.go    the master of a region and its plans
//	uplink.go    its session with the global tier
//	nodes.go     its sessions with the agents
//	agent.go     an agent, its store and its session
//	runs.go      what the agent's engine does
//
// What happens to it:
//
//	operator.go  operations
//	upgrade.go   processes of the level before, and their upgrade one by one
//	faults.go    faults, and scenes that they seldom make in the right order
//	planted.go   planted bugs (internal/plant); the worlds must find each of them
//	watch.go     what must always hold, and the counts
//	checks.go    more of it: leases that are passed on, owners, states that advance; the end
//
// The command that runs many worlds is in the folder simulate.
package world
