// Package serve has the parts that every role needs around its own work: listeners, gRPC
// with health and reflection, HTTP with /livez, /readyz and /metrics, logs, a data
// directory, and an orderly stop.
//
//   - serve.go: the server: open, run, stop
//   - grpc.go: limits of the gRPC server, client connections, metrics of calls
//   - http.go: the HTTP endpoints
//   - listen.go: listeners, and errors that name the flag for another address
//   - datadir.go: a data directory that one process owns; files written whole
//   - submit.go: a stream of submits, at both tiers
//   - log.go: the logger of a role
//   - quiet.go: a logger for libraries that do not know when their user ends
//   - memory.go: the pace of the garbage collector
package serve
