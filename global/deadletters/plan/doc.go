// Package plan decides about dead letters: which instances have left one, which ones to forget, and what to
// store of a log. It is pure.
//
//	spans.go   sets of instances
//	forget.go  which dead letters to forget
//	tail.go    the end of a log
package plan
