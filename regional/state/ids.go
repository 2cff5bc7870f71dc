package state

import (
	"cmp"
	"hash/maphash"
	"iter"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/regional/state/persist"
)

// Allocations are found by id in buckets by its first characters, about 25 in each
// where there are 100,000 of random ids. A list of them has no pointers for the
// garbage collector to follow, and is cheap to go on with.

// bucketChars is how many characters, hexadecimal digits, tell the bucket.
const bucketChars = 3

func bucket(id string) (n uint32) {
	for i := range bucketChars {
		n <<= 4
		if i < len(id) {
			n |= uint32(id[i]&15+id[i]>>6*9) & 15
		}
	}
	return n
}

// idRef is an allocation and a hash of its id.
type idRef struct {
	seq       uint64
	gid, hash uint32
	index     int32
}

func (r idRef) key() allocKey { return allocKey{r.gid, r.index, r.seq} }

// seed differs from process to process, which shows in nothing but the cost.
var seed = maphash.MakeSeed()

func hashOf(id string) uint32 { return uint32(maphash.String(seed, id)) }

// addID makes an allocation found by its id.
func (t *txn) addID(id string, k allocKey) {
	n := bucket(id)
	var l persist.List[idRef]
	if old, ok := t.ids.Get(n); ok {
		l = *old
	}
	l = l.With(idRef{k.seq, k.gid, hashOf(id), k.index}, t.hasID)
	t.ids.Set(t.own, n, &l)
}

// removeID is called once the allocation of that id is forgotten.
func (t *txn) removeID(id string) {
	n := bucket(id)
	old, _ := t.ids.Get(n)
	if l := old.Without(t.hasID); len(l.All()) > 0 {
		t.ids.Set(t.own, n, &l)
	} else {
		t.ids.Delete(t.own, n)
	}
}

// alloc is the allocation held there; nil if it is forgotten.
func (v *View) alloc(k allocKey) *Alloc {
	g, ok := v.groups.Get(k.gid)
	if !ok {
		return nil
	}
	return g.insts.get(k.index).attempt(k.seq)
}

func (v *View) hasAlloc(k allocKey) bool { return v.alloc(k) != nil }

func (v *View) hasID(r idRef) bool { return v.hasAlloc(r.key()) }

// Alloc finds an allocation by its full id.
func (v *View) Alloc(id string) (*Alloc, bool) {
	l, ok := v.ids.Get(bucket(id))
	if !ok {
		return nil, false
	}
	hash := hashOf(id)
	for _, r := range l.All() {
		if r.hash == hash {
			if a := v.alloc(r.key()); a != nil && a.ID == id {
				return a, true
			}
		}
	}
	return nil, false
}

// AllocsByPrefix yields allocations whose id starts with prefix, by id. It looks
// at all of them where prefix is shorter than bucketChars.
func (v *View) AllocsByPrefix(prefix string) iter.Seq[*Alloc] {
	return func(yield func(*Alloc) bool) {
		var found []*Alloc
		for n, l := range v.ids.All() {
			if len(prefix) >= bucketChars && n != bucket(prefix) {
				continue
			}
			for _, r := range l.All() {
				if a := v.alloc(r.key()); a != nil && strings.HasPrefix(a.ID, prefix) {
					found = append(found, a)
				}
			}
		}
		slices.SortFunc(found, func(a, b *Alloc) int { return cmp.Compare(a.ID, b.ID) })
		for _, a := range found {
			if !yield(a) {
				return
			}
		}
	}
}
