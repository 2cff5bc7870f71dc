package world

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
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

// host is one machine: a clock whose rate is up to 1 % wrong, a wall clock that may be wrong by
// hours, and processes.
type host struct {
	w    *world
	num  int
	name string
	// ppm is the error of the clock's rate. base is the clock's reading at the boot. bootAt is the
	// true time of the boot.
	ppm          int64
	base, bootAt int64
	wallOff      int64
	down         bool
	// off: an operator has switched the host off.
	off  bool
	life int
	// suspendedUntil is the true time at which a suspended host resumes.
	suspendedUntil, resumedAt int64
	// slept is the total true time for which the host has been suspended.
	slept int64
	// diskDelay is the time of one write to the disk. diskFull makes writes wait.
	diskDelay time.Duration
	diskFull  bool
	procs     []*proc
}

func newHost(w *world, name string) *host {
	h := &host{w: w, num: len(w.hosts), name: name, ppm: w.rng.Int64N(20_001) - 10_000, base: w.rng.Int64N(int64(time.Hour)),
		wallOff: int64(w.between(-5*time.Second, 5*time.Second)), diskDelay: 3 * time.Millisecond}
	if w.chance(4) {
		h.ppm = pick(&w.engine, int64(-10_000), 10_000) // the worst clocks are most likely to show an error
	}
	w.hosts = append(w.hosts, h)
	return h
}

// clock reads CLOCK_BOOTTIME.
func (h *host) clock() time.Duration {
	d := h.w.now - h.bootAt
	return time.Duration(h.base + d + d/1_000_000*h.ppm)
}

// epoch is the wall clock at true time 0.
const epoch = 1_800_000_000_000_000_000

// wall reads the wall clock, in nanoseconds.
func (h *host) wall() int64 { return epoch + h.w.now + h.wallOff }

// trueFor returns the true duration in which the host's clock advances by d.
func (h *host) trueFor(d time.Duration) time.Duration {
	return time.Duration(int64(d)/1000*1_000_000_000/(1_000_000+h.ppm)) + 1
}

func (h *host) suspended() bool { return h.w.now < h.suspendedUntil }

// suspend stops everything on the host except CLOCK_BOOTTIME.
func (h *host) suspend(d time.Duration) {
	if h.suspended() || h.down {
		return
	}
	h.w.net.disturbed()
	h.suspendedUntil = h.w.now + int64(d)
	h.slept += int64(d)
	h.w.at(h.suspendedUntil, func() { h.resumedAt = h.w.now; h.w.net.flush() })
}

// crash is a loss of power: every process ends, and unsynced writes are lost.
func (h *host) crash() {
	if h.down {
		return
	}
	h.down = true
	h.life++
	for _, p := range slices.Clone(h.procs) { // cloned, because the end of a run removes its process
		p.kill(true)
	}
}

func (h *host) restart() {
	if !h.down || h.off {
		return
	}
	h.down = false
	h.bootAt, h.base, h.suspendedUntil = h.w.now, 0, 0
	for _, p := range h.procs {
		p.start()
	}
}

// proc is one process. Its timers and messages belong to one life of the process.
type proc struct {
	h    *host
	name string
	up   bool
	life int
	// unwanted: the process must not start.
	unwanted    bool
	pausedUntil int64
	// onStart begins a life. onKill ends a life; power says that the host has lost its power.
	onStart func()
	onKill  func(power bool)
	accept  func(*end)
	ends    []*end
}

func (h *host) newProc(name string) *proc {
	p := &proc{h: h, name: name}
	h.procs = append(h.procs, p)
	return p
}

func (p *proc) start() {
	if p.up || p.h.down || p.unwanted {
		return
	}
	p.up = true
	p.life++
	p.onStart()
}

func (p *proc) kill(power bool) {
	if !p.up {
		return
	}
	p.h.w.net.disturbed()
	p.up = false
	p.life++
	p.pausedUntil = 0
	p.onKill(power)
	ends := p.ends
	p.ends = nil
	for _, e := range ends {
		e.die(power)
	}
}

