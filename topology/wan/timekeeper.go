package wan

import (
	"container/heap"
	"sync"
	"time"
)

// On Linux the Go runtime waits for its next timer in whole milliseconds (epoll_wait). So
// timers fire up to one millisecond late, which is too much for a round trip of eight
// milliseconds. The timekeeper lets the runtime wait until shortly before a deadline. For
// the rest of the time it waits in the kernel. One goroutine does this for all sleepers.
const (
	// spinWindow is the time before a deadline from which the timekeeper waits in the
	// kernel. It is longer than timers of the runtime are late.
	spinWindow = 1500 * time.Microsecond
	// longestNap bounds one wait in the kernel, and so how late a new, earlier deadline is
	// noticed.
	longestNap = 200 * time.Microsecond
	// lead is how much before their deadlines sleepers are woken. It is about the time
	// until a sleeper runs and has written to a socket.
	lead = 120 * time.Microsecond
)

// timekeeper wakes sleepers at their deadlines. Its goroutine runs only while there are
// sleepers. In virtual time precise is false, and sleepers wait on ordinary timers.
type timekeeper struct {
	precise bool
	wake    chan struct{} // gets a message when an earlier deadline was added, or a deadline was removed
	running sync.WaitGroup

	mu     sync.Mutex
	queue  deadlines
	active bool
	closed bool
}

// deadline is the deadline of one sleeper.
type deadline struct {
	at    time.Time
	due   chan struct{}
	index int // the index in the heap; -1 = removed
}

func newTimekeeper(precise bool) *timekeeper {
	return &timekeeper{precise: precise, wake: make(chan struct{}, 1)}
}

// sleep waits until a deadline and returns true. It returns false if cancel or done is
// closed before.
func (k *timekeeper) sleep(until time.Time, cancel, done <-chan struct{}) bool {
	left := time.Until(until)
	if left <= 0 {
		select {
		case <-done:
			return false
		default:
			return true
		}
	}
	if !k.precise {
		timer := time.NewTimer(left)
		defer timer.Stop()
		select {
		case <-timer.C:
			return true
		case <-cancel:
		case <-done:
		}
		return false
	}
	d, ok := k.add(until)
	if !ok {
		return false
	}
	select {
	case <-d.due:
		return true
	case <-cancel:
	case <-done:
	}
	k.remove(d)
	return false
}

func (k *timekeeper) add(at time.Time) (*deadline, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil, false
	}
	d := &deadline{at: at.Add(-lead), due: make(chan struct{})}
	heap.Push(&k.queue, d)
	switch {
	case !k.active:
		k.active = true
		k.running.Go(k.run)
	case d.index == 0:
		k.notify()
	}
	return d, true
}

func (k *timekeeper) remove(d *deadline) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if d.index >= 0 {
		heap.Remove(&k.queue, d.index)
		k.notify()
	}
}

func (k *timekeeper) notify() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

func (k *timekeeper) run() {
	for {
		next, ok := k.fire()
		if !ok {
			return
		}
		left := time.Until(next)
		if left <= spinWindow {
			nap(min(left, longestNap))
			continue
		}
		timer := time.NewTimer(left - spinWindow)
		select {
		case <-timer.C:
		case <-k.wake:
			timer.Stop()
		}
	}
}

// fire wakes the sleepers that are due and returns the next deadline. It returns false if
// there are no sleepers left. The goroutine then ends.
func (k *timekeeper) fire() (next time.Time, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	for len(k.queue) > 0 && !k.queue[0].at.After(now) {
		close(heap.Pop(&k.queue).(*deadline).due)
	}
	if len(k.queue) == 0 {
		k.active = false
		return time.Time{}, false
	}
	return k.queue[0].at, true
}

// close refuses new sleepers and returns when the goroutine has ended. The caller must
// have cancelled all sleepers.
func (k *timekeeper) close() {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	k.running.Wait()
}

// deadlines is a heap with the earliest deadline on top.
type deadlines []*deadline

func (q deadlines) Len() int           { return len(q) }
func (q deadlines) Less(i, j int) bool { return q[i].at.Before(q[j].at) }
func (q deadlines) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}
func (q *deadlines) Push(x any) {
	d := x.(*deadline)
	d.index = len(*q)
	*q = append(*q, d)
}
func (q *deadlines) Pop() any {
	last := len(*q) - 1
	d := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	d.index = -1
	return d
}
