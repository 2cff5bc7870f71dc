// Package failover measures how a federation of separate processes moves the work of a
// region that is cut off: `nusa bench failover`.
//
//	failover.go  options, and the rounds of a measurement
//	fleet.go     the processes: one global server, regions of one server and one agent
//	proxy.go     the connection of a region to the global tier, which can be cut
//	task.go      the measured task: a process that writes the time each 10 ms
//	timeline.go  when each instance ran where, and what follows from that
//	result.go    the figures, and their table
//	scale.go     a global server and many emulated regions
//	moves.go     one lost region with many instances: its instances in other regions
//	cost.go      what the silence of many regions costs the server
package failover
