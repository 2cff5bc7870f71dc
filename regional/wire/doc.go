// Package wire converts between the values of a region's state and protobuf. It
// makes no decisions and starts no goroutines.
//
// The most frequent messages of agents and clients are read and written field by field,
// without the generated code, which takes 4 to 8 times as long: orders, reports,
// statistics, and the specs of submitted jobs.
//
//	convert.go       values of the state to messages, and back
//	reasons.go       why instances have no node after a plan
//	job.go           specs, node inventories and shapes to values of the state
//	codec.go         the gRPC codec, and messages that stay encoded
//	submit.go        a submit request that stays encoded
//	speccache.go     the results of parsing specs
//	orders.go        the encoder of orders
//	agentmessage.go  the envelope of an agent's message
//	reports.go       the decoder of reports
//	stats.go         the decoder of a node's statistics
//	scan.go          the reader of encoded fields
//	fields.go        the numbers of the fields that are handled by hand
package wire
