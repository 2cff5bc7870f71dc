// Package lease holds the arithmetic of leases. At the holder the duration of a lease counts from
// the moment at which the request was sent. So the lease ends at the holder before it ends at the
// grantor. The package is pure.
//
//   - lease.go: the holder, and the state of its lease at a time
//   - over.go: how long a grantor waits until a lease is over, when clocks run at different rates
package lease
