// Package lease decides what may run while the master is silent. It holds the
// arithmetic of a lease that its holder counts from the sending of the request,
// and each group's choice for the lease's end. It is pure.
//
//	lease.go  the holder of the lease, and the verdict of a group's policy
package lease
