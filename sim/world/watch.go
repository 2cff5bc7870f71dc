package world

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/sim/world/attempts"
	"github.com/nusa-scheduler/nusa/sim/world/machine"
	"github.com/nusa-scheduler/nusa/sim/world/store"
)

// watch checks, by true time, what must always hold. It sees each change where the change happens,
// so it scans nothing.
type watch struct {
	w *world
	// failed is the first violation; empty: none.
	failed string
	// invariant is the number of the invariant that failed violates.
	invariant int
	live      map[instance][]*run
	exited    map[instance]int64 // when a run of the instance last ended on its own
	epochs    map[instance]*epochsSeen
	owners    map[groupName]map[int]owned
	// greatest holds the offer with the greatest generation of each index.
	greatest map[groupName]map[int]owned
	logs     []logNumbers // by region
	fences   map[string]region.Record
	term     region.Term // term in the store
	// restoredAt is when the store was restored from an old copy; 0: never.
	restoredAt int64
	// lastMessage is the true time at which the last message of a region arrived at an active server.
	// Messages that show that grants do not arrive at the region do not count.
	lastMessage map[string]time.Duration
	written     []region.Slot // the slots that the present transaction of the store changes
	stats       Stats
	life        lifeSeen
	kids        kidsSeen
	overrides   overrideWatch
	retries     *retryWatch
	turns       turnWatch
}

type groupName struct{ job, group string }

// owned says who owns an index, according to the store.
type owned struct {
	region     string
	generation int64
	desired    region.Desired
	state      region.SlotState
}

type epochsSeen struct {
	alloc map[[2]int64]string
	// latest is the latest run that a lease of a region bound.
	latest *run
}

type logNumbers struct {
	leadership, fence, incarnation, raftTerm uint64
	index                                    uint64
	federation                               string
}

// Stats counts what happened in a world.
type Stats struct {
	Virtual                                           time.Duration
	Steps, Forks, Faults, Operations                  int
	Verdicts, Moves, Heals, Elections, Terms, Reasons int
	LeaseEnds, Failbacks                              int
	// Left counts the answers by which regions returned instances because of their retry policies, and Letters the dead
	// letters.
	Left, Letters int
	// Alarms counts the terms that began with the stored alarm of a mass loss.
	Alarms int
}

// Add adds the counts of another world.
func (s *Stats) Add(o Stats) {
	s.Virtual += o.Virtual
	s.Steps += o.Steps
	s.Forks += o.Forks
	s.Faults += o.Faults
	s.Operations += o.Operations
	s.Verdicts += o.Verdicts
	s.Moves += o.Moves
	s.Heals += o.Heals
	s.Elections += o.Elections
	s.Terms += o.Terms
	s.Reasons += o.Reasons
	s.LeaseEnds += o.LeaseEnds
	s.Failbacks += o.Failbacks
	s.Alarms += o.Alarms
	s.Left += o.Left
	s.Letters += o.Letters
}

func newWatch(w *world) *watch {
	return &watch{w: w, live: map[instance][]*run{}, exited: map[instance]int64{}, epochs: map[instance]*epochsSeen{}, owners: map[groupName]map[int]owned{}, greatest: map[groupName]map[int]owned{},
		fences: map[string]region.Record{}, lastMessage: map[string]time.Duration{}, retries: &retryWatch{w: w, checker: attempts.Checker{Stay: w.seed%5 == 3}}, overrides: overrideWatch{w, map[overrideKey]*overridden{}, map[string]bool{}}, turns: turnWatch{w: w, begun: map[string]*turns{}, unpaused: map[string]int64{}, failed: map[string]int64{}}}
}

func (v *watch) fail(invariant int, format string, args ...any) {
	if v.failed == "" {
		v.invariant = invariant
		v.failed = fmt.Sprintf("invariant %d: %s, at %.3f s", invariant, fmt.Sprintf(format, args...), float64(v.w.Now)/1e9)
		v.w.Tracef("VIOLATION %s", v.failed)
	}
}

// executing reports whether a process can do anything. A suspended host runs nothing. A host that
// has just resumed needs a moment to kill processes whose deadline has passed.
func executing(r *run) bool {
	h := r.a.h
	return !h.Suspended() && (h.ResumedAt == 0 || h.E.Now-h.ResumedAt > int64(time.Second))
}

