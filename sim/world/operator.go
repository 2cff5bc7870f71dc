package world

import (
	"fmt"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/sim/world/machine"
	"github.com/nusa-scheduler/nusa/sim/world/store"
)

// operate submits jobs at the beginning, and makes changes from time to time.
func (w *world) operate() {
	for range 2 + w.Rng.IntN(3) {
		w.In(w.Between(3*time.Second, 20*time.Second), w.submitNew)
	}
	w.In(w.Between(30*time.Second, 60*time.Second), w.operation)
	if w.Chance(6) {
		at := w.Between(40*time.Second, 250*time.Second)
		w.In(at, func() { w.etcd.CopyNow() })
		w.In(at+w.Between(5*time.Second, 120*time.Second), w.restoreStore)
	} else if w.Chance(4) {
		w.In(w.Between(60*time.Second, 250*time.Second), func() {
			c, after := w.etcd.CopyNow(), w.Between(0, 30*time.Second)
			w.In(after, func() { operator{w}.wipeStore(c) })
			for _, r := range w.regions {
				if w.life && w.Chance(2) {
					w.In(max(0, after-w.Between(0, 10*time.Second)), func() { operator{w}.override(r) })
				}
			}
		})
	}
	if w.Chance(6) {
		r, at := w.regions[w.Rng.IntN(len(w.regions))], w.Between(40*time.Second, 250*time.Second)
		w.In(at, func() { r.raft.copies, r.raft.copiedTerm = append(r.raft.copies, r.raft.st.Snapshot()), r.raft.term })
		w.In(at+w.Between(5*time.Second, 120*time.Second), func() { w.restoreRegion(r) })
	}
}

// restoreStore restores the store from an old copy, and recovers it when a conflict shows.
func (w *world) restoreStore() {
	if w.Tracing() {
		w.Tracef("operator: restore the store to revision %d from %d", w.etcd.Copies[0].Rev, w.etcd.Rev)
	}
	for _, g := range w.globals {
		g.p.Kill(false)
	}
	w.etcd.Restore(w.etcd.Copies[0])
	w.watch.restored()
	for _, g := range w.globals {
		w.In(w.Between(100*time.Millisecond, 5*time.Second), g.p.Start)
	}
	w.In(time.Second, w.recoverStore)
}

// wipeStore replaces the store by an empty one. Global servers with new data directories begin
// another federation in it, which no region joins. An operator notices that, and restores a copy.
func (o operator) wipeStore(c *store.Copy) {
	for _, r := range o.regions {
		if r.raft.st.Snapshot().Cluster().FederationID == "" {
			return // the region would join the other federation
		}
	}
	replace := func(what string, contents func()) {
		if o.Tracing() {
			o.Tracef("operator: %s", what)
		}
		for _, g := range o.globals {
			g.p.Kill(false)
			g.known = 0
		}
		contents()
		o.watch.restored()
		for _, g := range o.globals {
			o.In(o.Between(100*time.Millisecond, 5*time.Second), g.p.Start)
		}
	}
	replace("wipe the store", o.etcd.Wipe)
	o.wiped()
	o.In(o.Between(10*time.Second, 60*time.Second), func() {
		replace("restore the store after the wipe", func() { o.etcd.Restore(c) })
		o.In(time.Second, o.recoverStore)
	})
}

func (w *world) recoverStore() {
	w.In(w.Between(5*time.Second, 20*time.Second), w.recoverStore)
	if t := w.active(); t != nil && t.leadership.conflict {
		if w.Tracing() {
			w.Tracef("operator: recover the store")
		}
		t.recover()
	}
	operator{w}.rebind()
}

// rebind lets a region join the federation again. The region may have joined another federation
// while the store was wiped, because a log without a federation joins any.
func (o operator) rebind() {
	for _, r := range o.regions {
		m, have := r.master(), r.raft.st.Snapshot().Cluster().FederationID
		if m == nil || have == "" || have == o.etcd.Federation || o.etcd.Federation != store.Federation(1) {
			continue
		}
		if o.Tracing() {
			o.Tracef("operator: rebind %s", r.name)
		}
		m.propose(state.Command{RebindFederation: &state.RebindFederation{FederationID: o.etcd.Federation}}, nil)
	}
}

