// Package jobstatus derives the state of a job from the counts of its instances. The
// global tier, which adds up the counts of regions, and a region, which counts its own
// instances, use the same rules.
//
//	jobstatus.go   Facts -> Phase (state and summary); texts that both tiers show
//	unknown.go     instances of regions that are cut off: their counts and texts
package jobstatus
