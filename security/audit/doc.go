// Package audit says what an audit trail contains, and finds damage in it. A trail is a list of
// entries. A Merkle tree over their hashes makes each change of an earlier entry visible to
// everyone who has a later signed checkpoint.
//
//   - entry.go: an entry, its canonical form and its hash
//   - tree.go: the hashes that a tree needs to grow
//   - checkpoint.go: signed checkpoints and their keys
//   - export.go: the file of an exported trail
//   - verify.go: entries that are missing, changed, reordered or cut off
package audit
