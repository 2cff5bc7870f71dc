// Package mint makes the certificates of all members of a federation in one process: for
// tests, benchmarks, and a federation on one machine. A real federation keeps the root away from
// its members, see `nusa ca` and security/enroll.
//
//   - mint.go: the root, the regions' authorities, and the members' credentials
package mint
