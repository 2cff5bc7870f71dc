// Package events stores the durable events of the federation. The committer seals the events of a
// transaction into one record, which the transaction stores. The numbers grow by one over all terms.
// Events about changes that no transaction stores wait for the next transaction, and for one of
// their own after a moment.
//
//	log.go     Log: waiting events, the record of a transaction, the newest events in memory
//	read.go    older events, which are read from the store; the load at the beginning of a term
//	index.go   segments of the stored events, and which of them retention removes (pure)
package events
