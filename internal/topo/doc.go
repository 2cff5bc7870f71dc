// Package topo converts between package topology and the wire, in the same way at the
// global tier and in a region: it reads and checks requests, and converts regions, edges,
// paths and findings to proto and back. Errors of requests are statuses that name the
// field.
//
//   - request.go: requests: bounds, defaults, errors
//   - topo.go: edges, paths and matrix pages
//   - report.go: findings of a check
//   - compact.go: the whole matrix in two bytes per pair
//   - watch.go: the shared change log of those who watch the matrix
package topo
