// Package serve has the server parts that all roles share: listeners, gRPC with health and
// reflection, HTTP with /livez, /readyz and /metrics, logs, a data directory, and an
// orderly stop.
//
//   - serve.go: the server: open, run, stop
//   - grpc.go: limits of the gRPC server, client connections, metrics of calls
//   - http.go: the HTTP endpoints
//   - inside.go: gRPC within this process, on behalf of HTTP clients
//   - direct.go: unary calls of HTTP clients without a connection
//   - listen.go: listeners, and errors that name the flag which sets the address
//   - socket.go: a Unix socket for the administrator of the machine
//   - datadir.go: a data directory that one process owns
//   - submit.go: streams of submits, at both tiers
//   - log.go: the logger of a role
//   - quiet.go: a logger that is quiet after the end of a context, for libraries
//   - memory.go: the pace of the garbage collector
package serve
