// Package tasks keeps the history of a region's allocations: one record for each allocation, with every
// state and its time. It is a folder beside the log of each server. The events of the log's state
// (state.Events) fill it, so every server of the region has the same history, and neither an election nor
// a restart loses one. A server that misses events, because the log gave it a snapshot, stores where its
// history has a gap, and copies the gap from another server.
//
// A journal gets a small piece for each event. When enough allocations have ended, their records become
// segments: files that never change, each with an index. Retention removes whole segments.
//
//	fold.go      what an event changes in a record; two copies of a record become one
//	encode.go    the pieces of a record
//	terms.go     the index terms of a record and of a request
//	bits.go      sets of the records of a segment
//	journal.go   the journal: frames with checksums
//	recent.go    what memory has of the records in the journal
//	segment.go   a segment, and what a reader finds in it
//	seal.go      writes segments and the next journal; removes old segments
//	store.go     Store: the open files, the position in the events, the gaps
//	open.go      opens the files, and sets damaged ones aside
//	write.go     adds the events after the position
//	gap.go       notes a gap, and completes records from the log's state after it
//	read.go      List and Find
//	tail.go      the events that wait for the disk
//	recorder.go  Recorder: the goroutine that writes
//	copy.go      fills gaps from another server of the region
//	service.go   the Tasks service of a region
package tasks
