// Package wire converts between the values of a region's state and protobuf. It
// makes no decisions and starts no goroutines.
//
// The most frequent messages of agents and clients are orders, reports, statistics, and
// submits of jobs. The package reads and writes them field by field, because the generated
// code takes 4 to 8 times as long.
//
//	convert.go       values of the state to messages, and back
//	reasons.go       why instances have no node after a plan
//	job.go           converts specs, node inventories and shapes to values of the state
//	codec.go         the gRPC codec, and messages that stay encoded
//	submit.go        a submit request that stays encoded
//	speccache.go     the results of parsing specs
//	orders.go        the encoder of orders
//	agentmessage.go  the envelope of an agent's message
//	reports.go       the decoder of reports
//	stats.go         the decoder of a node's statistics
//	pools.go         policies of node pools, and their documents in the log
//	scan.go          reads the fields of an encoded message
//	fields.go        the numbers of the fields that are read and written by hand
package wire
