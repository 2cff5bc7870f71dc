// Package overview decides what a stream of the present state sends: a snapshot, and after
// that only what has changed noticeably. It is pure. It does not know the messages of the
// stream: package feed makes them.
//
//	entry.go   Entry, Section: what is shown of one object; which changes are noticeable
//	matrix.go  Matrix: the latency matrix in 8 bytes for each pair; noticeable changes; relays
//	view.go    View: everything that one reader sees; Updates: from one view to the next
//	index.go   Index: the names and states of all jobs, and the selections of readers
//	filter.go  Filter: which jobs a reader selects
//
// The folder feed serves the streams. The folder model applies their messages at a reader.
package overview
