// Package retry has the pauses between repeated attempts.
//
//	retry.go  the back-off of every retry of an agent, and a sleep that ends with a context
package retry
