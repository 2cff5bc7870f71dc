package world

import (
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/sim/world/machine"
)

// upgrades lets one world in five begin with processes of the feature level before the present
// one. An operator upgrades them one by one.
func (o operator) upgrades() {
	if o.seed%5 != 3 {
		return
	}
	o.upgraded = true
	at := func() time.Duration { return o.Between(40*time.Second, 350*time.Second) }
	for _, g := range o.globals {
		g.old = o.Chance(3)
		if g.old {
			o.In(at(), func() { o.upgrade(g.p, &g.old, nil) })
		}
	}
	for _, r := range o.regions {
		next, last := at(), time.Duration(0)
		some := o.Chance(2)
		for _, s := range r.raft.servers {
			s.old = some && !o.Chance(4)
			if s.old {
				last = min(next, 380*time.Second)
				o.In(last, func() { o.upgrade(s.p, &s.old, r.levelChanged) })
				next += o.Between(5*time.Second, 40*time.Second)
			}
		}
		if last > 0 && o.Chance(2) {
			o.uninformed(r, last)
		}
		for _, a := range r.agents {
			a.old = o.Chance(2)
			if a.old {
				o.In(at(), func() { o.upgrade(a.p, &a.old, nil) })
			}
		}
	}
}

// uninformed changes a job of a region of the earlier level to a version that the node's lease binds.
// The instances go on, and their agents do not learn of the lease. Some agents are cut off before
// the last server of the region is upgraded.
func (o operator) uninformed(r *regionSim, last time.Duration) {
	d := director(o)
	node := func(stop bool) func() {
		return func() {
			d.bind(r, func(g *groupVersion) {
				g.region.stop, g.node, g.kill, g.setup = false, policy{2 * time.Second, stop, true}, 2*time.Second, 0
			})
		}
	}
	o.In(last-35*time.Second, node(false))
	o.In(last-10*time.Second, node(true))
	o.In(last-o.Between(0, 2*time.Second), func() {
		for _, a := range r.agents {
			for _, s := range r.raft.servers {
				if a != r.agents[0] {
					o.cutPair(a.h, s.h, min(60*time.Second, calm-time.Duration(o.Now)), true)
				}
			}
		}
	})
}

// upgrade starts a process again in the present version.
func (o operator) upgrade(p *machine.Proc, old *bool, done func()) {
	if o.Tracing() {
		o.Tracef("operator: upgrade %s", p.Name)
	}
	p.Kill(false)
	*old = false
	o.In(o.Between(100*time.Millisecond, 3*time.Second), func() {
		p.Start()
		if done != nil {
			done()
		}
	})
}

// removeNode removes a node while it is switched off or cut off. Later the node returns, with its
// disk or with an empty one. The node returns with its disk only if that starts nothing that no
// lease binds: the removal says that such work is gone.
func (o operator) removeNode() {
	r := o.regions[o.Rng.IntN(len(o.regions))]
	a, d := r.agents[o.Rng.IntN(len(r.agents))], min(o.Between(20*time.Second, 90*time.Second), calm-time.Duration(o.Now))
	if a.p.Unwanted || a.h.Down || d < 10*time.Second {
		return
	}
	empty := false
	if o.Chance(2) {
		for _, s := range r.raft.servers {
			o.cutPair(a.h, s.h, d, true)
		}
	} else {
		o.note("switch off %s for %s", a.id, d)
		a.h.Crash()
		a.h.Off = true
		empty = o.Chance(2)
		o.In(d, func() { o.switchOn(a, empty) })
	}
	o.In(o.Between(10*time.Second, d), func() {
		if empty || !a.mayRunUnbound() {
			o.remove(r, a.id)
		}
	})
}

// mayRunUnbound reports whether a node without contact runs work that no lease binds, or starts such
// work again by the orders on its disk.
func (a *agent) mayRunUnbound() bool {
	for _, run := range a.runs {
		if !run.ended && run.o.binding == lease.None {
			return true
		}
	}
	for id, o := range a.disk.orders {
		if a.understood(o).binding == lease.None && o.want == state.Run && a.disk.records[id].End == nil && !a.disk.removed[id] {
			return true
		}
	}
	return len(a.disk.pending) > 0
}

