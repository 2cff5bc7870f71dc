package machine

import (
	"fmt"
	"io"
	"math/rand/v2"
	"time"
)

// Engine holds true time and the queue of events. Events of the same time run in the order in which
// they were added, so that one seed gives one trace.
type Engine struct {
	// Now is true time, in nanoseconds.
	Now  int64
	seq  uint64
	heap []event
	// Rng is the only source of randomness.
	Rng *rand.Rand
	out io.Writer // gets the trace; nil: no trace
	// Steps counts the events that have run.
	Steps int
	Hosts []*Host
	Net   Network
	idle  []*timer // timers that have fired, to be used again
}

type event struct {
	at  int64
	seq uint64
	do  func()
}

func (a *event) before(b *event) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

// New returns an engine without hosts. It writes the trace to out, unless out is nil.
func New(seed uint64, out io.Writer) *Engine {
	e := &Engine{Rng: rand.New(rand.NewPCG(seed, 0x6e757361)), out: out}
	e.Net = Network{e: e, Disturbed: func() {}}
	return e
}

// At runs a function at a true time.
func (e *Engine) At(t int64, do func()) {
	e.seq++
	e.push(event{max(t, e.Now), e.seq, do})
}

func (e *Engine) push(ev event) {
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

// In runs a function after a true duration.
func (e *Engine) In(d time.Duration, do func()) { e.At(e.Now+int64(d), do) }

func (e *Engine) pop() event {
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

// RunUntil runs the events up to a true time, or until stop returns true.
func (e *Engine) RunUntil(end int64, stop func() bool) {
	for len(e.heap) > 0 && e.heap[0].at <= end {
		ev := e.pop()
		e.Now = ev.at
		e.Steps++
		ev.do()
		if stop() {
			return
		}
	}
	e.Now = max(e.Now, end)
}

// Tracing reports whether a trace is written. Callers ask before they format, to save time.
func (e *Engine) Tracing() bool { return e.out != nil }

// Tracef writes a line of the trace.
func (e *Engine) Tracef(format string, args ...any) {
	if e.out != nil {
		fmt.Fprintf(e.out, "%11.6f "+format+"\n", append([]any{float64(e.Now) / 1e9}, args...)...)
	}
}

// Chance returns true once in n times, on average.
func (e *Engine) Chance(n int) bool { return e.Rng.IntN(n) == 0 }

// Between returns a random duration from a to b.
func (e *Engine) Between(a, b time.Duration) time.Duration {
	return a + time.Duration(e.Rng.Int64N(int64(b-a)+1))
}

// Pick returns one of some values at random.
func Pick[T any](e *Engine, of ...T) T { return of[e.Rng.IntN(len(of))] }
