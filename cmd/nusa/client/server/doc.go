// Package server has the commands of `nusa server`: they list the global servers and
// recover their store.
//
//   - command.go: the noun and server list
//   - recover.go: server recover
package server
