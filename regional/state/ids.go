package state

import (
	"cmp"
	"hash/maphash"
	"iter"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/regional/state/persist"
)

// Allocations are found by id in buckets. The first characters of the id select the bucket.
// 100,000 random ids make about 25 entries in each bucket. The list of a bucket has no
// pointers for the garbage collector to follow, and appending to it costs little.

// bucketChars is how many characters of an id, which are hexadecimal digits, select the
// bucket.
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

// idRef refers to an allocation. It has a hash of the allocation's id.
type idRef struct {
	seq       uint64
	gid, hash uint32
	index     int32
}

func (r idRef) key() allocKey { return allocKey{r.gid, r.index, r.seq} }

// seed differs in each process. Results do not depend on it.
var seed = maphash.MakeSeed()

func hashOf(id string) uint32 { return uint32(maphash.String(seed, id)) }

// addID adds an allocation to the index of ids.
func (t *txn) addID(id string, k allocKey) {
	n := bucket(id)
	var l persist.List[idRef]
	if old, ok := t.ids.Get(n); ok {
		l = *old
	}
	l = l.With(idRef{k.seq, k.gid, hashOf(id), k.index}, t.hasID)
	t.ids.Set(t.own, n, &l)
}

// removeID removes an id from the index. The allocation must have been removed before.
func (t *txn) removeID(id string) {
	n := bucket(id)
	old, _ := t.ids.Get(n)
	if l := old.Without(t.hasID); len(l.All()) > 0 {
		t.ids.Set(t.own, n, &l)
	} else {
		t.ids.Delete(t.own, n)
	}
}

// alloc returns the allocation that has the given key. It returns nil if the allocation
// was removed.
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

// AllocsByPrefix yields the allocations whose ids begin with prefix, sorted by id. It reads
// all allocations if prefix is shorter than bucketChars.
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
