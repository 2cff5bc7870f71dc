// Package persist has persistent collections: a copy of a collection's struct is
// a snapshot in constant time, which later writes to the original do not change.
// A write copies the nodes that a snapshot still holds. Nodes that only the present
// writer holds (Owner) are changed in place.
//
//   - owner.go: Owner, which says which nodes may be changed in place
//   - tree.go: Tree, a B+ tree by key
//   - array.go: Array, a sparse array by dense number
//   - list.go: List, an append-only list whose entries go stale
package persist