// remove removes a node that is not ready, as regional/api does.
func (o operator) remove(r *regionSim, id string) {
	m := r.master()
	if m == nil {
		return
	}
	n, known := m.view().Node(id)
	if !known || n.Status == state.NodeReady || sched.BoundLeft(m.planInput(), id) > 0 {
		return
	}
	if o.Tracing() {
		o.Tracef("operator: remove %s", id)
	}
	m.propose(state.Command{RemoveNode: &state.RemoveNode{ID: id}}, nil)
}

// switchOn switches a node on again, unless its whole region is switched off. A node with an empty
// disk gets another id, so the operator removes the earlier one.
func (o operator) switchOn(a *agent, empty bool) {
	if !a.h.Off || a.r.raft.servers[0].h.Off {
		return
	}
	if empty {
		a.forget()
		was := a.id
		a.id += "+"
		var again func()
		again = func() {
			o.In(o.Between(5*time.Second, 20*time.Second), again)
			o.remove(a.r, was)
		}
		again()
	}
	a.h.Off = false
	a.h.Restart()
}

// level is the least feature level of a region's servers.
func (r *regionSim) level() uint32 {
	if slices.ContainsFunc(r.raft.servers, func(s *regionServer) bool { return s.old }) {
		return 0
	}
	return state.FeatureLevel
}

// levelChanged tells the master that a server was upgraded.
func (r *regionSim) levelChanged() {
	if m := r.master(); m != nil {
		m.limits()
	}
}

// bindingOf returns the leases that an order of this master names. A master of the level before
// names none, so agents follow the policy for lost nodes.
func (m *master) bindingOf(g *groupVersion, local bool) lease.Binding {
	b := bindingOf(g, local)
	if m.srv.old {
		b &= lease.Node
	}
	return b
}

// understood is an order as the agent's version reads it.
func (a *agent) understood(o allocOrder) allocOrder {
	if a.old {
		o.binding &= lease.Node
	}
	return o
}

// understands checks that every server of a region can read what its log gets.
func (v *watch) understands(r *regionSim, cmd *state.Command) {
	if r.raft == nil || r.level() > 0 {
		return
	}
	for i := range cmd.Batch {
		v.understands(r, &cmd.Batch[i])
	}
	if cmd.JoinFederation != nil || cmd.RebindFederation != nil || cmd.SetLimits != nil || cmd.OrdersStored != nil {
		v.fail(8, "the log of %s gets a command that a server of the level before cannot read", r.name)
	}
}

// supported checks where a version runs that the region's lease binds: only in regions in which
// that lease ends it.
func (v *watch) supported(a *agent, o allocOrder) {
	if o.want == state.Run && !o.local && o.spec.boundByRegion() && o.binding&lease.Region == 0 {
		v.fail(1, "%s runs %s, and does not know that the region's lease binds it", a.id, o.instance)
	}
}

// gaveUp notes which runs continue although their region gives their allocations up. A region of
// the level before may do that: see sim/LEDGER.md.
func (v *watch) gaveUp(g *raftGroup, res *state.Result) {
	for i := range res.Batch {
		v.gaveUp(g, &res.Batch[i])
	}
	for _, a := range res.Orders {
		if a.State == state.Lost {
			v.leave(instanceOf(g.r, a), func(r *run) bool { return r.o.id == a.ID })
		}
	}
}

// answered notes which runs continue although their region, of the level before, answers that it
// has given their instances up.
func (v *watch) answered(r *regionSim, a state.Answer) {
	if a.State == state.SlotAccepted || a.State == state.SlotKept {
		return
	}
	for i := a.From; i < a.To; i++ {
		v.leave(instance{job: a.Job, group: a.Group, index: i}, func(o *run) bool { return o.a.r == r })
	}
}

func (v *watch) leave(i instance, of func(r *run) bool) {
	for _, r := range v.live[i] {
		r.givenUp = r.givenUp || of(r)
	}
}

// early reports whether a region of the level before placed the allocation of a run.
func (r *run) early() bool { return r.o.placed <= r.a.r.leveledIndex }
