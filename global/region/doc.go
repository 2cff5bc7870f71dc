// Package region is the state of one region as the global tier sees it: which stream is
// the region's session, which lease the region holds, and how its answers change its
// slots. It is pure: states and events go in, states and effects come out, and times
// are readings of the caller's monotonic clock.
//
//	slot.go      the stored slot, the answer and the change
//	answer.go    what an answer changes; stop and revoke of a part of a slot
//	former.go    former owners: their orders and answers, and who gets a slot next
//	takeover.go  the slot of a lost region at its new owner
//	session.go   the step function of streams and leases; it grants the region's lease
//	refuse.go    which streams are refused, and whether a log or the store is an old copy
//	terms.go     what earlier leadership terms may have written
//	effect.go    what the caller has to do after a step
//	silence.go   whether a region counts as cut off
package region
