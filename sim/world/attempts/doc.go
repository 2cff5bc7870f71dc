// Package attempts checks the attempts of instances by their retry policies. It reads the policies itself, so that a
// fault of package retry shows.
//
//   - checker.go: the failures of instances, and what may follow
package attempts
