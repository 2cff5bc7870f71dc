// Package jobstatus derives the state of a job from the counts of its
// instances: the same rules for the global tier, which sums up regions, and for
// a region, which sums up its own instances.
//
//	jobstatus.go   Facts -> Phase (state and summary); texts that both tiers show
//	unknown.go     instances of regions that are cut off: their counts and texts
package jobstatus
