// Package eventlog retains the latest events of one leadership of a server. A
// client that lost its connection resumes after the last event it received, or
// learns that events are missing.
//
//	eventlog.go   Log: add, read from a number, tokens
package eventlog
