// Package facts reads the hardware of the host and, every few seconds, its load.
//
//	facts.go  a source of facts that the agents of one process share
package facts
