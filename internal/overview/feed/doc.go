// Package feed serves the streams of Overview.Watch at both tiers. All streams of a server
// share one computation of the present state, at most once in each interval. Nothing is
// computed without a stream.
//
//	hub.go      Hub: the streams and the state that they share
//	watch.go    one stream
//	request.go  requests, with their bounds and errors
//	sight.go    what a caller may see
//	entries.go  messages to entries of package overview
//	region.go   regions of the API as regions of the stream
//	cells.go    the matrix of a topology
//	send.go     from package overview to the messages of the stream
//	jobs.go     the index of jobs, and the selections of the streams
//	nodes.go    the nodes of another region, through its own stream
package feed