// restoreRegion replaces a region's log by an old copy. The operator runs the command that begins a
// new incarnation. A careless operator first forgets that command.
func (w *world) restoreRegion(r *regionSim) {
	careless := w.Chance(2)
	put := func(v *state.View, bump bool) {
		if r.clusters > 0 || v.Cluster().FeatureLevel == 0 {
			return // the copy is of a cluster that is gone, or of servers that know nothing of old copies
		}
		g := r.raft
		r.dropSecond()
		for _, s := range g.servers {
			s.p.Kill(false)
		}
		if g.leader != nil {
			g.leader.ended, g.leader.inFlight = true, nil
		}
		g.st, g.index = v.Fork(), v.Index()
		r.careless = r.careless || !bump
		if !bump { // the restored directory contains its term; the command begins above it
			g.term = g.copiedTerm
		}
		if bump {
			r.incarnation = max(r.incarnation, v.Cluster().Incarnation) + 1 // the second restore of a copy needs --incarnation
			g.commit([]state.Command{{NowUnixNano: machine.Epoch + w.Now, BumpIncarnation: &state.BumpIncarnation{Incarnation: r.incarnation}}})
		}
		if w.Tracing() {
			w.Tracef("operator: restore %s to index %d, new incarnation %v", r.name, g.index, bump)
		}
		w.watch.restoredRegion(r)
		for _, s := range g.servers {
			s.start.Index = g.index
			w.In(w.Between(100*time.Millisecond, 3*time.Second), s.p.Start)
		}
	}
	put(r.raft.copies[0], !careless)
	if careless {
		w.In(w.Between(10*time.Second, 60*time.Second), func() { put(r.raft.copies[0], true) })
	}
}

func (w *world) operation() {
	if w.Now > int64(calm)-int64(10*time.Second) {
		return
	}
	w.In(w.Between(10*time.Second, 50*time.Second), w.operation)
	w.watch.stats.Operations++
	switch w.Rng.IntN(19) {
	case 0, 1:
		w.submitNew()
	case 2, 3, 4:
		w.change()
	case 5:
		w.stopJob()
	case 6, 7:
		w.drainNode()
	case 8:
		w.cordonRegion()
	case 9:
		w.changeLease()
	case 10:
		w.loseRegion()
	case 11, 12:
		operator{w}.drainRegion()
	case 13, 14:
		operator{w}.failback()
	case 15, 16:
		operator{w}.changeOwn()
	case 17:
		operator{w}.changeNodeLease()
	case 18:
		operator{w}.removeNode()
	}
}

// submit stores a version of a job.
func (w *world) submit(make func(t *globalTerm) *jobRecord) {
	t := w.active()
	if t == nil {
		return
	}
	t.commit(func() []store.Write {
		rec := make(t)
		if rec == nil {
			return nil
		}
		return append([]store.Write{{Key: jobPrefix + rec.name, Value: rec}}, rollouts{t}.writes(rec)...)
	}, nil)
}

func (w *world) submitNew() {
	if w.jobNames >= 6 {
		return
	}
	w.jobNames++
	name := fmt.Sprintf("job%d", w.jobNames)
	w.submit(func(*globalTerm) *jobRecord {
		v := w.newVersion(name, nil)
		w.versions[versionKey{name, v.version}] = v
		if v.typ == state.System {
			w.systemJobs[name] = true
		}
		if w.Tracing() {
			w.Tracef("operator: submit %s", v)
		}
		return &jobRecord{jobVersion: v}
	})
}

func (w *world) aJob(t *globalTerm) *jobRecord {
	names := slices.DeleteFunc(sortedKeys(t.jobs), isChild)
	if len(names) == 0 {
		return nil
	}
	return t.jobs[names[w.Rng.IntN(len(names))]]
}

func (w *world) change() {
	w.submit(func(t *globalTerm) *jobRecord {
		old := w.aJob(t)
		if old == nil || old.stopped {
			return nil
		}
		v := w.newVersion(old.name, old.jobVersion)
		w.versions[versionKey{v.name, v.version}] = v
		if w.Tracing() {
			w.Tracef("operator: change %s", v)
		}
		return &jobRecord{jobVersion: v, run: old.run, revision: old.revision}
	})
}

