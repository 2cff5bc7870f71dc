// Package roster reads and checks the nodes that an operator registers before their agents
// first join. The package is a core. Only security/join uses the package yet: `nusa node
// register` is to call Parse, and the servers of a region are to store a Roster.
//
//   - roster.go: Node, Parse and Roster
package roster