// fork checks invariants 1, 3 and 5 when a process begins.
func (v *watch) fork(r *run) {
	v.stats.Forks++
	now, b := r.a.h.Clock(), r.o.binding
	if r.newest.At != 0 && r.newest.At <= now {
		v.fail(3, "%s: %s is forked %s after its deadline", r.a.id, r.o.instance, now-r.newest.At)
	}
	if b != lease.None && r.newest.At == 0 {
		v.fail(3, "%s: %s is bound by %s and is forked without a deadline", r.a.id, r.o.instance, b)
	}
	if _, stored := r.a.disk.orders[r.o.id]; !stored {
		v.fail(8, "%s forks %s by an order that it has not stored", r.a.id, r.o.instance)
	}
	for _, o := range v.live[r.o.instance] {
		switch {
		case !executing(o):
		case o.givenUp, o.a.r == r.a.r && r.early(): // a region of the level before gives instances up while they may run
		case o.a.r == r.a.r && o.o.binding&lease.Node == 0 && (o.a.r.careless || o.a.r.incarnation > 0):
			// A copy of the region's log does not have this run.
		case o.a.r == r.a.r && b&lease.Node != 0:
			v.fail(1, "%s forks %s while %s runs it (node lease)", r.a.id, r.o.instance, o.a.id)
		case o.o.binding&lease.Region == 0 && (o.a.r.careless || o.a.r.incarnation > 0):
			// A copy of the region's log brings an earlier version back.
		case o.a.r != r.a.r && b&lease.Region != 0 && v.boundNow(r.o.instance):
			v.fail(1, "%s forks %s while %s runs it (region lease)", r.a.id, r.o.instance, o.a.id)
		}
	}
	v.live[r.o.instance] = append(v.live[r.o.instance], r)
	v.checkEpoch(r)
	v.life.forked(r, v.w.Now)
	v.fits(r)
	v.atOnce(r)
	v.kidForks(r)
	if r.o.local && b&lease.Region != 0 {
		v.fail(7, "%s: the region's lease binds %s", r.a.id, r.o.instance)
	}
}

func (v *watch) checkEpoch(r *run) {
	e := v.epochs[r.o.instance]
	if e == nil {
		e = &epochsSeen{alloc: map[[2]int64]string{}}
		v.epochs[r.o.instance] = e
	}
	k := [2]int64{r.o.generation, r.o.epoch}
	was, seen := e.alloc[k]
	if seen && was != r.o.id && !r.a.r.careless && (!r.o.local || r.o.generation > machine.Epoch/1_000_000) { // assumed: see sim/LEDGER.md
		v.fail(5, "%s and %s of %s share the epoch %d.%d", was, r.o.id, r.o.instance, k[0], k[1])
	}
	e.alloc[k] = r.o.id
	if r.o.binding&lease.Region == 0 {
		return
	}
	l := e.latest
	if l != nil && !v.copied(l.a.r) && !v.copied(r.a.r) && (l.o.generation > r.o.generation || l.o.generation == r.o.generation && l.o.epoch > r.o.epoch) {
		v.fail(5, "%s forks %s with the epoch %d.%d after %s ran it with %d.%d", r.a.id, r.o.instance, r.o.generation, r.o.epoch, l.a.id, l.o.generation, l.o.epoch)
	}
	e.latest = r
}

// copied reports whether the store or the log of a region was restored from a copy. Attempts of the
// copy then continue with their epochs, although later attempts ran elsewhere.
func (v *watch) copied(r *regionSim) bool {
	return v.restoredAt != 0 || r.careless || r.incarnation > 0
}

// boundNow reports whether the region's lease binds a group in the stored version of its job. After
// a change to a version that the lease does not bind, two regions may run an index.
func (v *watch) boundNow(i instance) bool {
	rec, ok := v.w.etcd.Keys[jobPrefix+i.job]
	if !ok {
		return true
	}
	g := rec.Value.(*jobRecord).group(i.group)
	return g == nil || g.boundByRegion()
}

