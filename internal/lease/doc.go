// Package lease holds the arithmetic of a lease at its holder: a duration that
// counts from the sending of the request, so that the lease ends at the holder
// before it ends at the grantor. It is pure.
//
//   - lease.go: the holder, and the state of its lease at a time
//   - over.go: how long a grantor waits until a lease is over, by any clocks
package lease