// pause stops the process, but not its host.
func (p *proc) pause(d time.Duration) {
	until := p.h.w.now + int64(d)
	if !p.up || until <= p.pausedUntil {
		return
	}
	p.h.w.net.disturbed()
	p.pausedUntil = until
	p.h.w.at(until, p.h.w.net.flush)
}

// stalledUntil returns the time until which the process does not execute. If that is not after now,
// the process executes.
func (p *proc) stalledUntil() int64 { return max(p.pausedUntil, p.h.suspendedUntil) }

func (p *proc) stalled() bool { return p.stalledUntil() > p.h.w.now }

// then runs a function in the process as soon as the process executes, unless its life ends before.
func (p *proc) then(life int, do func()) {
	if p.life != life || !p.up {
		return
	}
	if until := p.stalledUntil(); until > p.h.w.now {
		p.h.w.at(until, func() { p.then(life, do) })
		return
	}
	do()
}

// after runs a function when the process's timer has counted d. Timers do not count while the host
// is suspended.
func (p *proc) after(d time.Duration, do func()) {
	p.afterTrue(p.h.trueFor(d), do)
}

// afterTrue is after, for a duration of true time.
func (p *proc) afterTrue(d time.Duration, do func()) {
	w := p.h.w
	var t *timer
	if n := len(w.idle); n > 0 {
		t, w.idle = w.idle[n-1], w.idle[:n-1]
	} else {
		t = &timer{}
		t.fire = t.due
	}
	t.p, t.life, t.slept, t.do = p, p.life, p.h.slept, do
	w.in(d, t.fire)
}

// timer is one timer of a process. slept is the value of host.slept when the timer was set. A timer
// that has fired is reused.
type timer struct {
	p        *proc
	life     int
	slept    int64
	do, fire func()
}

// due runs the function. If the host was suspended, it waits for that time more.
func (t *timer) due() {
	p, life, do := t.p, t.life, t.do
	if more := p.h.slept - t.slept; more > 0 && p.life == life {
		t.slept = p.h.slept
		p.h.w.in(time.Duration(more), t.fire)
		return
	}
	t.p, t.do = nil, nil
	p.h.w.idle = append(p.h.w.idle, t)
	p.then(life, do)
}

// alarm calls a function once, at the time that was set last. To set a later time adds no event:
// the waiting event is moved when it is due.
type alarm struct {
	w         *world
	do        func()
	at, event int64 // times of the alarm and of the waiting event; 0: none
	// seq orders the alarm among the events of the same time, by when it was set.
	seq  uint64
	fire func()
}

func newAlarm(w *world, do func()) *alarm {
	a := &alarm{w: w, do: do}
	a.fire = a.due
	return a
}

// set sets the time of the alarm, in place of an earlier one.
func (a *alarm) set(at int64) {
	a.w.seq++
	a.at, a.seq = max(at, a.w.now), a.w.seq
	if a.event == 0 || a.at < a.event {
		a.wait()
	}
}

func (a *alarm) wait() {
	a.event = a.at
	a.w.push(event{a.at, a.seq, a.fire})
}

func (a *alarm) due() {
	switch {
	case a.event != a.w.now: // an earlier event has replaced this one
	case a.at > a.w.now:
		a.wait()
	default:
		a.event, a.at = 0, 0
		a.do()
	}
}

// every repeats a function with a pause, as long as the process lives and the function returns
// true.
func (p *proc) every(d time.Duration, do func() bool) {
	var again func()
	again = func() {
		if do() {
			p.after(d, again)
		}
	}
	p.after(d, again)
}

// write runs done when a write has reached the disk.
func (p *proc) write(done func()) {
	life, h := p.life, p.h
	h.w.in(h.diskDelay+time.Duration(h.w.rng.Int64N(int64(h.diskDelay))), func() { p.written(life, done) })
}

func (p *proc) written(life int, done func()) {
	switch {
	case p.life != life:
	case p.h.diskFull:
		p.h.w.in(500*time.Millisecond, func() { p.written(life, done) })
	default:
		p.then(life, done)
	}
}