// asked checks that a process is not asked to end because of a deadline that a newer one has
// replaced.
func (v *watch) asked(r *run) {
	if now := r.a.h.Clock(); r.guard.Cause() == lease.Expired && (r.newest.At == 0 || now < r.newest.At) {
		v.fail(3, "%s asks %s to end %s before its deadline", r.a.id, r.o.instance, r.newest.At-now)
	}
}

// reap checks that a process has not outlived its deadline and its stop time.
func (v *watch) reap(r *run) {
	l := v.live[r.o.instance]
	l = slices.DeleteFunc(l, func(o *run) bool { return o == r })
	if len(l) == 0 {
		delete(v.live, r.o.instance)
	} else {
		v.live[r.o.instance] = l
	}
	if r.cause == causeExited {
		v.exited[r.o.instance] = v.w.Now
		v.kids.exited(r)
	}
	if r.cause == causeLease {
		v.stats.LeaseEnds++
		if v.w.Now > int64(calm+60*time.Second) {
			v.fail(9, "%s: a lease ended %s, without a fault", r.a.id, r.o.instance)
		}
		if r.o.binding == lease.None && r.newest.At == 0 {
			v.fail(7, "%s: the end of a lease stopped %s, which no lease binds", r.a.id, r.o.instance)
		}
	}
	v.overdue(r)
}

// overdue checks invariant 3 for a process that is alive or has just been reaped.
func (v *watch) overdue(r *run) {
	h := r.a.h
	if r.newest.At == 0 || h.Suspended() || r.cause == causePower {
		return
	}
	late := h.Clock() - (r.newest.At + r.o.spec.kill)
	if sinceResume := time.Duration(v.w.Now - h.ResumedAt); h.ResumedAt > 0 && sinceResume < late {
		late = sinceResume
	}
	if late > time.Second {
		v.fail(3, "%s: %s lives %s after its deadline and stop time", r.a.id, r.o.instance, late)
	}
}

// ordered checks that orders do not go back at an agent.
func (v *watch) ordered(a *agent, was, is allocOrder) {
	if newer(was, is) {
		v.fail(5, "%s: order %d.%d of %s follows %d.%d", a.id, is.incarnation, is.index, is.id, was.incarnation, was.index)
	}
}

func (v *watch) elected(g *raftGroup, l *leadership) {
	v.stats.Elections++
	n := &v.logs[g.r.num]
	if l.term <= n.raftTerm {
		v.fail(8, "%s: two masters in term %d", g.r.name, l.term)
	}
	n.raftTerm = l.term
}

// applied checks that the numbers of a region's log do not go back, and that no node is
// over-committed.
func (v *watch) applied(m *master) {
	c, n := m.view().Cluster(), &v.logs[m.r.num]
	rebound := c.FederationID != n.federation && n.federation != ""
	if !rebound && (c.LeadershipTerm < n.leadership || c.Fence < n.fence) || c.Incarnation < n.incarnation {
		v.fail(5, "%s: term %d fence %d incarnation %d follow %d %d %d", m.r.name, c.LeadershipTerm, c.Fence, c.Incarnation, n.leadership, n.fence, n.incarnation)
	}
	v.logged(m.up)
	n.federation = c.FederationID
	n.leadership, n.fence, n.incarnation, n.index = c.LeadershipTerm, c.Fence, c.Incarnation, m.view().Index()
	for node, u := range m.view().NodesInUse() {
		if u.Resources.CPUMilli > node.Capacity.CPUMilli {
			v.fail(8, "%s: %s is over-committed: %d of %d", m.r.name, node.Name, u.Resources.CPUMilli, node.Capacity.CPUMilli)
		}
	}
}

func (v *watch) active(t *globalTerm) {
	v.stats.Terms++
	if t.leadership.massLoss != "" {
		v.stats.Alarms++
	}
}

// arrived notes that a message of a region arrived in its session.
func (v *watch) arrived(name string) { v.lastMessage[name] = time.Duration(v.w.Now) }

func (v *watch) granted(t *globalTerm, name string, e region.Effect) {
	// A server cannot know immediately that its key was removed, but its proof ends within the ttl.
	if gone, is := v.w.etcd.Removed[t.c.key]; is && time.Duration(v.w.Now-gone) > t.g.ttl+t.g.ttl/33 {
		v.fail(4, "%s grants %s a lease although its candidacy is gone for %s", t.g.name, name, time.Duration(v.w.Now-gone))
	}
}

