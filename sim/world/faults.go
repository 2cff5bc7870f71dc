package world

import (
	"fmt"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/sim/world/machine"
)

func (w *world) beginFaults() { w.In(w.Between(20*time.Second, 60*time.Second), w.fault) }

// fault makes one random fault, and schedules the next one.
func (w *world) fault() {
	if w.Now >= int64(calm) {
		return
	}
	w.In(w.Between(2*time.Second, 30*time.Second), w.fault)
	w.watch.stats.Faults++
	for range 1 + w.Rng.IntN(20)/19 {
		w.oneFault()
	}
}

// lasting returns how long a fault lasts: mostly a short time, sometimes minutes.
func (w *world) lasting() time.Duration {
	d := w.Between(100*time.Millisecond, 20*time.Second)
	if w.Chance(3) {
		d = w.Between(20*time.Second, 100*time.Second)
	}
	return min(d, calm-time.Duration(w.Now))
}

func (w *world) oneFault() {
	e := w.Engine
	h := w.Hosts[w.Rng.IntN(len(w.Hosts))]
	r := w.regions[w.Rng.IntN(len(w.regions))]
	d := w.lasting()
	switch w.Rng.IntN(13) {
	case 0, 1, 2:
		w.cutRegion(r, d)
	case 3:
		w.cutPair(h, w.Hosts[w.Rng.IntN(len(w.Hosts))], d, w.Chance(2))
	case 4:
		w.note("crash %s for %s", h.Name, d)
		h.Crash()
		w.In(d, h.Restart)
	case 5:
		p := h.Procs[0]
		w.note("kill %s for %s", p.Name, d)
		p.Kill(false)
		w.In(min(d, 20*time.Second), p.Start)
	case 6:
		w.note("pause %s for %s", h.Procs[0].Name, d)
		h.Procs[0].Pause(d)
	case 7:
		if h != w.etcd.P.H {
			w.note("suspend %s for %s", h.Name, d)
			h.Suspend(d)
		}
	case 8:
		h.WallOff += int64(w.Between(-5*time.Hour, 5*time.Hour))
		w.note("wall clock of %s", h.Name)
	case 9:
		h.DiskDelay = machine.Pick[time.Duration](e, 20, 200, 1000) * time.Millisecond
		w.note("slow disk of %s for %s", h.Name, d)
		w.In(d, func() { h.DiskDelay = 3 * time.Millisecond })
	case 10:
		h.DiskFull = true
		w.note("full disk of %s for %s", h.Name, d)
		w.In(d, func() { h.DiskFull = false })
	case 11:
		w.Net.Spike = 20
		w.note("late messages for %s", d)
		w.In(d, func() { w.Net.Spike = 0 })
	case 12:
		w.startSecond(d)
	}
}

func (w *world) note(format string, args ...any) {
	if w.Tracing() {
		w.Tracef("FAULT "+format, args...)
	}
}

