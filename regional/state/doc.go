// Package state says what a region's committed log means: a deterministic,
// copy-on-write state machine over nodes, jobs, slots and allocations.
//
// Apply changes a State by one Command. Snapshot freezes the State into a View in
// constant time. A View never changes and may be read by any goroutine while Apply
// runs. Entities that a View returns are shared and must not be written to. The
// package has no clock, no randomness and no encoding: times travel inside
// commands, the proposer makes ids, job specs are opaque bytes, and the shell
// encodes Command and Record values.
//
// What is stored:
//   - types.go: nodes, jobs, slots, instances and their parts
//   - names.go: reasons, states and other names
//   - alloc.go: allocations, and what many of them share
//   - command.go: commands of the log, their results and errors
//   - snapshot.go: records of a snapshot, and Restore
//
// How it is held and read:
//   - state.go: State and View, nodes and their use
//   - view.go: groups, slots, instances and allocations of a View
//   - jobs.go: versions of jobs, and the region's own jobs
//   - ids.go: allocations by id
//   - instances.go: the instances of a group with their attempts, and their counts
//
// How commands change it:
//   - apply.go: Apply, and the transaction that all commands share
//   - allocs.go: storing and charging allocations; what an end means: reschedule
//     attempts and back-off
//   - nodes.go: registration, status, cordon, drain and removal of nodes
//   - slots.go: slot orders, and slots that are given back
//   - plan.go: storing the placements of a plan, or refusing those that no longer hold
//   - reports.go: applying the reports of agents
//   - local.go: submits and stops of the region's own jobs
//   - federation.go: what the region knows of its federation, and limits of its leases
//   - purge.go: removal of what has ended
package state
