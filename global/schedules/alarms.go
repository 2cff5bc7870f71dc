package schedules

import (
	"container/heap"
	"time"
)

// alarms says when the loop must decide about entries, the first one first. An entry is in it once at
// most. The cost of a change is the logarithm of the number of entries. The state's lock guards it.
type alarms struct{ queue alarmQueue }

// set makes the loop decide about an entry at a time. Zero: only after a change.
func (a *alarms) set(e *entry, at time.Time) {
	e.wake = at
	switch {
	case at.IsZero() && e.place > 0:
		heap.Remove(&a.queue, e.place-1)
	case at.IsZero():
	case e.place > 0:
		heap.Fix(&a.queue, e.place-1)
	default:
		heap.Push(&a.queue, e)
	}
}

// sooner is set, unless the entry has an earlier time already.
func (a *alarms) sooner(e *entry, at time.Time) {
	if e.wake.IsZero() || at.Before(e.wake) {
		a.set(e, at)
	}
}

// due returns the entries whose times have come, and clears their times.
func (a *alarms) due(now time.Time) (out []*entry) {
	for len(a.queue) > 0 && !a.queue[0].wake.After(now) {
		out = append(out, a.queue[0])
		a.set(a.queue[0], time.Time{})
	}
	return out
}

// next returns when due has something to return. Zero: never.
func (a *alarms) next() time.Time {
	if len(a.queue) == 0 {
		return time.Time{}
	}
	return a.queue[0].wake
}

// alarmQueue implements heap.Interface. Each entry knows its place, counted from 1.
type alarmQueue []*entry

func (q alarmQueue) Len() int           { return len(q) }
func (q alarmQueue) Less(i, j int) bool { return q[i].wake.Before(q[j].wake) }
func (q alarmQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i+1, j+1
}

// Push appends an entry.
func (q *alarmQueue) Push(x any) {
	e, _ := x.(*entry)
	*q = append(*q, e)
	e.place = len(*q)
}

// Pop removes the last entry.
func (q *alarmQueue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last], e.place = nil, 0
	*q = (*q)[:last]
	return e
}
