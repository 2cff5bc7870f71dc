// Package wan emulates the round trips of a table on loopback, without the rights of root.
// Its sockets delay connects, bytes and datagrams between regions. Regions are
// distinguished by port, so the package works for parts of one process on real sockets,
// and for in-memory networks in virtual time.
//
// A stream is delayed only at the dialling end, in each direction by half of
// table[dialler][listener]. The connect takes a whole round trip. A datagram is delayed at
// its sender by half of table[initiator][other]. The initiator is the socket that sent the
// first datagram between the two sockets. So a probe and its response together take
// table[prober][responder]. Inside a region, and to ports that no region opened, there is
// no delay. Bandwidth is not limited.
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
