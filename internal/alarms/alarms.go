package alarms

import (
	"container/heap"
	"time"
)

// Alarm is the time of one object. The type of the object embeds Alarm. Only Queue changes it.
type Alarm struct {
	at    time.Time
	place int // in the queue, counted from 1; 0: not in it
}

func (a *Alarm) alarm() *Alarm { return a }

// Object is a pointer to a type that embeds Alarm.
type Object interface{ alarm() *Alarm }

// Queue has objects by their times. A change costs the logarithm of the number of objects. The zero value is
// empty. The caller guards it.
type Queue[T Object] struct{ objects objects[T] }

// Set gives an object a time. Zero: none.
func (q *Queue[T]) Set(x T, at time.Time) {
	a := x.alarm()
	a.at = at
	switch {
	case at.IsZero() && a.place > 0:
		heap.Remove(&q.objects, a.place-1)
	case at.IsZero():
	case a.place > 0:
		heap.Fix(&q.objects, a.place-1)
	default:
		heap.Push(&q.objects, x)
	}
}

// Sooner gives an object a time, unless the time is zero or the object has an earlier one.
func (q *Queue[T]) Sooner(x T, at time.Time) {
	a := x.alarm()
	if !at.IsZero() && (a.place == 0 || at.Before(a.at)) {
		q.Set(x, at)
	}
}

// Due returns the objects whose times have come, and takes their times away.
func (q *Queue[T]) Due(now time.Time) (out []T) {
	for len(q.objects) > 0 && !q.objects[0].alarm().at.After(now) {
		out = append(out, q.objects[0])
		q.Set(q.objects[0], time.Time{})
	}
	return out
}

// Next returns the earliest time. Zero: there is none.
func (q *Queue[T]) Next() time.Time {
	if len(q.objects) == 0 {
		return time.Time{}
	}
	return q.objects[0].alarm().at
}

// Len returns the number of objects with a time.
func (q *Queue[T]) Len() int { return len(q.objects) }

// objects implements heap.Interface.
type objects[T Object] []T

func (q objects[T]) Len() int           { return len(q) }
func (q objects[T]) Less(i, j int) bool { return q[i].alarm().at.Before(q[j].alarm().at) }
func (q objects[T]) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].alarm().place, q[j].alarm().place = i+1, j+1
}

// Push appends an object.
func (q *objects[T]) Push(x any) {
	object, _ := x.(T)
	*q = append(*q, object)
	object.alarm().place = len(*q)
}

// Pop removes the last object.
func (q *objects[T]) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	var none T
	(*q)[last], x.alarm().place = none, 0
	*q = (*q)[:last]
	return x
}
