// Package semaphore decides which waiting steps of workflows get units of semaphores: the oldest first. It is pure.
//
//	semaphore.go  Queue, Grant
package semaphore

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Need is what a step takes of a semaphore. Units is at least 1.
type Need struct {
	Name  string
	Units int
}

// Key names an item of a step of a run.
type Key struct {
	Run        string
	Step, Item int
}

// Waiter is an item that waits until all its needs have room. It takes all at once.
type Waiter struct {
	Key
	// Since is when it began to wait.
	Since time.Time
	// Needs names each semaphore once.
	Needs []Need
}

// Queue has the waiters of a namespace. The zero value is empty.
type Queue struct {
	order []Waiter // the oldest first
	since map[Key]time.Time
	// waiting counts the waiters by semaphore.
	waiting map[string]int
}

func compare(a, b Waiter) int {
	return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Run, b.Run), cmp.Compare(a.Step, b.Step), cmp.Compare(a.Item, b.Item))
}

// Len returns the number of waiters, and Waiting that of those that need a semaphore.
func (q *Queue) Len() int { return len(q.order) }

// Waiting returns the number of waiters that need a semaphore.
func (q *Queue) Waiting(name string) int { return q.waiting[name] }

// Has reports whether an item waits.
func (q *Queue) Has(k Key) bool {
	_, is := q.since[k]
	return is
}

// All returns the waiters, the oldest first. The caller must not change them.
func (q *Queue) All() []Waiter { return q.order }

// Add adds a waiter, unless the item waits already.
func (q *Queue) Add(w Waiter) {
	if q.Has(w.Key) {
		return
	}
	if q.since == nil {
		q.since, q.waiting = map[Key]time.Time{}, map[string]int{}
	}
	at, _ := slices.BinarySearchFunc(q.order, w, compare)
	q.order = slices.Insert(q.order, at, w)
	q.since[w.Key] = w.Since
	for _, n := range w.Needs {
		q.waiting[n.Name]++
	}
}

// Remove removes an item, if it waits.
func (q *Queue) Remove(k Key) {
	since, is := q.since[k]
	if !is {
		return
	}
	at, _ := slices.BinarySearchFunc(q.order, Waiter{Key: k, Since: since}, compare)
	q.forget(q.order[at])
	q.order = slices.Delete(q.order, at, at+1)
}

func (q *Queue) forget(w Waiter) {
	delete(q.since, w.Key)
	for _, n := range w.Needs {
		q.waiting[n.Name]--
		if q.waiting[n.Name] == 0 {
			delete(q.waiting, n.Name)
		}
	}
}

// Grant removes the waiters that get their units now, and returns them. room returns the units of a semaphore,
// and how many of them are held. A waiter gets no units that an older one needs, so nobody waits for ever. But a
// waiter that needs more than a semaphore has, or a semaphore that does not exist, stands in nobody's way.
func (q *Queue) Grant(room func(name string) (units, held int)) (out []Waiter) {
	left, units, behind := map[string]int{}, map[string]int{}, maps.Clone(q.waiting)
	open := 0 // the semaphores that have units left, and waiters that were not looked at
	for name := range q.waiting {
		of, held := room(name)
		units[name], left[name] = of, of-held
		if left[name] > 0 {
			open++
		}
	}
	var at []int // where the granted ones stand
	for i, w := range q.order {
		if open == 0 {
			break
		}
		possible, fits := true, true
		for _, n := range w.Needs {
			possible, fits = possible && n.Units <= units[n.Name], fits && n.Units <= left[n.Name]
		}
		for _, n := range w.Needs {
			was := left[n.Name] > 0 && behind[n.Name] > 0
			behind[n.Name]--
			if possible {
				left[n.Name] -= n.Units
			}
			if was && (left[n.Name] <= 0 || behind[n.Name] == 0) {
				open--
			}
		}
		if possible && fits {
			at, out = append(at, i), append(out, w)
		}
	}
	for n, i := range slices.Backward(at) {
		q.forget(out[n])
		q.order = slices.Delete(q.order, i, i+1)
	}
	return out
}
