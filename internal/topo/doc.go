// Package topo converts between package topology and protobuf. It reads and checks
// requests, and converts regions, edges, paths and findings. The global tier and the
// regions use the same code. The error of a request is a gRPC status that names the wrong
// field.
//
//   - request.go: requests, with their bounds, defaults and errors
//   - topo.go: edges, paths and matrix pages
//   - report.go: findings of a check
//   - compact.go: the whole matrix in two bytes per pair
//   - pack.go: the history of many edges as one block
//   - watch.go: the change log that all watchers of the matrix share
package topo
