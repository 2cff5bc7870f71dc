package persist

import (
	"cmp"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

type u64 uint64

func (a u64) Compare(b u64) int { return cmp.Compare(a, b) }

// TestTreeMatchesMap: the tree equals a Go map, and its snapshots do not change.
func TestTreeMatchesMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type frozen struct {
			tree  Tree[u64, int]
			model map[u64]int
		}
		var tr Tree[u64, int]
		model := map[u64]int{}
		own := &Owner{}
		var snaps []frozen
		span := rapid.Uint64Range(1, 2000).Draw(t, "span")
		for i := range rapid.IntRange(0, 1500).Draw(t, "steps") {
			k := u64(rapid.Uint64Range(0, span).Draw(t, "key"))
			switch rapid.IntRange(0, 9).Draw(t, "op") {
			case 0:
				if len(snaps) < 4 {
					snaps = append(snaps, frozen{tr, maps.Clone(model)})
					own = &Owner{}
				}
			case 1, 2, 3:
				tr.Delete(own, k)
				delete(model, k)
			default:
				tr.Set(own, k, i)
				model[k] = i
			}
		}
		checkTree(t, &tr, model)
		for _, s := range snaps {
			checkTree(t, &s.tree, s.model)
		}
	})
}

func checkTree(t *rapid.T, tr *Tree[u64, int], model map[u64]int) {
	if tr.Len() != len(model) {
		t.Fatalf("size %d, want %d", tr.Len(), len(model))
	}
	keys := slices.Sorted(maps.Keys(model))
	var got []u64
	for k, v := range tr.All() {
		got = append(got, k)
		if model[k] != v {
			t.Fatalf("all: %d = %d, want %d", k, v, model[k])
		}
	}
	if !slices.Equal(got, keys) {
		t.Fatalf("all: keys %v, want %v", got, keys)
	}
	for _, k := range keys {
		if v, ok := tr.Get(k); !ok || v != model[k] {
			t.Fatalf("get %d = %d %v, want %d", k, v, ok, model[k])
		}
	}
}

func TestTreeAscendingFillsNodes(t *testing.T) {
	var tr Tree[u64, int]
	own := &Owner{}
	for i := range 10_000 {
		tr.Set(own, u64(i), i)
	}
	leaves := 0
	var count func(b *branch[u64, int])
	count = func(b *branch[u64, int]) {
		if b.leaf() {
			leaves++
			return
		}
		for _, k := range b.kids {
			count(k)
		}
	}
	count(tr.root)
	if limit := 10_000/(maxKeys-2) + 2; leaves > limit {
		t.Fatalf("%d leaves, want at most %d", leaves, limit)
	}
}
