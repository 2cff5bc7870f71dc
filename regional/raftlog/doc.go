// Package raftlog is the replicated log of a region. All commands go into the log through
// one sequencer. A state machine applies them on every server.
//
//	sequencer.go    the goroutine of a leadership that proposes commands
//	pending.go      a plan that is proposed one entry at a time, and when its rest is dropped
//	speculative.go  the state with all entries in flight, and their predicted results
//	fsm.go          the committed state, as Raft sees it; writes and reads snapshots
//	at.go           the state at one index, and its digest
//	compare.go      whether all servers hold the same state at one index
//	verifier.go     proof, by a quorum, that this server still leads
//	status.go       the errors of the log and of the state as gRPC statuses
//	codec.go        the format of log entries and snapshots: version byte, msgpack
//	msgpack.go      the encoder of commands and records
//
// The folder logtest has the Raft log of one server, for tests.
package raftlog
