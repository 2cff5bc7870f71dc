// Package history says which jobs have ended and left memory, and in which order a list shows all
// jobs. It knows jobs by "namespace/name".
//
//	history.go  History: an entry for each job that has left memory
//	names.go    Names: the names of all jobs, sorted
package history
