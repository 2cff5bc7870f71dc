// Package audit has the commands of `nusa audit`: show, export and verify the audit trail.
//
//   - command.go: the noun, audit list and audit show
//   - verify.go: audit export and audit verify
package audit
