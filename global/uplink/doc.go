// Package uplink serves the streams that the masters of regions open to the
// active global server: one session for each region.
//
//	uplink.go   Server: the sessions of one leadership term, leases, the tick
//	session.go  session: one stream, its sender and its receiver
//	outbox.go   messages that wait to be sent, and what a region has read
//	hello.go    how a stream becomes a region's session
//	heal.go     what a region that returns may keep of the slots that it lost
//	receive.go  messages from a region: answers, reports, rows, summaries
//	send.go     messages to a region: orders, asks, origins
//	peers.go    messages about the other regions
//	keys.go     which roots and keys the members of a region should have
//	turns.go    the limit on sessions that send large messages at a time
//	matrix.go   the matrix of round trips as regions get it
//	keyed.go    a lock for each key
package uplink
