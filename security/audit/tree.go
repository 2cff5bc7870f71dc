package audit

import (
	"fmt"
	"math/bits"
	"slices"

	"golang.org/x/mod/sumdb/tlog"
)

// Tree is the Merkle tree of a trail's first entries (RFC 6962). It has only the hashes that are
// needed to add entries and to compute the root: those of the greatest complete subtrees, from left
// to right.
type Tree struct {
	Size   int64  `json:"size"`
	Hashes []Hash `json:"hashes,omitempty"`
}

// Check returns an error if the tree cannot have this size.
func (t Tree) Check() error {
	if want := bits.OnesCount64(uint64(t.Size)); t.Size < 0 || want != len(t.Hashes) {
		return fmt.Errorf("a tree of %d entries has %d hashes, not %d", t.Size, len(t.Hashes), want)
	}
	return nil
}

// Append returns the tree with further entries, given by their hashes.
func (t Tree) Append(entries ...Hash) Tree {
	out := Tree{t.Size, append(make([]Hash, 0, len(t.Hashes)+2), t.Hashes...)}
	for _, h := range entries {
		for n := out.Size; n&1 == 1; n >>= 1 {
			last := len(out.Hashes) - 1
			h = tlog.NodeHash(out.Hashes[last], h)
			out.Hashes = out.Hashes[:last]
		}
		out.Hashes = append(out.Hashes, h)
		out.Size++
	}
	return out
}

// Root returns the root of the tree.
func (t Tree) Root() Hash {
	if len(t.Hashes) == 0 {
		return emptyRoot
	}
	last := len(t.Hashes) - 1
	root := t.Hashes[last]
	for i := last - 1; i >= 0; i-- {
		root = tlog.NodeHash(t.Hashes[i], root)
	}
	return root
}

// emptyRoot is the root of a tree without entries.
var emptyRoot = func() Hash {
	root, _ := tlog.TreeHash(0, nil) // needs no hashes, so it cannot fail
	return root
}()

// Equal reports whether two trees are the same.
func (t Tree) Equal(other Tree) bool {
	return t.Size == other.Size && slices.Equal(t.Hashes, other.Hashes)
}
