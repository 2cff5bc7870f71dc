// Package gate decides which calls a gRPC server accepts: from which members, and from which
// operators and access tokens. A server without an identity has no gate.
//
//   - table.go: which members may call which methods, and what each method does to what
//   - place.go: the object that a request names
//   - gate.go: Gate: the interceptors of a gRPC server that admit callers
//   - decide.go: the interceptors that decide what an operator or a token may do
//   - lasting.go: streams, which are decided again when the rights change
//   - limit.go: how many calls a principal may make each second
package gate
