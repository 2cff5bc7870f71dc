// Package network has the commands about the connections between regions: `nusa latency`,
// `nusa topology` and `nusa origin`.
//
//   - latency.go: nusa latency and its flags
//   - matrix.go: the matrix, or a line for each region
//   - row.go: all values that one region measured
//   - pages.go: large matrices, which come in pages, and CSV
//   - watch.go: latency --watch
//   - latency_history.go: latency --history
//   - edge.go: one round trip, with marks for how it is known
//   - topology.go: topology show
//   - dot.go: topology show --dot
//   - nearest.go: topology nearest
//   - path.go: topology path
//   - check.go: topology check
//   - origin.go: origin set, list and remove
//   - resolve.go: origin resolve
package network
