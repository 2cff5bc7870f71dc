// Package room decides what the federation has room for. It is a pure core: it counts the jobs
// and compares them, and the latest measurement of the store, with limits.
//
//	room.go    Room: what the jobs take, what is left, and which submits are refused
//	trail.go   Trail: records whose oldest ones are removed at a limit
//	shares.go  Shares: the same for records of several owners
package room
