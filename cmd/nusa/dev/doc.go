// Package dev runs a whole federation in one process: a global server with embedded etcd,
// and regions with their servers and agents. The parts use real sockets on loopback, for
// streams and datagrams, that behave like a wide-area network. The roles run as they do in
// separate processes, except for their sockets.
//
//   - dev.go: Options, and Run, which starts and stops the tiers
//   - regions.go: which regions a federation has, and the table of round trips
//   - identities.go: the authority of the federation, and the identities of its members
//   - token.go: an access token of the operator
//   - emulate.go: sockets that behave like a wide-area network
//   - wanfile.go: changes of the file of round trips while the federation runs
//   - ports.go: the port plan
//   - datadir.go: what must stay the same between the starts in a data directory
//   - ready.go: the wait until every region is connected
//   - waiting.go: reports of a slow start
package dev