func (v *watch) wrote(*globalTerm, []store.Write) {}

// grants checks that a master that grants a lease was still the leader when the request had
// arrived.
func (v *watch) grants(m *master, arrived int64) {
	if at := m.l.deposedAt; at != 0 && at < arrived {
		v.fail(4, "%s grants for %s, which has had a later master for %s", m.srv.p.Name, m.r.name, time.Duration(v.w.Now-at))
	}
}

// stored checks each write of the store, at the moment at which the write is durable.
func (v *watch) stored(key string, old, next any) {
	v.kept(key, old, next)
	switch {
	case key == leadershipKey:
		v.storedTerm(next)
	case strings.HasPrefix(key, rolloutPrefix):
		v.promoted(strings.TrimPrefix(key, rolloutPrefix), old, next)
		v.turns.recorded(strings.TrimPrefix(key, rolloutPrefix), old, next)
	case strings.HasPrefix(key, healthyPrefix):
		v.turns.keptHealthy(next)
	case strings.HasPrefix(key, slotPrefix):
		v.early(old, next)
		v.retries.offered(next)
		v.turns.stored(old, next)
		v.storedSlot(old, next)
	case strings.HasPrefix(key, regionPrefix):
		rec, _ := next.(regionRecord)
		was := v.fences[rec.Name]
		if rec.Fence < was.Fence || rec.ClusterID == was.ClusterID && rec.Incarnation < was.Incarnation {
			v.fail(5, "record of %s: fence %d incarnation %d follow %d %d", rec.Name, rec.Fence, rec.Incarnation, was.Fence, was.Incarnation)
		}
		if rec.Lost && !was.Lost {
			v.stats.Verdicts++
		}
		if !rec.Lost && was.Lost {
			v.stats.Heals++
		}
		v.fences[rec.Name] = rec.Record
	}
}

// storedTerm checks terms in the order of the store. A server that is suspended between the write
// and its reply begins its term late, and grants nothing in it.
func (v *watch) storedTerm(next any) {
	rec, _ := next.(leadershipRecord)
	if rec.term.Number < v.term.Number || rec.term.Number == v.term.Number && rec.term.Nonce != v.term.Nonce {
		v.fail(5, "leadership term %d follows %d", rec.term.Number, v.term.Number)
	}
	v.term = rec.term
}

func (v *watch) storedSlot(old, next any) {
	was, had := old.(region.Slot)
	is, has := next.(region.Slot)
	if had && !was.System {
		v.written = append(v.written, was)
		m := v.owners[groupName{was.Job, was.Group}]
		for i := was.From; i < was.To; i++ {
			if m[i].region == was.Region {
				delete(m, i)
			}
		}
	}
	if !has || is.System {
		return
	}
	m := v.owners[groupName{is.Job, is.Group}]
	if m == nil {
		m = map[int]owned{}
		v.owners[groupName{is.Job, is.Group}] = m
	}
	if had && was.Region != is.Region {
		v.stats.Moves++
		v.moved(was, is)
	}
	if had {
		v.advances(was, is)
	}
	g := v.greatest[groupName{is.Job, is.Group}]
	if g == nil {
		g = map[int]owned{}
		v.greatest[groupName{is.Job, is.Group}] = g
	}
	generation := is.Generation
	if generation == 0 {
		generation = v.w.etcd.Rev
	}
	for i := is.From; i < is.To; i++ {
		if o := g[i]; o.generation > generation || o.generation == generation && o.region != is.Region {
			v.fail(5, "%s: the offer of index %d follows generation %d at %s", is, i, o.generation, o.region)
		}
		g[i] = owned{region: is.Region, generation: generation}
		m[i] = owned{is.Region, is.Generation, is.Desired, is.State}
	}
}

