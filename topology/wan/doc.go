// Package wan makes loopback behave like a given round-trip table, without
// root: the sockets that it hands out delay connects, bytes and datagrams
// between regions. It distinguishes regions by port, so it works for parts of
// one process on real sockets and for in-memory networks in virtual time.
//
// A stream is delayed only at the dialling end, in both directions, by half of
// table[dialler][listener] each; the connect takes a whole round trip. A
// datagram is delayed at its sender by half of table[initiator][other]. The
// initiator is the socket that sent the first datagram between the two, so a
// probe and its reply together measure the prober's own row. Inside a region,
// and to ports that no region opened, there is no delay. Bandwidth is not
// limited.
//
//	wan.go         the emulated network: tables, cuts, losses
//	net.go         the sockets of a region: listen and dial
//	stream.go      a delayed stream
//	packet.go      a delayed packet conn
//	timekeeper.go  wakes sleepers at precise times
//	nap_linux.go   a short sleep in the kernel
//	nap_other.go   the same on other systems
//	azure.go       the published round trips between Azure regions
package wan
