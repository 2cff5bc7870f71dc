package workflows

import (
	"container/heap"
	"time"
)

// clock says when the loop must decide about runs, the first one first. A run is in it once at most. The
// state's lock guards it.
type clock struct{ queue runQueue }

// sooner makes the loop decide about a run at a time, or earlier.
func (c *clock) sooner(r *run, at time.Time) {
	switch {
	case at.IsZero(), r.place > 0 && !at.Before(r.wake):
	case r.place > 0:
		r.wake = at
		heap.Fix(&c.queue, r.place-1)
	default:
		r.wake = at
		heap.Push(&c.queue, r)
	}
}

// remove takes a run out.
func (c *clock) remove(r *run) {
	if r.place > 0 {
		heap.Remove(&c.queue, r.place-1)
	}
}

// due takes out and returns the runs whose times have come.
func (c *clock) due(now time.Time) (out []*run) {
	for len(c.queue) > 0 && !c.queue[0].wake.After(now) {
		out = append(out, c.queue[0])
		c.remove(c.queue[0])
	}
	return out
}

// next returns when due has something to return. Zero: never.
func (c *clock) next() time.Time {
	if len(c.queue) == 0 {
		return time.Time{}
	}
	return c.queue[0].wake
}

// runQueue implements heap.Interface. Each run knows its place, counted from 1.
type runQueue []*run

func (q runQueue) Len() int           { return len(q) }
func (q runQueue) Less(i, j int) bool { return q[i].wake.Before(q[j].wake) }
func (q runQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i+1, j+1
}

// Push appends a run.
func (q *runQueue) Push(x any) {
	r, _ := x.(*run)
	*q = append(*q, r)
	r.place = len(*q)
}

// Pop removes the last run.
func (q *runQueue) Pop() any {
	last := len(*q) - 1
	r := (*q)[last]
	(*q)[last], r.place = nil, 0
	*q = (*q)[:last]
	return r
}

// moment is a time at which a step must be looked at.
type moment struct {
	at   time.Time
	step int
}

// moments implements heap.Interface.
type moments []moment

func (m moments) Len() int           { return len(m) }
func (m moments) Less(i, j int) bool { return m[i].at.Before(m[j].at) }
func (m moments) Swap(i, j int)      { m[i], m[j] = m[j], m[i] }

// Push appends a moment.
func (m *moments) Push(x any) {
	v, _ := x.(moment)
	*m = append(*m, v)
}

// Pop removes the last moment.
func (m *moments) Pop() any {
	last := (*m)[len(*m)-1]
	*m = (*m)[:len(*m)-1]
	return last
}
