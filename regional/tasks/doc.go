// Package tasks keeps the history of a region's allocations: one record for each allocation, with every
// state and its time. It is a file beside the log of each server. The events of the log's state
// (state.Events) fill it, so every server of the region has the same history, and neither an election nor
// a restart loses one. A server that misses events, because the log gave it a snapshot, stores where its
// history has a gap, and copies the gap from another server.
//
//	fold.go      what an event changes in a record; two copies of a record become one
//	terms.go     the index terms of a record and of a request
//	file.go      the database: open, set aside, close; panics of damaged pages
//	store.go     Store: the open file, its position in the events, its gaps
//	write.go     adds the events after the position in one transaction
//	gap.go       notes a gap, and completes records from the log's state after it
//	trim.go      removes old records
//	read.go      List and Find
//	tail.go      the events that wait for the disk
//	recorder.go  Recorder: the goroutine that writes
//	copy.go      fills gaps from another server of the region
//	service.go   the Tasks service of a region
package tasks
