// Package probe measures round trips to other regions. A pure Plan decides which region to
// probe, when and how. A pure Window summarises the samples. The Prober and the Responder
// do the I/O.
//
// A probe is a small UDP packet. The response has the same size. If UDP is blocked, a
// probe is a TCP connect. Packets are authenticated with a key that the regions of a
// federation share. They are numbered within a session, and each request gets at most one
// response. A response reports which requests of the session arrived, which shows in which
// direction the other packets were lost. With TCP the time of the connect is measured.
// Then the same packets, sent over the connection, prove the identity of the responder.
// With keys, a connect without that proof counts as lost. Without keys, it counts as the
// method "connect".
//
//	probe.go           methods, peers, the default port
//	plan.go            which peer to probe when, within a budget
//	window.go          the samples of a peer, and the edge (p50, p90, loss, jitter) computed from them
//	wire.go            the packet, and which requests arrived
//	prober.go          the prober: its configuration, peers and edges
//	loop.go            its loop: due and lost probes, changes, its own delay
//	send.go            its probes over UDP and TCP, and their responses
//	responder.go       the responder, and its limits
//	keyring.go         keys that change while probes run
//	expiring_table.go  a bounded table whose entries expire
//	stamp.go           how long a datagram waited to be read
//	stamp_linux.go     the same from the kernel's time stamps
//	stamp_other.go     the same on systems without them
package probe
