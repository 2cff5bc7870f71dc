// Package retry spaces repeated attempts.
//
//	retry.go  the back-off of every retry of an agent, and a sleep that a context ends
package retry
