package rank

import (
	"cmp"
	"slices"
)

// Cache keeps the values that were used last. What it drops costs time only.
type Cache[K cmp.Ordered, V any] struct {
	most    int
	uses    uint64
	entries map[K]*entry[V]
}

type entry[V any] struct {
	value V
	used  uint64
}

// NewCache returns an empty cache for at most so many values.
func NewCache[K cmp.Ordered, V any](most int) *Cache[K, V] {
	return &Cache[K, V]{most: max(2, most), entries: map[K]*entry[V]{}}
}

// Get returns the value of a key, if there is one.
func (c *Cache[K, V]) Get(key K) (value V, ok bool) {
	e := c.entries[key]
	if e == nil {
		return value, false
	}
	c.uses++
	e.used = c.uses
	return e.value, true
}

// Put stores a value. A full cache drops the half that was not used for longest.
func (c *Cache[K, V]) Put(key K, value V) {
	if len(c.entries) >= c.most {
		used := make([]uint64, 0, len(c.entries))
		for _, e := range c.entries {
			used = append(used, e.used)
		}
		slices.Sort(used) // each use has a number of its own
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
