// Package wire converts between the values of a region's state and protobuf.
// It holds no decision and starts no goroutine.
//
// What agents and clients send and receive most often is read and written field
// by field, without generated messages: orders, reports, statistics, and the
// specs of submitted jobs. The field numbers are named in the files that use
// them.
//
//	convert.go       values of the state to messages, and back
//	job.go           job specs, node inventories and shapes to values of the state
//	codec.go         the gRPC codec: messages that stay encoded
//	speccache.go     what the specs of submitted jobs come to, by their bytes
//	orders.go        the orders of a batch, encoded for an agent
//	agentmessage.go  the envelope of an agent's message
//	reports.go       an agent's reports
//	stats.go         a node's statistics
//	scan.go          the reader of encoded fields
package wire
