// Package network lets every role open sockets by three functions from its configuration
// instead of calls to package net. The same code then runs on the host's sockets, on an
// emulated WAN (topology/wan) and in virtual time (sim).
//
//   - network.go: the three functions, and the host's sockets
package network
