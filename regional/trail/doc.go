// Package trail is what a server knows about the audit trail of its region beyond the log: what the
// global tier has stored of the trail, and how long entries are kept.
//
//   - trail.go: Trail: completes the entries of commands; the next entries for the global tier
package trail
