// Package server has the commands of nusa server: the global servers, and the recovery of
// their store.
//
//   - command.go: the noun and server list
//   - recover.go: server recover
package server
