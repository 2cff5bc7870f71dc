// Package roster reads and checks the nodes that an operator registers before their agents
// first join. The package is a core. `nusa node register` calls Parse, and package enroll stores the
// nodes.
//
//   - roster.go: Node, Parse and Roster
//   - check.go: Check, for nodes that do not come from Parse
package roster
