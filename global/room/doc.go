// Package room decides what the federation has room for. It is a pure core: it counts the jobs
// and compares them, and the latest measurement of the store, with limits.
//
//	room.go    Room: what is counted, and the submits that there is no room for
//	trail.go   Trail: records of which the oldest have to go
package room
