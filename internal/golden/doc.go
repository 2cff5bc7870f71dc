// Package golden compares a text that a test produced with a committed file. The test flag
// -update rewrites the files.
//
//	golden.go   File for one text, Scripts for files that hold input and output
//	diff.go     the lines that differ
package golden
