// Package master holds an agent's sessions with the servers of its region. One session is
// with the master and carries orders and reports. A second session is with another server.
// From that server the agent learns the next master at once.
//
//	pool.go     the two slots for sessions, the known servers, the address of the master
//	contact.go  warnings while no server can be reached
//	session.go  one stream: dial, loop, the messages that the agent sends
//	receive.go  the messages that a server sends
//	reports.go  the latest report of each allocation, until the master has it
//	metrics.go  counters for /metrics
package master
