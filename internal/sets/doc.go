// Package sets writes and reads the changes of the sets that the global tier keeps equal
// in all regions: the other regions, origin records, asks, edges and the compact matrix.
// Both ends use it, so that hashes of contents agree. It is pure.
//
//   - peers.go: tables of regions, and hashes of their buckets
//   - merge.go: the peers of a region, and their changes
//   - edges.go: tables of edges
//   - matrix.go: the compact matrix and its changes
//   - hash.go: hashes of origin records and asks
//   - deflate.go: compression
package sets
