// Package failover decides when a silent region is lost, and when which of its slots may
// move to other regions. It turns one snapshot into one printable plan with reasons. It is
// pure, and it knows no times but durations that the caller counted on its own clock
// within the life of the present active server. So after each election everything counts
// again from the start, which is longer and never shorter.
//
//	snapshot.go   the snapshot: regions, and the slots of silent and lost ones
//	decide.go     Decide: verdicts, due slots, and why the others stay
//	heal.go       what a region that returns may keep
//	massloss.go   too many regions fall silent together: no verdict, an alarm
//	plan.go       the plan and its text
//
// A verdict raises the region's fence and marks it lost. The slots of a lost region move
// when each of them is due, as far as package place finds room.
package failover