// changePolicy changes the disconnect policies of a job with instances in a region.
func (w *world) changePolicy(r *regionSim) {
	w.submit(func(t *globalTerm) *jobRecord {
		for _, key := range sortedKeys(t.slots) {
			s := t.slots[key]
			old := t.jobs[s.Job]
			if s.Region != r.name || s.System || old == nil || old.stopped || old.colocate != nil || isChild(s.Job) || w.Chance(2) {
				continue
			}
			v := *old.jobVersion
			v.version++
			v.groups = nil
			for _, g := range old.groups {
				next := *g
				w.policies(&v, &next)
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

func (w *world) stopJob() {
	w.submit(func(t *globalTerm) *jobRecord {
		old := w.aJob(t)
		if old == nil {
			return nil
		}
		if w.Tracing() {
			w.Tracef("operator: stop %s: %v", old.name, !old.stopped)
		}
		next := &jobRecord{jobVersion: old.jobVersion, run: old.run, revision: old.revision, stopped: !old.stopped}
		if old.stopped {
			next.run = 0 // another run begins
		}
		return next
	})
}

func (w *world) drainNode() {
	r := w.regions[w.Rng.IntN(len(w.regions))]
	l := r.raft.leader
	if l == nil || l.ended || l.srv.lead == nil {
		return
	}
	a := r.agents[w.Rng.IntN(len(r.agents))]
	m := l.srv.lead
	if m.l != l {
		return
	}
	on := w.Chance(2)
	if w.Tracing() {
		w.Tracef("operator: drain %s: %v", a.id, on)
	}
	m.propose(state.Command{DrainNode: &state.DrainNode{ID: a.id, Drain: on}}, nil)
}

func (w *world) cordonRegion() {
	t := w.active()
	if t == nil || len(t.names) == 0 {
		return
	}
	name := t.names[w.Rng.IntN(len(t.names))]
	t.commit(func() []store.Write {
		rec := t.regions[name].rec
		if rec.Name == "" {
			return nil
		}
		rec.cordoned = !rec.cordoned
		return []store.Write{{Key: regionPrefix + name, Value: rec}}
	}, nil)
}

// loseRegion switches off every host of a region, and states that nothing runs there. Mostly the
// hosts are switched on again later.
func (w *world) loseRegion() {
	r := w.regions[w.Rng.IntN(len(w.regions))]
	if !w.Chance(3) {
		return
	}
	if w.Tracing() {
		w.Tracef("operator: switch off and lose %s", r.name)
	}
	var hosts []*machine.Host
	for _, s := range r.raft.servers {
		hosts = append(hosts, s.h)
	}
	for _, a := range r.agents {
		hosts = append(hosts, a.h)
	}
	for _, h := range hosts {
		h.Crash()
		h.Off = true
	}
	on := w.Between(40*time.Second, 120*time.Second)
	w.In(min(on, calm-time.Duration(w.Now)), func() {
		rec, _ := w.etcd.Value(regionPrefix + r.name).(regionRecord)
		if rec.NothingRuns && hosts[0].Off { // an earlier loss may have switched the hosts on
			r.empty()
		}
		for _, h := range hosts {
			h.Off = false
			h.Restart()
		}
	})
	w.In(w.Between(2*time.Second, 35*time.Second), func() {
		if t := w.active(); t != nil && hosts[0].Off {
			t.nothingRuns(r.name)
		}
	})
}

// nothingRuns states that a region is lost, and that nothing runs there.
func (t *globalTerm) nothingRuns(name string) {
	if r := t.regions[name]; r != nil && !r.life.Connected() && t.config().Serving(t.now()) {
		t.declare(name, region.Declare{Why: "lost by an operator", NothingRuns: true}, true)
	}
}

// operator maintains a world: its regions and processes.
type operator struct{ *world }

// changeRegion changes the record of a region, as global/api does for an operator.
func (operator) changeRegion(t *globalTerm, name string, change func(rec *regionRecord) bool) {
	t.commit(func() []store.Write {
		rec := t.regions[name].rec
		if rec.Name == "" || !change(&rec) { // a region whose hellos were all refused has no record
			return nil
		}
		return []store.Write{{Key: regionPrefix + name, Value: rec}}
	}, nil)
}

// aRegion returns the name of a random region that the active server knows, or "".
func (o operator) aRegion(t *globalTerm) string {
	if t == nil || len(t.names) == 0 {
		return ""
	}
	return t.names[o.Rng.IntN(len(t.names))]
}

// drainRegion begins or ends the drain of a region. Mostly it ends the drain later.
func (o operator) drainRegion() {
	t := o.active()
	name := o.aRegion(t)
	if name == "" {
		return
	}
	on := !t.regions[name].rec.draining
	o.setDraining(name, on)
	if on && !o.Chance(4) {
		o.In(min(o.Between(10*time.Second, 100*time.Second), calm-time.Duration(o.Now)), func() { o.setDraining(name, false) })
	}
}

// changeOwn submits, changes or stops one of a region's own jobs. A job of the federation may have
// the same name.
func (o operator) changeOwn() {
	r := o.regions[o.Rng.IntN(len(o.regions))]
	m := r.master()
	if m == nil {
		return
	}
	name := fmt.Sprintf("job%d", 1+o.Rng.IntN(2))
	old := r.own[name]
	if old != nil && o.Chance(3) {
		if o.Tracing() {
			o.Tracef("operator: stop %s@%s", name, r.name)
		}
		m.propose(state.Command{StopLocalJob: &state.StopLocalJob{Namespace: "default", Name: name}}, nil)
		return
	}
	v := o.newVersion(name, old)
	v.colocate = nil
	r.own[name] = v
	if o.Tracing() {
		o.Tracef("operator: submit to %s: %s", r.name, v)
	}
	m.propose(state.Command{SubmitLocalJob: &state.SubmitLocalJob{Job: *v.toState(true)}}, nil)
}

func (o operator) setDraining(name string, on bool) {
	t := o.active()
	if t == nil || t.regions[name] == nil {
		return
	}
	if o.Tracing() {
		o.Tracef("operator: drain region %s: %v", name, on)
	}
	o.changeRegion(t, name, func(rec *regionRecord) bool {
		if rec.draining == on {
			return false
		}
		rec.draining = on
		rec.returning = rec.returning && !on
		return true
	})
}

// failback lets the slots return to a region from which verdicts moved them, if the region is
// connected and not draining.
func (o operator) failback() {
	t := o.active()
	if t == nil {
		return
	}
	s, _ := t.snapshot()
	for _, name := range t.names {
		r := t.regions[name]
		if r.session == nil || r.rec.draining || r.rec.returning || !t.returning(name) {
			continue
		}
		all := place.Returns(s, name)
		if !slices.ContainsFunc(all, func(r place.Return) bool { return r.Returns }) {
			continue
		}
		if o.Tracing() {
			o.Tracef("operator: failback %s, %d moves", name, len(all))
		}
		o.watch.stats.Failbacks++
		o.changeRegion(t, name, func(rec *regionRecord) bool {
			again := !rec.returning
			rec.returning = true
			return again
		})
	}
}

// changeLease restarts a global server with another --lease.
func (w *world) changeLease() {
	g := w.globals[w.Rng.IntN(len(w.globals))]
	if t := w.active(); t != nil && w.Chance(2) {
		g = t.g
	}
	g.lease = machine.Pick[time.Duration](w.Engine, 6, 10, 15) * time.Second
	if w.Chance(2) {
		g.ttl = store.ShortestCandidacy * machine.Pick[time.Duration](w.Engine, 1, 2)
	}
	if w.Tracing() {
		w.Tracef("operator: %s starts again with --lease %s and a candidacy of %s", g.name, g.lease, g.ttl)
	}
	g.p.Kill(false)
	w.In(w.Between(100*time.Millisecond, 2*time.Second), g.p.Start)
}

// changeNodeLease restarts the servers of a region with another --node-lease.
func (o operator) changeNodeLease() {
	r := o.regions[o.Rng.IntN(len(o.regions))]
	if r.level() == 0 {
		return // servers of the earlier level do not know the lease that their predecessor granted
	}
	r.nodeLease = machine.Pick[time.Duration](o.Engine, 6, 10, 15) * time.Second
	if o.Tracing() {
		o.Tracef("operator: the servers of %s start again with --node-lease %s", r.name, r.nodeLease)
	}
	for _, s := range r.raft.servers {
		s.p.Kill(false)
		o.In(o.Between(100*time.Millisecond, 2*time.Second), s.p.Start)
	}
}
