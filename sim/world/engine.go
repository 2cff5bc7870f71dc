package world

import (
	"fmt"
	"io"
	"math/rand/v2"
	"time"
)

// engine holds true time and the queue of events. Events of the same time run in the order in which
// they were added, so that one seed gives one trace.
type engine struct {
	now   int64 // nanoseconds
	seq   uint64
	heap  []event
	rng   *rand.Rand
	out   io.Writer // gets the trace; nil: no trace
	steps int
	// after is called after each event.
	after func()
}

type event struct {
	at  int64
	seq uint64
	do  func()
}

func (a *event) before(b *event) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

func newEngine(seed uint64, out io.Writer) engine {
	return engine{rng: rand.New(rand.NewPCG(seed, 0x6e757361)), out: out}
}

// at runs a function at a true time.
func (e *engine) at(t int64, do func()) {
	e.seq++
	e.push(event{max(t, e.now), e.seq, do})
}

func (e *engine) push(ev event) {
	e.heap = append(e.heap, ev)
	i := len(e.heap) - 1
	for i > 0 {
		up := (i - 1) / 4
		if !ev.before(&e.heap[up]) {
			break
		}
		e.heap[i] = e.heap[up]
		i = up
	}
	e.heap[i] = ev
}

// in runs a function after a true duration.
func (e *engine) in(d time.Duration, do func()) { e.at(e.now+int64(d), do) }

func (e *engine) pop() event {
	top := e.heap[0]
	n := len(e.heap) - 1
	last := e.heap[n]
	e.heap[n].do = nil
	e.heap = e.heap[:n]
	for i := 0; n > 0; {
		least, end := &last, min(4*i+5, n)
		next := i
		for c := 4*i + 1; c < end; c++ {
			if e.heap[c].before(least) {
				least, next = &e.heap[c], c
			}
		}
		e.heap[i] = *least
		if next == i {
			break
		}
		i = next
	}
	return top
}

// runUntil runs the events up to a true time, or until stop returns true.
func (e *engine) runUntil(end int64, stop func() bool) {
	for len(e.heap) > 0 && e.heap[0].at <= end {
		ev := e.pop()
		e.now = ev.at
		e.steps++
		ev.do()
		e.after()
		if stop() {
			return
		}
	}
	e.now = max(e.now, end)
}

// tracing reports whether a trace is written. Callers ask before they format, to save time.
func (e *engine) tracing() bool { return e.out != nil }

func (e *engine) tracef(format string, args ...any) {
	if e.out != nil {
		fmt.Fprintf(e.out, "%11.6f "+format+"\n", append([]any{float64(e.now) / 1e9}, args...)...)
	}
}

// chance returns true once in n times, on average.
func (e *engine) chance(n int) bool { return e.rng.IntN(n) == 0 }

// between returns a random duration from a to b.
func (e *engine) between(a, b time.Duration) time.Duration {
	return a + time.Duration(e.rng.Int64N(int64(b-a)+1))
}

func pick[T any](e *engine, of ...T) T { return of[e.rng.IntN(len(of))] }
