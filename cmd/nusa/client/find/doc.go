// Package find has the command `nusa status`, which shows the state of everything, or finds an object by
// its name.
//
//   - command.go: the command
//   - match.go: which objects a text names (pure)
package find
