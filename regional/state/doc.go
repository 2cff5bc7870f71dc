// Package state says what a region's committed log means: a deterministic,
// copy-on-write state machine over nodes, jobs, slots and allocations.
//
// Apply changes a State by one Command. Snapshot freezes it into a View in
// constant time; a View never changes and may be read by any goroutine while
// Apply goes on. Entities handed out by a View are shared and must not be
// written to. The package knows no clock, no randomness and no encoding:
// times travel inside commands, ids are made by the proposer, job specs are
// opaque bytes, and the shell encodes Command and Record values.
package state
