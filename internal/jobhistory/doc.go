// Package jobhistory finds and compares the stored versions of a job. The global tier uses it for jobs of
// the federation, and a region for its own jobs.
//
//	jobhistory.go  Job: a version by its number or tag; the difference of two; to which one a revert goes back
package jobhistory