// cutRegion cuts a region off the global tier, in one direction or in both.
func (w *world) cutRegion(r *regionSim, d time.Duration) {
	up, down := true, true
	switch w.Rng.IntN(4) {
	case 0:
		up = false
	case 1:
		down = false
	}
	w.note("cut %s off the global tier for %s up %v down %v", r.name, d, up, down)
	w.meanwhile(r, d)
	if w.life && w.Chance(3) {
		w.In(min(w.Between(200*time.Millisecond, 10*time.Second), d), func() { operator{w}.override(r) })
	}
	if w.Chance(3) { // a region whose disks are slow when it returns stores its orders late
		for _, s := range r.raft.servers {
			s.h.DiskDelay = machine.Pick[time.Duration](w.Engine, 100, 300, 800) * time.Millisecond
			w.In(min(d+10*time.Second, calm-time.Duration(w.Now)), func() { s.h.DiskDelay = 3 * time.Millisecond })
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

// meanwhile makes an event that is dangerous while a region is cut off: a change of the region's
// jobs, a successor with another lease, or a slow store at the return.
func (w *world) meanwhile(r *regionSim, d time.Duration) {
	soon := func(do func()) { w.In(min(w.Between(200*time.Millisecond, 4*time.Second), d), do) }
	switch w.Rng.IntN(6) {
	case 0, 1:
		soon(func() { w.changePolicy(r) })
	case 2:
		soon(w.changeLease)
	case 3:
		disk := w.etcd.P.H
		w.In(max(0, d-2*time.Second), func() { disk.DiskDelay = time.Second })
		w.In(min(d+4*time.Second, calm-time.Duration(w.Now)), func() { disk.DiskDelay = 3 * time.Millisecond })
	}
}

func (w *world) cutPair(a, b *machine.Host, d time.Duration, both bool) {
	if a == b {
		return
	}
	w.note("cut %s -> %s for %s both %v", a.Name, b.Name, d, both)
	w.cutFor(a, b, d)
	if both {
		w.cutFor(b, a, d)
	}
}

func (w *world) cutFor(a, b *machine.Host, d time.Duration) {
	w.Net.Cut(a, b, true)
	w.In(d, func() { w.Net.Cut(a, b, false) })
}

// heal ends all faults.
func (w *world) heal() {
	w.note("all faults end")
	w.endSeconds()
	for i := range w.Net.Cuts {
		for k := range w.Net.Cuts[i] {
			w.Net.Cuts[i][k] = false
		}
	}
	w.Net.Spike = 0
	for _, h := range w.Hosts {
		h.DiskFull, h.DiskDelay = false, 3*time.Millisecond
		h.SuspendedUntil = min(h.SuspendedUntil, w.Now)
		h.Restart()
		for _, p := range h.Procs {
			p.PausedUntil = 0
			p.Start()
		}
	}
	w.Net.Flush()
}

// A second process has the name of another process. It is on another host, and has a data directory
// of its own.

// startSecond starts one of the second processes for a while.
func (w *world) startSecond(d time.Duration) {
	var start []func()
	if w.second != nil && w.second.p.Unwanted {
		start = append(start, func() {
			w.begin(w.second.p)
			w.In(d, w.endSecond)
		})
	}
	for _, r := range w.regions {
		if r.second != nil && r.second.p.Unwanted {
			start = append(start, func() { r.startSecond(d) })
		}
		if r.secondAgent != nil && r.secondAgent.p.Unwanted {
			start = append(start, func() { r.secondAgent.beSecond(d) })
		}
	}
	if len(start) > 0 {
		start[w.Rng.IntN(len(start))]()
	}
}

func (w *world) begin(p *machine.Proc) {
	w.note("a second %s", p.Name)
	p.Unwanted = false
	p.Start()
}

func (w *world) endSecond() {
	if w.second != nil {
		w.second.p.Kill(false)
		w.second.p.Unwanted = true
	}
}

// endSeconds ends the second processes, except those that their regions need by now.
func (w *world) endSeconds() {
	w.endSecond()
	for _, r := range w.regions {
		if s := r.second; s != nil {
			s.p.Unwanted = !slices.Contains(r.raft.servers, s)
			if s.p.Unwanted {
				s.p.Kill(false)
			}
		}
		if a := r.secondAgent; a != nil {
			a.p.Unwanted = a.disk.starts == 0
		}
	}
}

// director plays scenes in a world.
type director struct{ *world }

// scenes are sequences of faults and operations that random faults rarely make in the right order.
// Half of the worlds play scenes from time to time, in addition to everything random.
var scenes = [...]func(d director, r *regionSim){
	director.version, director.lease, director.late, director.verdict, director.oldLog, director.killed, director.rebound, director.clocks, director.deposed, director.copied, director.apart,
}

// begin plays scenes from time to time, in half of the worlds.
func (w director) begin() {
	if n := w.seed % 8; n != 0 && n < 4 || n == 7 {
		return
	}
	var next func()
	next = func() {
		if w.Now > int64(calm-100*time.Second) {
			return
		}
		w.In(w.Between(60*time.Second, 90*time.Second), next)
		if t := w.active(); t != nil {
			if owners := w.owners(t); len(owners) > 0 {
				i, r := w.Rng.IntN(len(scenes)), owners[w.Rng.IntN(len(owners))]
				w.note("scene %d in %s", i, r.name)
				scenes[i](w, r)
			}
		}
	}
	w.In(w.Between(50*time.Second, 70*time.Second), next)
}

// owners returns the connected regions that own an instance of a service that bind can change.
func (w director) owners(t *globalTerm) (out []*regionSim) {
	for _, r := range w.regions {
		for _, s := range t.slots {
			if s.Region == r.name && t.regions[r.name].life.Connected() && w.changeable(t, s) {
				out = append(out, r)
				break
			}
		}
	}
	return out
}

// changeable reports whether bind may change the job of a slot.
func (director) changeable(t *globalTerm, s region.Slot) bool {
	j := t.jobs[s.Job]
	return !s.System && j != nil && !j.stopped && j.colocate == nil && j.typ == state.Service && s.Desired == region.DesiredRun
}

// version changes the jobs of a region that has just been cut off. The region continues with a
// version that no lease binds, or that takes longer to stop.
func (w director) version(r *regionSim) {
	w.bind(r, func(g *groupVersion) {
		g.region.stop, g.kill = !w.Chance(3), 10*time.Second
	})
	w.In(w.Between(15*time.Second, 20*time.Second), func() {
		w.isolate(r, w.Between(30*time.Second, 60*time.Second))
		w.In(w.Between(0, 2*time.Second), func() { w.bind(r, func(g *groupVersion) { g.region.stop, g.kill = true, 0 }) })
	})
}

// lease shortens the lease while a region that holds a long one is cut off.
func (w director) lease(r *regionSim) {
	w.restartGlobals(30 * time.Second)
	w.In(w.Between(10*time.Second, 12*time.Second), func() { w.bind(r, func(g *groupVersion) { g.region.stop, g.kill = true, 0 }) })
	w.In(w.Between(25*time.Second, 30*time.Second), func() {
		w.isolate(r, w.Between(30*time.Second, 60*time.Second))
		w.In(w.Between(0, time.Second), func() { w.restartGlobals(6 * time.Second) })
	})
}

// late isolates a region until slots that a lease binds have moved to other regions. When the
// region returns, its servers store their orders slowly.
func (w director) late(r *regionSim) {
	w.bind(r, func(g *groupVersion) { g.region.stop, g.kill, g.setup = true, w.Between(0, 2*time.Second), 0 })
	w.In(w.Between(15*time.Second, 20*time.Second), func() {
		d := w.Between(30*time.Second, 50*time.Second)
		w.isolate(r, d)
		for _, s := range r.raft.servers {
			w.slowDisk(s.h, d-time.Second, 12*time.Second, time.Second)
		}
	})
}

// verdict lets a region return just when it is declared lost, while the store is slow.
func (w director) verdict(r *regionSim) {
	w.bind(r, func(g *groupVersion) { g.region.stop = false })
	w.In(w.Between(15*time.Second, 20*time.Second), func() {
		d := w.Between(4*time.Second, 8*time.Second)
		w.isolate(r, d)
		w.slowDisk(w.etcd.P.H, d-2*time.Second, 6*time.Second, 1500*time.Millisecond)
	})
}

// oldLog restores a region's log from a copy that was made before its instances moved from node to
// node. The operator forgets the command that begins a new incarnation.
func (w director) oldLog(r *regionSim) {
	if len(r.raft.copies) > 0 {
		return // once in each world is enough
	}
	w.bind(r, func(g *groupVersion) { g.node = policy{2 * time.Second, true, true} })
	w.In(15*time.Second, func() {
		r.raft.copies, r.raft.copiedTerm = append(r.raft.copies, r.raft.st.Snapshot()), r.raft.term
		for _, a := range r.agents {
			if w.Chance(2) {
				w.drain(r, a.id, true)
				w.In(10*time.Second, func() { w.drain(r, a.id, false) })
			}
		}
	})
	w.In(w.Between(30*time.Second, 40*time.Second), func() { w.restoreRegion(r) })
}

// killed kills the agents of a region while new orders are being written to slow disks. It
// withdraws the orders from some nodes.
func (w director) killed(r *regionSim) {
	w.bind(r, func(g *groupVersion) { g.node, g.kill, g.setup = policy{2 * time.Second, true, true}, 0, 0 })
	w.In(15*time.Second, func() {
		for _, a := range r.agents {
			w.slowDisk(a.h, 0, 15*time.Second, 2*time.Second)
		}
		w.bind(r, func(g *groupVersion) { g.cpu = map[int64]int64{100: 200, 200: 100, 500: 200}[g.cpu] }) // so that the instances start again
	})
	for _, a := range r.agents {
		at := w.Between(15500*time.Millisecond, 21*time.Second)
		w.In(at, func() {
			w.note("kill %s", a.id)
			a.p.Kill(false)
			w.In(w.Between(200*time.Millisecond, 2*time.Second), a.p.Start)
		})
		if w.Chance(2) {
			w.In(at, func() { w.drain(r, a.id, true) })
			w.In(at+20*time.Second, func() { w.drain(r, a.id, false) })
		}
	}
}

// drain begins or ends the drain of a node, if the node's region has a master.
func (w director) drain(r *regionSim, id string, on bool) {
	if m := r.master(); m != nil {
		m.propose(state.Command{DrainNode: &state.DrainNode{ID: id, Drain: on}}, nil)
	}
}

// rebound makes the region's lease bind instances that run, while renewals from before are late.
// Then it cuts the region off and kills its agents, so that only the supervisors are left.
func (w director) rebound(r *regionSim) {
	fenced := policy{2 * time.Second, true, true}
	w.bind(r, func(g *groupVersion) { g.region.stop, g.node, g.kill = false, fenced, 0 })
	w.In(15*time.Second, func() { w.lateRenewals = 2 })
	w.In(20*time.Second, func() { w.bind(r, func(g *groupVersion) { g.region.stop, g.node, g.kill = true, fenced, 0 }) })
	w.In(w.Between(20300*time.Millisecond, 22*time.Second), func() {
		w.lateRenewals = 0
		d := w.Between(30*time.Second, 50*time.Second)
		w.isolate(r, d)
		for _, a := range r.agents {
			a.p.Kill(false)
			w.In(min(d, calm-time.Duration(w.Now)), a.p.Start)
		}
	})
}

// clocks changes the wall clocks of a region's servers while nodes are cut off.
func (w director) clocks(r *regionSim) {
	w.bind(r, func(g *groupVersion) { g.node, g.kill = policy{2 * time.Second, true, true}, 10*time.Second })
	w.In(w.Between(15*time.Second, 20*time.Second), func() {
		for _, a := range r.agents[1:] {
			for _, s := range r.raft.servers {
				w.cutPair(a.h, s.h, 40*time.Second, true)
			}
		}
	})
	w.In(w.Between(20*time.Second, 35*time.Second), func() {
		for _, s := range r.raft.servers {
			s.h.WallOff += int64(w.Between(-time.Hour, 5*time.Hour))
		}
	})
}

// deposed cuts the active server off the store, but not off the regions.
func (w director) deposed(*regionSim) {
	if t := w.active(); t != nil {
		w.cutPair(t.g.h, w.etcd.P.H, w.Between(15*time.Second, 40*time.Second), true)
	}
}

// copied restores the store from a copy that has a bound version and another owner: since the copy
// the instances run elsewhere, and no lease binds them. Only the region of the copy is connected.
func (w director) copied(r *regionSim) {
	if len(w.etcd.Copies) > 0 {
		return
	}
	w.bind(r, func(g *groupVersion) { g.region.stop, g.kill, g.setup = true, 2*time.Second, 0 })
	w.In(15*time.Second, func() {
		w.etcd.CopyNow()
		w.bind(r, func(g *groupVersion) { g.region.stop = false })
	})
	w.In(20*time.Second, func() { operator(w).setDraining(r.name, true) })
	w.In(w.Between(40*time.Second, 45*time.Second), func() {
		for _, o := range w.regions {
			if o != r {
				w.isolate(o, w.Between(60*time.Second, 100*time.Second))
			}
		}
		w.restoreStore()
	})
}

// apart cuts at least three regions off together. While they are silent, it restarts the active
// server, so that another term begins with the alarm of a mass loss in the store.
func (w director) apart(r *regionSim) {
	w.bind(r, func(g *groupVersion) { g.region.stop = false })
	w.In(w.Between(15*time.Second, 20*time.Second), func() {
		d, off := w.Between(40*time.Second, 80*time.Second), []*regionSim{r}
		for _, o := range w.regions {
			if o != r && len(off) < 3 {
				off = append(off, o)
			}
		}
		for _, o := range off {
			w.isolate(o, d)
		}
		w.In(w.Between(15*time.Second, 30*time.Second), func() {
			if t := w.active(); t != nil {
				w.note("kill %s", t.g.name)
				t.g.p.Kill(false)
				w.In(w.Between(200*time.Millisecond, 2*time.Second), t.g.p.Start)
			}
		})
	})
}

// bind stores a new version of a job that a region owns. In the new version the region is declared
// lost after 2 s. change makes further changes to each group.
func (w director) bind(r *regionSim, change func(g *groupVersion)) {
	w.submit(func(t *globalTerm) *jobRecord {
		for _, key := range sortedKeys(t.slots) {
			s := t.slots[key]
			old := t.jobs[s.Job]
			if s.Region != r.name || isChild(s.Job) || !w.changeable(t, s) {
				continue
			}
			v := *old.jobVersion
			v.version++
			v.groups = nil
			for _, g := range old.groups {
				next := *g
				next.region.after, next.region.replace = 2*time.Second, true
				next.singleton, next.regionKeep = false, false
				change(&next)
				next.hash = next.identity()
				v.groups = append(v.groups, &next)
			}
			v.spec = fmt.Appendf(nil, "%s v%d %d", v.name, v.version, len(w.specs))
			w.specs[string(v.spec)], w.versions[versionKey{v.name, v.version}] = &v, &v
			if w.Tracing() {
				w.Tracef("operator: change %s", &v)
			}
			return &jobRecord{jobVersion: &v, run: old.run, revision: old.revision}
		}
		return nil
	})
}

// isolate cuts a region off the global tier in both directions.
func (w director) isolate(r *regionSim, d time.Duration) {
	d = min(d, calm-time.Duration(w.Now))
	w.note("isolate %s for %s", r.name, d)
	for _, s := range r.raft.servers {
		for _, g := range w.globals {
			w.cutFor(s.h, g.h, d)
			w.cutFor(g.h, s.h, d)
		}
	}
}

// slowDisk makes a disk slow for a while.
func (w director) slowDisk(h *machine.Host, from, d, delay time.Duration) {
	w.In(from, func() { h.DiskDelay = delay })
	w.In(min(from+d, calm-time.Duration(w.Now)), func() { h.DiskDelay = 3 * time.Millisecond })
}

// restartGlobals restarts every global server with another --lease.
func (w director) restartGlobals(lease time.Duration) {
	for _, g := range w.globals {
		g.lease = lease
		g.p.Kill(false)
		w.In(w.Between(100*time.Millisecond, time.Second), g.p.Start)
	}
	w.note("all global servers start again with --lease %s", lease)
}
