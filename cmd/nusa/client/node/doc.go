// Package node has the commands of `nusa node`: show nodes, drain, cordon and remove them.
//
//   - command.go: the noun, and node remove
//   - list.go: node list
//   - status.go: node status
//   - drain.go: node drain, cordon and uncordon
//   - history.go: node history
//   - ban.go: node ban and unban
//   - members.go: node members
//   - register.go: node register and unregister
package node
