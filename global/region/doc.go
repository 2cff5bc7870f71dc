// Package region is the state of one region as the global tier sees it: which
// stream speaks for it, what lease it holds, and what its answers change in the
// slots it owns. It is pure: states and events go in, states and effects come
// out, and times are readings of the caller's monotonic clock.
//
//	slot.go      the stored slot, the answer and the change
//	answer.go    what an answer changes; stop and revoke of a part of a slot
//	session.go   the step function of streams and leases
package region
