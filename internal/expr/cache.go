package expr

import "sync"

// Cache caches compiled programs, because compilation costs far more than evaluation. It
// has two halves. A program that is compiled or used is put into the young half. When that
// half is full, it becomes the old half, and the programs of the former old half are
// dropped. A Cache is safe for concurrent use.
type Cache struct {
	mu         sync.Mutex
	max        int
	young, old map[key]entry
}

type key struct {
	kind   Kind
	source string
}

// entry is a result of Compile. Errors are cached too, so that a wrong expression is not
// compiled again for every node.
type entry struct {
	program *Program
	err     error
}

// NewCache returns a cache of at most size programs. The size is at least 2.
func NewCache(size int) *Cache {
	return &Cache{max: max(size, 2)}
}

// Compile returns the cached result of the function Compile.
func (c *Cache) Compile(kind Kind, source string) (*Program, error) {
	k := key{kind, source}
	c.mu.Lock()
	e, ok := c.young[k]
	if !ok {
		e, ok = c.old[k]
		if ok {
			c.add(k, e)
		}
	}
	c.mu.Unlock()
	if ok {
		return e.program, e.err
	}
	e.program, e.err = Compile(kind, source)
	c.mu.Lock()
	c.add(k, e)
	c.mu.Unlock()
	return e.program, e.err
}

func (c *Cache) add(k key, e entry) {
	if len(c.young) >= c.max/2 {
		c.young, c.old = nil, c.young
	}
	if c.young == nil {
		c.young = make(map[key]entry)
	}
	c.young[k] = e
}
