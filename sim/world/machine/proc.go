package machine

import "time"

// Proc is one process. Its timers and messages belong to one life of the process.
type Proc struct {
	H    *Host
	Name string
	Up   bool
	Life int
	// Unwanted: the process must not start.
	Unwanted    bool
	PausedUntil int64
	// OnStart begins a life. OnKill ends a life; power says that the host has lost its power.
	OnStart func()
	OnKill  func(power bool)
	// Accept takes a new connection.
	Accept func(*End)
	ends   []*End
}

// NewProc adds a process that has not started.
func (h *Host) NewProc(name string) *Proc {
	p := &Proc{H: h, Name: name}
	h.Procs = append(h.Procs, p)
	return p
}

// DropProc removes a process that has ended for good.
func (h *Host) DropProc(p *Proc) {
	p.Up = false
	p.Life++
	for i, o := range h.Procs {
		if o == p {
			h.Procs = append(h.Procs[:i], h.Procs[i+1:]...)
			return
		}
	}
}

// Start begins a life of the process.
func (p *Proc) Start() {
	if p.Up || p.H.Down || p.Unwanted {
		return
	}
	p.Up = true
	p.Life++
	p.OnStart()
}

// Kill ends the life of the process. power: its host has lost its power.
func (p *Proc) Kill(power bool) {
	if !p.Up {
		return
	}
	p.H.E.Net.Disturbed()
	p.Up = false
	p.Life++
	p.PausedUntil = 0
	p.OnKill(power)
	ends := p.ends
	p.ends = nil
	for _, e := range ends {
		e.die(power)
	}
}

// Pause stops the process, but not its host.
func (p *Proc) Pause(d time.Duration) {
	until := p.H.E.Now + int64(d)
	if !p.Up || until <= p.PausedUntil {
		return
	}
	p.H.E.Net.Disturbed()
	p.PausedUntil = until
	p.H.E.At(until, p.H.E.Net.Flush)
}

// stalledUntil returns the time until which the process does not execute. If that is not after now,
// the process executes.
func (p *Proc) stalledUntil() int64 { return max(p.PausedUntil, p.H.SuspendedUntil) }

// Stalled reports whether the process does not execute.
func (p *Proc) Stalled() bool { return p.stalledUntil() > p.H.E.Now }

// Then runs a function in the process as soon as the process executes, unless its life ends before.
func (p *Proc) Then(life int, do func()) {
	if p.Life != life || !p.Up {
		return
	}
	if until := p.stalledUntil(); until > p.H.E.Now {
		p.H.E.At(until, func() { p.Then(life, do) })
		return
	}
	do()
}

// After runs a function when the process's timer has counted d. Timers do not count while the host
// is suspended.
func (p *Proc) After(d time.Duration, do func()) {
	p.AfterTrue(p.H.TrueFor(d), do)
}

// AfterTrue is after, for a duration of true time.
func (p *Proc) AfterTrue(d time.Duration, do func()) {
	e := p.H.E
	var t *timer
	if n := len(e.idle); n > 0 {
		t, e.idle = e.idle[n-1], e.idle[:n-1]
	} else {
		t = &timer{}
		t.fire = t.due
	}
	t.p, t.life, t.slept, t.do = p, p.Life, p.H.Slept, do
	e.In(d, t.fire)
}

// timer is one timer of a process. slept is the value of host.slept when the timer was set. A timer
// that has fired is reused.
type timer struct {
	p        *Proc
	life     int
	slept    int64
	do, fire func()
}

// due runs the function. If the host was suspended, it waits for that time more.
func (t *timer) due() {
	p, life, do := t.p, t.life, t.do
	if more := p.H.Slept - t.slept; more > 0 && p.Life == life {
		t.slept = p.H.Slept
		p.H.E.In(time.Duration(more), t.fire)
		return
	}
	t.p, t.do = nil, nil
	p.H.E.idle = append(p.H.E.idle, t)
	p.Then(life, do)
}

// Alarm calls a function once, at the time that was set last. To set a later time adds no event:
// the waiting event is moved when it is due.
type Alarm struct {
	e         *Engine
	do        func()
	at, event int64 // times of the alarm and of the waiting event; 0: none
	// seq orders the alarm among the events of the same time, by when it was set.
	seq  uint64
	fire func()
}

func (e *Engine) NewAlarm(do func()) *Alarm {
	a := &Alarm{e: e, do: do}
	a.fire = a.due
	return a
}

// Set sets the time of the alarm, in place of an earlier one.
func (a *Alarm) Set(at int64) {
	a.e.seq++
	a.at, a.seq = max(at, a.e.Now), a.e.seq
	if a.event == 0 || a.at < a.event {
		a.wait()
	}
}

func (a *Alarm) wait() {
	a.event = a.at
	a.e.push(event{a.at, a.seq, a.fire})
}

func (a *Alarm) due() {
	switch {
	case a.event != a.e.Now: // an earlier event has replaced this one
	case a.at > a.e.Now:
		a.wait()
	default:
		a.event, a.at = 0, 0
		a.do()
	}
}

// Every repeats a function with a pause, as long as the process lives and the function returns
// true.
func (p *Proc) Every(d time.Duration, do func() bool) {
	var again func()
	again = func() {
		if do() {
			p.After(d, again)
		}
	}
	p.After(d, again)
}

// Write runs done when a write has reached the disk.
func (p *Proc) Write(done func()) {
	life, h := p.Life, p.H
	h.E.In(h.DiskDelay+time.Duration(h.E.Rng.Int64N(int64(h.DiskDelay))), func() { p.written(life, done) })
}

func (p *Proc) written(life int, done func()) {
	switch {
	case p.Life != life:
	case p.H.DiskFull:
		p.H.E.In(500*time.Millisecond, func() { p.written(life, done) })
	default:
		p.Then(life, done)
	}
}
