// Package eventlog has what the event logs of all tiers share. A durable event is stored in the
// transaction of the change that it reports, and has a number that grows by one. A client resumes
// after the number of the last event that it received. If later events are gone, the client gets a
// reset event, which says how many.
//
//	event.go      Event and Draft: an event with and without a number
//	record.go     the stored record of the events of a transaction
//	pack.go       compression of the texts of a record
//	window.go     Window: the newest events in memory; gaps in the numbers
//	watch.go      Source: a log of durable events; Watch: follows a log from a token
//	filter.go     Filter: which events a watch wants
//	token.go      tokens: LOG-NUMBER
//	eventlog.go   Log: the latest events of one leadership, in memory only; an election begins
//	              a new log
package eventlog
