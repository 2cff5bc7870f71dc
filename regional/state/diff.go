package state

import "iter"

// since yields the keys whose values may differ from those of an older tree
// that this one came from, in ascending order: what both share is skipped, so
// the cost grows with the number of changes, not with the tree.
func (t *tree[K, V]) since(old *tree[K, V], differ func(a, b V) bool) iter.Seq[K] {
	return func(yield func(K) bool) {
		a, b := cursorAt(t.root), cursorAt(old.root)
		for !a.done() || !b.done() {
			switch {
			case !a.done() && !b.done() && a.skipShared(&b):
			case !a.done() && !a.entry():
				a.descend(&b)
			case !b.done() && !b.entry():
				b.descend(&a)
			default:
				k, changed := step(&a, &b, differ)
				if changed && !yield(k) {
					return
				}
			}
		}
	}
}

// step passes the lesser of two entries, or both when their keys are equal.
func step[K key[K], V any](a, b *cursor[K, V], differ func(x, y V) bool) (k K, changed bool) {
	order := 0
	switch {
	case a.done():
		order = 1
	case b.done():
		order = -1
	default:
		order = a.key().compare(b.key())
	}
	switch {
	case order < 0:
		k, changed = a.key(), true
		a.next()
	case order > 0:
		k, changed = b.key(), true
		b.next()
	default:
		k, changed = a.key(), differ(a.value(), b.value())
		a.next()
		b.next()
	}
	return k, changed
}

// cursor walks a tree; it stands before a branch not yet entered, or before an
// entry of a leaf.
type cursor[K key[K], V any] struct {
	root  *branch[K, V] // not entered yet
	stack []place[K, V]
}

type place[K key[K], V any] struct {
	in *branch[K, V]
	at int
}

func cursorAt[K key[K], V any](root *branch[K, V]) cursor[K, V] { return cursor[K, V]{root: root} }

func (c *cursor[K, V]) done() bool { return c.root == nil && len(c.stack) == 0 }

// entry says that the cursor stands before an entry.
func (c *cursor[K, V]) entry() bool { return c.root == nil && c.stack[len(c.stack)-1].in.leaf() }

// branch is what the cursor stands before, nil for an entry.
func (c *cursor[K, V]) branch() *branch[K, V] {
	if c.root != nil {
		return c.root
	}
	top := c.stack[len(c.stack)-1]
	if top.in.leaf() {
		return nil
	}
	return top.in.kids[top.at]
}

func (c *cursor[K, V]) key() K   { top := c.stack[len(c.stack)-1]; return top.in.keys[top.at] }
func (c *cursor[K, V]) value() V { top := c.stack[len(c.stack)-1]; return top.in.vals[top.at] }

// skipShared passes a branch that both trees have.
func (c *cursor[K, V]) skipShared(o *cursor[K, V]) bool {
	b := c.branch()
	if b == nil || b != o.branch() {
		return false
	}
	c.next()
	o.next()
	return true
}

// descend enters the branch before c, or first the one before o if that is
// higher: branches are shared only at the same height.
func (c *cursor[K, V]) descend(o *cursor[K, V]) {
	if !o.done() && !o.entry() && o.branch().height() > c.branch().height() {
		c = o
	}
	b := c.branch()
	c.root = nil
	c.stack = append(c.stack, place[K, V]{b, 0})
}

func (b *branch[K, V]) height() int {
	h := 0
	for ; !b.leaf(); b = b.kids[0] {
		h++
	}
	return h
}

// next passes what the cursor stands before.
func (c *cursor[K, V]) next() {
	if c.root != nil {
		c.root = nil
		return
	}
	for n := len(c.stack) - 1; n >= 0; n-- {
		c.stack[n].at++
		if c.stack[n].at < len(c.stack[n].in.keys) {
			return
		}
		c.stack = c.stack[:n]
	}
}

// Charges is a view of the nodes and what they are charged for alone, for who
// keeps it to compare a later view with (SameNodes, UsesSince): a whole one would
// keep every allocation as it was then.
func (v *View) Charges() *View {
	return &View{index: v.index, cluster: v.cluster, nodes: v.nodes, uses: v.uses}
}

// SameNodes says that no node was registered, changed or removed between two
// views of one state. False is possible even so.
func (v *View) SameNodes(old *View) bool { return v.nodes.root == old.nodes.root }

// UsesSince yields the Num of every node whose use may differ from that in an
// older view of the same state, ascending. Nodes that came or went since are
// among them.
func (v *View) UsesSince(old *View) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for num := range v.uses.since(&old.uses, func(a, b *use) bool { return a != b }) {
			if !yield(uint32(num)) {
				return
			}
		}
	}
}
