package rank

import (
	"cmp"
	"slices"
)

// Cache keeps the values that were used most recently. A dropped value costs only time.
type Cache[K cmp.Ordered, V any] struct {
	most    int
	uses    uint64
	entries map[K]*entry[V]
}

type entry[V any] struct {
	value V
	used  uint64
}

// NewCache returns an empty cache for at most `most` values.
func NewCache[K cmp.Ordered, V any](most int) *Cache[K, V] {
	return &Cache[K, V]{most: max(2, most), entries: map[K]*entry[V]{}}
}

// Get returns the value of a key. ok is false if there is none.
func (c *Cache[K, V]) Get(key K) (value V, ok bool) {
	e := c.entries[key]
	if e == nil {
		return value, false
	}
	c.uses++
	e.used = c.uses
	return e.value, true
}

// Put stores a value. A full cache first drops the half that was used least recently.
func (c *Cache[K, V]) Put(key K, value V) {
	if len(c.entries) >= c.most {
		used := make([]uint64, 0, len(c.entries))
		for _, e := range c.entries {
			used = append(used, e.used)
		}
		slices.Sort(used) // each use has its own number
		middle := used[len(used)/2]
		for k, e := range c.entries {
			if e.used < middle {
				delete(c.entries, k)
			}
		}
	}
	c.uses++
	c.entries[key] = &entry[V]{value, c.uses}
}