// moved checks a slot that changed its owner in place.
func (v *watch) moved(was, is region.Slot) {
	g := v.w.specs[string(v.w.versionOf(was).spec)].group(was.Group)
	rec := v.fences[was.Region]
	if j, ok := v.w.etcd.Keys[jobPrefix+was.Job]; ok && j.Value.(*jobRecord).group(was.Group) != nil {
		g = j.Value.(*jobRecord).group(was.Group) // the present policy counts
	}
	back := was.ReturnTo == is.Region || slices.ContainsFunc(was.Former, func(f region.FormerOwner) bool { return f.Region == is.Region })
	if !g.region.replace && !rec.NothingRuns && !back && !was.Vacant {
		v.fail(6, "%s moved to %s although replace is false", was, is.Region)
	}
}

// restored takes over the contents of a store that was restored from an old copy.
func (v *watch) restored() {
	v.restoredAt = v.w.Now
	v.retries.checker.Stay = true // the store has forgotten what instances have used
	v.retries.checker.ForgetWhere(func(attempts.Key, *attempts.Life) bool { return true })
	v.owners, v.fences, v.term = map[groupName]map[int]owned{}, map[string]region.Record{}, region.Term{}
	if rec, ok := v.w.etcd.Keys[leadershipKey]; ok {
		v.term = rec.Value.(leadershipRecord).term
	}
	v.greatest = map[groupName]map[int]owned{}
	for _, key := range v.w.etcd.List(slotPrefix) {
		s := v.w.etcd.Keys[key].Value.(region.Slot)
		if s.Generation == 0 {
			s.Generation = v.w.etcd.Keys[key].Mod
		}
		v.storedSlot(nil, s)
	}
	for _, key := range v.w.etcd.List(regionPrefix) {
		rec := v.w.etcd.Keys[key].Value.(regionRecord)
		v.fences[rec.Name] = rec.Record
	}
}

// restoredRegion takes over the numbers of a region's log that was restored from an old copy.
func (v *watch) restoredRegion(r *regionSim) {
	c, n := r.raft.st.Snapshot().Cluster(), &v.logs[r.num]
	v.retries.checker.ForgetWhere(func(k attempts.Key, l *attempts.Life) bool { return l.Region == r.name || k.Region == r.name })
	v.overrides.restored(r)
	n.federation = c.FederationID
	n.leadership, n.fence, n.incarnation, n.raftTerm = c.LeadershipTerm, c.Fence, c.Incarnation, r.raft.term
}

// declaring checks a verdict before it is stored. No region may be declared lost in a mass loss, in
// which more than a third of the regions fell silent within one lease of one another: neither by
// the clock of the active server, nor by true time, which knows what earlier active servers saw.
func (v *watch) declaring(t *globalTerm, name string, operator bool) {
	if operator {
		return
	}
	seen, truly, now := map[string]time.Duration{}, map[string]time.Duration{}, time.Duration(v.w.Now)
	all := 0
	for _, other := range t.names {
		r := t.region(other)
		if r.life.Lost || r.life.ClusterID == "" {
			continue
		}
		all++
		if r.life.SilentFor(t.now()) > t.g.lease {
			seen[other] = r.life.LastSeen
		}
		if at, ever := v.lastMessage[other]; ever && now-at > t.g.lease {
			truly[other] = at
		}
	}
	if n := max(together(seen, name, t.g.lease), together(truly, name, t.g.lease-t.g.lease/50)); n >= 3 && 3*n > all {
		v.fail(6, "%s is declared lost while %d of %d regions are silent", name, n, all)
	}
}

// together returns the greatest number of regions, among them a given one, whose last messages
// arrived within d.
func together(last map[string]time.Duration, name string, d time.Duration) (most int) {
	of, silent := last[name]
	if !silent {
		return 0
	}
	for _, first := range last {
		n := 0
		for _, at := range last {
			if at >= first && at-first < d {
				n++
			}
		}
		if first <= of && of-first < d {
			most = max(most, n)
		}
	}
	return most
}

// acknowledged checks that an acknowledged position is in the log. It checks nothing if the epochs
// of the positions differ, or if the log may have been restored from an old copy.
func (v *watch) acknowledged(who string, r *regionSim, have state.Position, at link.Position) {
	if len(r.raft.copies) == 0 && have.Epoch == at.Epoch && have.Sequence < at.Sequence {
		v.fail(8, "%s: position %v is acknowledged, stored is %v", who, at, have)
	}
}
