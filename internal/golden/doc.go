// Package golden compares what a test produced with a file that is committed.
// The flag -update of the test rewrites the files.
//
//	golden.go   File for one text, Scripts for files that hold input and output
//	diff.go     the lines that differ
package golden
