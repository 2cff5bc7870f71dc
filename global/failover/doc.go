// Package failover decides when a silent region is lost, and when each of its slots may
// move to another region. It turns one snapshot into one printable plan with reasons. It is
// pure. It gets only durations, which the caller counts on its own clock since the present
// server became active. So after each election every wait starts again: it can only get
// longer.
//
//	snapshot.go   the snapshot: regions, and the slots of silent and lost regions
//	decide.go     Decide: verdicts, due slots, and why other slots stay
//	heal.go       what a region that returns may keep
//	massloss.go   too many regions fall silent together: no verdict, an alarm
//	plan.go       the plan and its text
//
// A verdict raises the region's fence and marks it lost. The slots of a lost region move
// when each of them is due, as far as package place finds room.
package failover
