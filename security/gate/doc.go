// Package gate decides which members of a federation may make which calls. A server without
// an identity has no gate.
//
//   - table.go: which members may call which methods
//   - gate.go: the interceptors of a gRPC server
package gate
