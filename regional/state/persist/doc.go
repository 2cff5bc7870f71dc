// Package persist has persistent collections. A copy of a collection's struct is a
// snapshot, made in constant time. Later writes to the original do not change the snapshot.
// A write copies the nodes that a snapshot may still hold. Nodes that only the present
// writer holds (Owner) are changed in place.
//
//   - owner.go: Owner, which marks the nodes that may be changed in place
//   - tree.go: Tree, a B+ tree by key
//   - array.go: Array, a sparse array by dense number
//   - list.go: List, an append-only list whose entries go stale
package persist
