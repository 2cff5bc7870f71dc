// Package metrics stores the values that a region's servers measured over time while they
// were the master.
//
//	kinds.go     the kinds of series and their fields
//	store.go     the file of a server
//	recorder.go  the goroutine of a master that adds values to the file
package metrics
