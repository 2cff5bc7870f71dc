// Package regionlease decides for how long a region may rely on its lease from the
// global tier, and how long its master must wait for leases of its predecessors. It is
// pure: times are readings of a clock that runs through suspend.
//
//   - regionlease.go: the lease: requests, grants, and what a grant rests on
//   - limits.go: the lengths of leases that the log must have, and when leases of an
//     earlier incarnation are over
package regionlease
