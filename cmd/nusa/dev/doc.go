// Package dev is a whole federation in one process: a global server with
// embedded etcd, and regions with their servers and agents, over real sockets
// on loopback that behave like a wide-area network. It starts the same roles
// with the same configuration that separate processes get; only the dialers
// differ.
//
//   - dev.go: Options, and Run, which starts and stops the tiers
//   - regions.go: which regions a federation has, and the table of round trips
//   - emulate.go: sockets that behave like a wide-area network
//   - wanfile.go: changes of the file of round trips while the federation runs
//   - ports.go: the port plan
//   - datadir.go: what a data directory must have in common with its next start
//   - ready.go: the wait until every region is connected
//   - waiting.go: reports of a slow start
package dev
