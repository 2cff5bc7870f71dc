// Package probe measures round trips to other regions. A pure plan decides which
// region to probe, when and how, and a pure window summarises the samples. The
// Prober and the Responder do the I/O.
//
// A probe is a small UDP packet that is answered by one of the same size, or a
// TCP connect where UDP is blocked. Packets are authenticated with a key that
// the regions of a federation share, numbered within a session, and answered
// once. A response reports which requests of the session arrived, and so in
// which direction the others were lost. With TCP the time of the connect is measured;
// the same packets, sent over the connection afterwards, prove the identity of the
// responder. With keys, a connect without that proof counts as lost; without keys it
// counts with the method "connect". Every response has its method.
//
//	probe.go           methods, peers, the default port
//	plan.go            which peer to probe when, within a budget
//	window.go          the samples of a peer, and the edge (p50, p90, loss, jitter) computed from them
//	wire.go            the packet, and which requests arrived
//	prober.go          the prober: its configuration, peers and edges
//	loop.go            its loop: due and lost probes, changes, its own delay
//	send.go            its probes over UDP and TCP, and their responses
//	responder.go       the responder, and its limits
//	expiring_table.go  a bounded table whose entries expire
//	stamp.go           how long a datagram waited to be read
//	stamp_linux.go     the same from the kernel's time stamps
//	stamp_other.go     the same on systems without them
package probe
