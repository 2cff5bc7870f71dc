package world

import (
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/regional/regionlease"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// basis is what the watch knows about the region's lease at one master: the grants that arrived,
// and whether the log has had the facts on which each grant rests. It is computed without package
// regionlease, which the watch checks.
type basis struct {
	sent   map[uint64]time.Duration
	grants []grantSeen
}

type grantSeen struct {
	until  time.Duration
	basis  regionlease.Basis
	counts bool
	// federation is that of the log when the grant began to count.
	federation string
}

// requested notes a request for a region's lease.
func (v *watch) requested(u *uplink, id uint64, now time.Duration) {
	if u.seen.sent == nil {
		u.seen.sent = map[uint64]time.Duration{}
	}
	u.seen.sent[id] = now
	delete(u.seen.sent, id-64)
}

// received notes a grant that arrived.
func (v *watch) received(u *uplink, g regionlease.Grant) {
	at, ok := u.seen.sent[g.ID]
	if !ok {
		v.fail(4, "%s: a grant of a lease that was not requested", u.m.r.name)
		return
	}
	now := u.m.srv.h.Clock()
	u.seen.grants = slices.DeleteFunc(u.seen.grants, func(g grantSeen) bool { return g.until <= now })
	u.seen.grants = append(u.seen.grants, grantSeen{until: at + g.Duration, basis: g.Basis})
	v.logged(u)
}

// logged notes the grants whose facts the log has now.
func (v *watch) logged(u *uplink) {
	c := u.m.view().Cluster()
	for i := range u.seen.grants {
		g := &u.seen.grants[i]
		b := g.basis
		if g.counts {
			continue
		}
		g.federation, g.counts = c.FederationID, b.Term == c.LeadershipTerm && b.Nonce == c.LeadershipNonce && b.Fence == c.Fence && b.Incarnation == c.Incarnation &&
			b.Orders.Epoch == c.Orders.Epoch && b.Orders.Sequence <= c.Orders.Sequence
	}
}

// passedOn checks invariant 4: a master passes on no more than the remainder of a grant whose
// orders are all in its log, and which has the log's fence and incarnation.
func (v *watch) passedOn(m *master, left time.Duration) {
	if left <= 0 {
		return
	}
	v.logged(m.up)
	c, until := m.view().Cluster(), m.srv.h.Clock()+left
	for _, g := range m.up.seen.grants {
		if g.counts && g.until >= until && g.basis.Fence == c.Fence && g.basis.Incarnation == c.Incarnation && g.federation == c.FederationID {
			return
		}
	}
	v.fail(4, "%s passes on a lease for %s that rests on no grant whose orders its log has", m.r.name, left)
}

// nodeStored checks that an agent has stored the orders that it acknowledges.
func (v *watch) nodeStored(m *master, n *nodeState, at link.Position) {
	for _, a := range m.r.agents {
		if have := a.disk.position; a.id == n.id && have.Epoch == at.Epoch && have.Sequence < at.Sequence {
			v.fail(8, "%s: orders up to %v are acknowledged, stored is %v", n.id, at, have)
		}
	}
}

// fits checks that the runs on a host fit into its capacity.
func (v *watch) fits(r *run) {
	sum := int64(0)
	for _, o := range r.a.runs {
		if o.forked && !o.ended {
			sum += o.o.spec.cpu
		}
	}
	if sum > r.a.cpu && !r.a.r.careless && r.a.r.clusters == 0 {
		v.fail(8, "%s: %s is forked, and %d of %d are in use", r.a.id, r.o.instance, sum, r.a.cpu)
	}
}

// movedOn checks invariant 2 after a transaction: when an index has another owner or none, nothing
// that a lease binds runs at the former owner. Without a verdict, the former owner has answered
// that nothing runs, or that only a node without a lease may run it.
func (v *watch) movedOn() {
	for _, was := range v.written {
		r := v.w.regionNamed(was.Region)
		if r == nil || r.careless || r.clusters > 0 {
			continue
		}
		now, verdict := v.owners[groupName{was.Job, was.Group}], v.fences[was.Region].Lost
		for i := was.From; i < was.To; i++ {
			if now[i].region == was.Region {
				continue
			}
			for _, o := range v.live[instance{job: was.Job, group: was.Group, index: int32(i)}] {
				bound := o.o.binding&lease.Node != 0 && !verdict && !v.mayRun(was) || o.o.binding&lease.Region != 0
				if o.a.r == r && bound && executing(o) {
					v.fail(2, "%s changes its owner while %s runs it (bound by %s, verdict %v)", was, o.a.id, o.o.binding, verdict)
				}
			}
		}
	}
	v.written = v.written[:0]
}

// mayRun reports whether the region of a vacant slot may still run the slot: a lost node of the region
// may run it without a lease as far as the region knows.
func (v *watch) mayRun(s region.Slot) bool {
	return s.Vacant && slices.ContainsFunc(s.Former, func(f region.FormerOwner) bool { return f.Region == s.Region && f.MayRun })
}

// advances checks that the states of one offer only advance.
func (v *watch) advances(was, is region.Slot) {
	if was.Region != is.Region || is.Generation == 0 || was.Generation != 0 && was.Generation != is.Generation {
		return
	}
	states := []region.SlotState{region.Offered, region.Accepted, region.Done}
	desireds := []region.Desired{region.DesiredRun, region.DesiredRevoke, region.DesiredStop}
	back := slices.Index(states, is.State) < slices.Index(states, was.State) && was.JobVersion == is.JobVersion && was.Run == is.Run
	if back || slices.Index(desireds, is.Desired) < slices.Index(desireds, was.Desired) {
		v.fail(8, "%s (%s %s) follows %s %s of the same offer", is, is.State, is.Desired, was.State, was.Desired)
	}
}

// reported checks that the states of allocations only advance.
func (v *watch) reported(g *raftGroup, before *state.View, cmd *state.Command) {
	for i := range cmd.Batch {
		v.reported(g, before, &cmd.Batch[i])
	}
	if cmd.AgentReports == nil {
		return
	}
	after := g.st.Snapshot()
	for _, rep := range cmd.AgentReports.Reports {
		was, had := before.Alloc(rep.ID)
		is, has := after.Alloc(rep.ID)
		if had && has && (was.State >= state.Complete && was.State <= state.Stopped && is.State != was.State || was.State == state.Running && is.State == state.Pending) {
			v.fail(8, "%s: allocation %s becomes %v after %v", g.r.name, rep.ID, is.State, was.State)
		}
	}
}

// ordersStored checks that a region stores no orders of another federation.
func (v *watch) ordersStored(m *master, from string) {
	if c := m.view().Cluster(); c.FederationID != "" && c.FederationID != from && m.up.session != nil {
		v.fail(7, "%s of %s stores orders of %s", m.r.name, c.FederationID, from)
	}
}

// stopping checks invariant 7 when an agent stops a task: the global tier does not stop the
// region's own jobs, and a region gives up a slot that no lease binds only after an order.
func (v *watch) stopping(a *agent, al *agentAlloc, why reconcile.Reason) {
	o := al.order
	switch {
	case why == reconcile.Reason(state.ReasonRegionLease) && o.binding&lease.Region == 0:
		v.fail(7, "%s: %s stops because of a lease that does not bind it", a.id, o.instance)
	case why != reconcile.Reason(state.ReasonRevoked):
	case o.local:
		v.fail(7, "%s: %s is revoked, and is the region's own", a.id, o.instance)
	case o.binding == lease.None && o.instance.scope == "" && v.restoredAt == 0 && !a.r.careless && a.r.clusters == 0:
		is := v.owners[groupName{o.instance.job, o.instance.group}][int(o.instance.index)]
		if is.region == a.r.name && is.desired == region.DesiredRun && is.generation == o.generation {
			v.fail(7, "%s: %s is revoked, and %s owns it by generation %d", a.id, o.instance, a.r.name, o.generation)
		}
	}
}

// converged checks that each wanted index runs once, or has a stated reason.
func (w *world) converged() {
	t := w.active()
	if t == nil {
		w.watch.fail(9, "no global server is active")
		return
	}
	for _, name := range sortedKeys(t.jobs) {
		j := t.jobs[name]
		for _, g := range j.groups {
			if w.systemJobs[name] {
				continue
			}
			w.groupConverged(t, j, g)
		}
	}
	w.nothingWaits(t)
	for _, r := range w.regions {
		w.ownConverged(r)
	}
	if w.life {
		standing(w)
		stuck(w, t)
		w.watch.retries.lettersAtEnd(t)
		rollouts{t}.stand()
	}
}

// ownConverged checks the region's own jobs.
func (w *world) ownConverged(r *regionSim) {
	m := r.master()
	if m == nil {
		w.watch.fail(9, "%s has no master", r.name)
		return
	}
	for g := range m.view().Groups() {
		if !g.Key.Local || len(g.Slots) == 0 {
			continue
		}
		j, ok := m.view().Job(g.Key.JobKey(), g.Slots[0].JobVersion)
		if !ok || j.Type == state.System {
			continue
		}
		for i := range int32(8) {
			inst := instance{job: g.Key.Job, group: g.Key.Group, index: i, scope: r.name, own: true}
			want := slices.ContainsFunc(g.Slots, func(s *state.Slot) bool { return s.Desired == state.Run && s.From <= i && i < s.To })
			live := len(w.watch.live[inst])
			switch {
			case want && live == 1, !want && live == 0:
			case w.excused(nil, inst, owned{region: r.name}):
				w.watch.stats.Reasons++
			default:
				w.watch.fail(9, "%s runs %d times, wanted %v", inst, live, want)
			}
		}
	}
}

// nothingWaits checks that no change is in progress: every region is connected, every former owner
// has confirmed, and no slot is being given up.
func (w *world) nothingWaits(t *globalTerm) {
	for _, r := range w.regions {
		if have := t.regions[r.name]; have == nil || !have.life.Connected() {
			w.watch.fail(9, "%s is not connected", r.name)
		}
	}
	for _, key := range sortedKeys(t.slots) {
		s := t.slots[key]
		if len(s.Former) > 0 {
			w.watch.fail(9, "%s has former owners: %v", s, s.Former)
		}
		if at, ended := w.watch.exited[instance{job: s.Job, group: s.Group, index: int32(s.From)}]; ended && isChild(s.Job) && w.Now-at < 15e9 {
			continue // a run that has just ended is being forgotten
		}
		if isChild(s.Job) && w.Now-w.kids[s.Job].born < 5e9 {
			continue
		}
		if s.Desired != region.DesiredRun || s.State == region.Offered {
			w.watch.fail(9, "%s is %s %s", s, s.State, s.Desired)
		}
	}
}

func (w *world) groupConverged(t *globalTerm, j *jobRecord, g *groupVersion) {
	owners := w.watch.owners[groupName{j.name, g.group}]
	count := rollouts{t}.count(j, g)
	for i := range count + 4 {
		inst := instance{job: j.name, group: g.group, index: int32(i)}
		live := w.watch.live[inst]
		o, has := owners[i]
		want := !j.stopped && i < count
		switch {
		case !want && len(live) == 0:
		case want && w.watch.overrides.heldAt(inst, o):
			if len(live) > 0 {
				w.watch.fail(overrideKept, "%s runs on %s, and an override holds it", inst, live[0].a.id)
			}
		case !want:
			if w.excused(t, inst, o) {
				w.watch.stats.Reasons++
				continue
			}
			w.watch.fail(9, "%s is not wanted and runs on %s", inst, live[0].a.id)
		case has && o.state == region.Done && len(live) == 0:
		case len(live) == 1 && has && live[0].a.r.name == o.region:
		case w.excused(t, inst, o):
			w.watch.stats.Reasons++
		default:
			where := ""
			for _, r := range live {
				where += " " + r.a.id
			}
			w.watch.fail(9, "%s is owned by %q (%s %s) and runs on%s", inst, o.region, o.state, o.desired, where)
		}
	}
}

// excused reports whether an index has a stated reason not to run exactly once: its owner waits for
// a node, for the end of a back-off, or for a lease.
func (w *world) excused(t *globalTerm, i instance, o owned) bool {
	if o.region == "" {
		return w.noRoom(t, i)
	}
	r := w.regionNamed(o.region)
	m := r.master()
	if m == nil || m.plan == nil {
		return false
	}
	key := state.GroupKey{Namespace: "default", Job: i.job, Group: i.group, Local: i.own}
	if in := m.view().Instance(key, i.index); in.Finished() {
		return true
	}
	for _, u := range m.plan.Unplaced {
		if u.Key == key {
			return true
		}
	}
	for _, u := range m.plan.Waiting {
		if u.Key == key {
			return true
		}
	}
	// A run that has failed starts again after a second and a setup of up to 40 seconds.
	if at, ended := w.watch.exited[i]; ended && len(w.watch.live[i]) == 0 && w.Now-at < 45e9 {
		return true
	}
	for a := range m.view().Allocs() {
		if a.Key() == key && a.Index == i.index && a.Live() && a.ModifiedUnixNano > m.srv.h.Wall()-45e9 {
			return true // the instance starts, or restarts after a failure
		}
	}
	return false
}

// noRoom reports whether the placer gives a reason why an index has no owner.
func (w *world) noRoom(t *globalTerm, i instance) bool {
	s, _ := t.snapshot()
	for _, g := range place.MakePlan(s).Groups {
		if g.Job == i.job && g.Group == i.group && g.Unplaced > 0 && len(g.Pending) > 0 {
			return true
		}
	}
	return false
}

func (w *world) regionNamed(name string) *regionSim {
	for _, r := range w.regions {
		if r.name == name {
			return r
		}
	}
	return nil
}

// master returns the master of the present term, or nil.
func (r *regionSim) master() *master {
	if l := r.raft.leader; l != nil && !l.ended && l.srv.lead != nil && l.srv.lead.l == l {
		return l.srv.lead
	}
	return nil
}

// promoted checks a write of a rollout's record: a server promotes only canaries that have run for
// min_healthy.
func (v *watch) promoted(name string, old, next any) {
	was, _ := old.(*rolloutRecord)
	is, _ := next.(*rolloutRecord)
	j, _ := v.w.etcd.Value(jobPrefix + name).(*jobRecord)
	if was == nil || is == nil || was.Promoted || !is.Promoted || !is.Decided || j == nil || v.restoredAt != 0 {
		return
	}
	for _, c := range is.Canaries {
		g := j.group(c.Group)
		if g == nil {
			continue
		}
		for i := c.From; i < c.From+c.N; i++ {
			at, ran := v.life.up[upKey{instance{job: name, group: c.Group, index: int32(i)}, is.Version}]
			// The clock of a server may be one per cent fast.
			if least := g.life.minHealthy - g.life.minHealthy/50; !ran || time.Duration(v.w.Now-at) < least {
				v.fail(canariesKept, "canary %d of %s/%s v%d is promoted after %s; min_healthy is %s", i, name, c.Group, is.Version, time.Duration(v.w.Now-at), g.life.minHealthy)
			}
		}
	}
}

// early checks a write of a slot: no instance below the canaries gets the version of an unpromoted rollout.
func (v *watch) early(old, next any) {
	was, had := old.(region.Slot)
	is, has := next.(region.Slot)
	if !v.w.life || !had || !has || is.Desired != region.DesiredRun || v.restoredAt != 0 {
		return
	}
	rec, _ := v.w.etcd.Value(rolloutPrefix + is.Job).(*rolloutRecord)
	j, _ := v.w.etcd.Value(jobPrefix + is.Job).(*jobRecord)
	if j == nil || rec.stored().Of(is.Group) == nil || rec.Promoted || rec.Version != j.rolledOut() || j.stopped {
		return
	}
	if c := rec.stored().Of(is.Group); is.From < c.From && was.JobVersion < rec.Version && is.JobVersion >= rec.Version {
		v.fail(canariesKept, "%s gets version %d, whose canaries from %d on are not promoted", is, is.JobVersion, c.From)
	}
}

// stand checks at the end that no rollout stands still.
func (t rollouts) stand() {
	if t.w.watch.restoredAt != 0 || t.level() == 0 {
		return
	}
	for _, name := range sortedKeys(t.jobs) {
		j := t.jobs[name]
		if !t.evaluates(j) || strings.Contains(name, ".") {
			continue
		}
		t.w.watch.turns.stands(t, j)
		if next, d := t.evaluate(j); next != nil {
			t.w.watch.fail(canariesKept, "the rollout of %s v%d stands still: %s: %s", name, next.Version, d.Kind, d.Why)
		}
	}
}
