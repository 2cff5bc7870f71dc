// Package replay gives a recorded load to the real placer, in virtual time: `nusa bench
// federation --trace`. The regions are emulated down to the free room of their nodes. Each
// reports every few seconds; what it was given since then is charged, as in the global tier.
//
//	trace.go    the formats of traces
//	cell.go     one emulated region: its nodes, and its reports
//	replay.go   the federation: jobs arrive, are placed, wait and end
//	result.go   the figures and their table
package replay
