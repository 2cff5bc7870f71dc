// Package lease decides what may run under the leases of a node and of its region. It is pure.
// The arithmetic of one lease is in internal/lease.
//
//	lease.go   which leases bind an allocation, and whether it may start or must stop
//	holder.go  the agent's view of both leases, and the numbers of its renewals
//	guard.go   the life of one command under its deadline: fork, renewal, stop, kill
package lease
