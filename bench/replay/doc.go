// Package replay gives a recorded load to the real placer, in virtual time: `nusa bench
// federation --trace`. The regions are emulated, with the free resources of each of their
// nodes. Each region reports every few seconds. As in the global tier, a region is charged
// for the instances that were offered to it since its latest report.
//
//	trace.go    the formats of traces
//	cell.go     one emulated region: its nodes, and its reports
//	replay.go   the federation: jobs arrive, are placed, wait and end
//	result.go   the figures and their table
package replay
