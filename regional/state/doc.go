// Package state defines the meaning of a region's committed log. It is a deterministic,
// copy-on-write state machine over nodes, jobs, slots and allocations.
//
// Apply changes a State by one Command. Snapshot freezes the State into a View in constant
// time. A View never changes, and any goroutine may read it while Apply runs. Entities that
// a View returns are shared and must not be changed. The package has no clock, no
// randomness and no encoding. Times come with the commands, the proposer makes ids, job
// specs are opaque bytes, and package raftlog encodes Command and Record values.
//
// What is stored:
//   - types.go: nodes, jobs, slots, instances and their parts
//   - names.go: reasons, states and other names
//   - alloc.go: allocations, and the values that many of them share
//   - command.go: commands of the log, their results and errors
//   - snapshot.go: records of a snapshot, and Restore
//
// How the state is held and read:
//   - state.go: State and View, nodes and their use
//   - view.go: groups, slots, instances and allocations of a View
//   - jobs.go: versions of jobs, and the region's own jobs with their earlier versions
//   - ids.go: allocations by id
//   - instances.go: the instances of a group with their attempts, and their counts
//
// How commands change the state:
//   - apply.go: Apply, and the transaction that all commands share
//   - allocs.go: stores and charges allocations, and records the end of an attempt: reschedule
//     attempts and back-off
//   - nodes.go: registration, status, cordon, drain and removal of nodes
//   - healthy.go: how long an instance must be up before it counts as running
//   - slots.go: slot orders, and slots that are given back
//   - plan.go: stores the placements and other changes of a plan, or refuses those that are no longer valid
//   - reports.go: applies the reports of agents
//   - local.go: submits and stops of the region's own jobs, and which earlier versions stay
//   - overrides.go: what an operator of the region stops or scales of a job of the federation
//   - federation.go: the numbers that the region knows about its federation, limits of its leases, and which
//     agents know the leases that bind their allocations
//   - documents.go: values that other parts of the server store in the log
//   - audit.go: the region's audit trail
//   - events.go: the region's latest events, which Apply derives from the commands
//   - purge.go: removes ended allocations, unused job versions and expired keys
//
// The folder persist has the persistent collections of the State. The folder retry decides what follows a
// failed attempt.
package state
