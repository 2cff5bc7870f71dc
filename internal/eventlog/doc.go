// Package eventlog retains the latest events of one leadership of a server. A client that
// lost its connection resumes after the last event that it received. If later events are
// not retained any more, the client learns that events are missing. An election begins a
// new log: a client with a token of the old one gets a reset event and reads the state again.
//
//	eventlog.go   Log: add, read from a number, tokens
package eventlog
