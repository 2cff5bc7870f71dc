// Package history keeps a short entry for each job that has ended and left memory, and the order in
// which a list shows all jobs. It names jobs by "namespace/name".
//
//	history.go  History: the entries of the jobs that have left memory
//	read.go     how stored entries are read while jobs come and go
//	names.go    Names: the names of all jobs, sorted
package history
