// Package regionlease decides for how long a region may rely on its lease from the global
// tier, and how long its master must wait for the end of earlier leases. The package is
// pure: times are readings of a clock that runs through suspend.
//
//   - regionlease.go: requests and grants of the lease, and the conditions of a grant
//   - limits.go: which lengths of leases the log must record, and when the leases of an
//     earlier incarnation have ended
package regionlease
