// Package lease decides what may run while the master is silent, by the state
// of the node's lease and each group's choice for the lease's end. It is pure.
// The arithmetic of the lease is in internal/lease.
//
//	lease.go  the verdict of a group's policy
package lease
