// Package sets encodes and decodes changes of sets. The sets are those that the global
// tier keeps equal in all regions: the other regions, origin records, asks, edges and the
// compact matrix. Both tiers use the package, so that their hashes of equal contents are
// equal. The package is pure.
//
//   - peers.go: tables of regions, and hashes of their buckets
//   - merge.go: the peers of a region, and their changes
//   - edges.go: tables of edges
//   - table.go: the memory of tables, which is used again
//   - matrix.go: the compact matrix and its changes
//   - hash.go: hashes of origin records, asks and slot orders
//   - deflate.go: compression
package sets
