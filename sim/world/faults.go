package world

import "time"

func (w *world) beginFaults() { w.in(w.between(20*time.Second, 60*time.Second), w.fault) }

// fault makes one random fault and waits for the next.
func (w *world) fault() {
	if w.now >= int64(calm) {
		return
	}
	w.in(w.between(2*time.Second, 30*time.Second), w.fault)
	w.watch.stats.Faults++
	for range 1 + w.rng.IntN(20)/19 {
		w.oneFault()
	}
}

// lasting returns how long a fault lasts: mostly short, sometimes minutes.
func (w *world) lasting() time.Duration {
	d := w.between(100*time.Millisecond, 20*time.Second)
	if w.chance(3) {
		d = w.between(20*time.Second, 100*time.Second)
	}
	return min(d, calm-time.Duration(w.now))
}

func (w *world) oneFault() {
	e := &w.engine
	h := w.hosts[w.rng.IntN(len(w.hosts))]
	r := w.regions[w.rng.IntN(len(w.regions))]
	d := w.lasting()
	switch w.rng.IntN(12) {
	case 0, 1, 2:
		w.cutRegion(r, d)
	case 3:
		w.cutPair(h, w.hosts[w.rng.IntN(len(w.hosts))], d, w.chance(2))
	case 4:
		w.note("crash %s for %s", h.name, d)
		h.crash()
		w.in(d, h.restart)
	case 5:
		p := h.procs[0]
		w.note("kill %s for %s", p.name, d)
		p.kill(false)
		w.in(min(d, 20*time.Second), p.start)
	case 6:
		w.note("pause %s for %s", h.procs[0].name, d)
		h.procs[0].pause(d)
	case 7:
		if h != w.etcd.p.h {
			w.note("suspend %s for %s", h.name, d)
			h.suspend(d)
		}
	case 8:
		h.wallOff += int64(w.between(-5*time.Hour, 5*time.Hour))
		w.note("wall clock of %s", h.name)
	case 9:
		h.diskDelay = pick[time.Duration](e, 20, 200, 1000) * time.Millisecond
		w.note("slow disk of %s for %s", h.name, d)
		w.in(d, func() { h.diskDelay = 3 * time.Millisecond })
	case 10:
		h.diskFull = true
		w.note("full disk of %s for %s", h.name, d)
		w.in(d, func() { h.diskFull = false })
	case 11:
		w.net.spike = 20
		w.note("late messages for %s", d)
		w.in(d, func() { w.net.spike = 0 })
	}
}

func (w *world) note(format string, args ...any) {
	if w.tracing() {
		w.tracef("FAULT "+format, args...)
	}
}

// cutRegion cuts a region off the global tier, in one direction or both.
func (w *world) cutRegion(r *regionSim, d time.Duration) {
	up, down := true, true
	switch w.rng.IntN(4) {
	case 0:
		up = false
	case 1:
		down = false
	}
	w.note("cut %s off the global tier for %s up %v down %v", r.name, d, up, down)
	w.meanwhile(r, d)
	if w.chance(3) { // a region whose disks are slow when it returns stores its orders late
		for _, s := range r.raft.servers {
			s.h.diskDelay = pick[time.Duration](&w.engine, 100, 300, 800) * time.Millisecond
			w.in(min(d+10*time.Second, calm-time.Duration(w.now)), func() { s.h.diskDelay = 3 * time.Millisecond })
		}
	}
	for _, s := range r.raft.servers {
		for _, g := range w.globals {
			if up {
				w.cutFor(s.h, g.h, d)
			}
			if down {
				w.cutFor(g.h, s.h, d)
			}
		}
	}
}

// meanwhile makes what is dangerous while a region is cut off: a change of its jobs, a
// successor with another lease, a slow store at the return.
func (w *world) meanwhile(r *regionSim, d time.Duration) {
	soon := func(do func()) { w.in(min(w.between(200*time.Millisecond, 4*time.Second), d), do) }
	switch w.rng.IntN(6) {
	case 0, 1:
		soon(func() { w.changePolicy(r) })
	case 2:
		soon(w.changeLease)
	case 3:
		disk := w.etcd.p.h
		w.in(max(0, d-2*time.Second), func() { disk.diskDelay = time.Second })
		w.in(min(d+4*time.Second, calm-time.Duration(w.now)), func() { disk.diskDelay = 3 * time.Millisecond })
	}
}

func (w *world) cutPair(a, b *host, d time.Duration, both bool) {
	if a == b {
		return
	}
	w.note("cut %s -> %s for %s both %v", a.name, b.name, d, both)
	w.cutFor(a, b, d)
	if both {
		w.cutFor(b, a, d)
	}
}

func (w *world) cutFor(a, b *host, d time.Duration) {
	w.net.cut(a, b, true)
	w.in(d, func() { w.net.cut(a, b, false) })
}

// heal ends all faults.
func (w *world) heal() {
	w.note("all faults end")
	for i := range w.net.cuts {
		for k := range w.net.cuts[i] {
			w.net.cuts[i][k] = false
		}
	}
	w.net.spike = 0
	for _, h := range w.hosts {
		h.diskFull, h.diskDelay = false, 3*time.Millisecond
		h.suspendedUntil = min(h.suspendedUntil, w.now)
		h.restart()
		for _, p := range h.procs {
			p.pausedUntil = 0
			p.start()
		}
	}
	w.net.flush()
}
