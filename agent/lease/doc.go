// Package lease decides what may run while the master does not renew the lease. The input is
// the state of the node's lease and the policy of a group for the lease's end. It is pure.
// The arithmetic of the lease is in internal/lease.
//
//	lease.go  the verdict of a group's policy
package lease
