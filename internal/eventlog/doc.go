// Package eventlog retains the latest events of one leadership of a server. A client that
// lost its connection resumes after the last event that it received. If later events are
// not retained any more, the client learns that events are missing.
//
//	eventlog.go   Log: add, read from a number, tokens
package eventlog
