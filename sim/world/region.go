package world

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/lease"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/accept"
	"github.com/nusa-scheduler/nusa/regional/presence"
	"github.com/nusa-scheduler/nusa/regional/regionlease"
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
	"github.com/nusa-scheduler/nusa/sim/world/machine"
)

// regionSim is one region: its servers, its log and its agents.
type regionSim struct {
	w      *world
	num    int
	name   string
	raft   *raftGroup
	agents []*agent
	// nodeLease is the value of the servers' --node-lease.
	nodeLease time.Duration
	// careless: the log was restored from an old copy without the command that begins a new
	// incarnation. Nodes that know no later order accept attempts whose epochs were used before.
	careless bool
	clusters int // number of clusters that had the name before
	// incarnation is the greatest incarnation that a restore began.
	incarnation uint64
	// leveledIndex is the index at which the log got feature level 2.
	leveledIndex uint64
	// second is a second process with the name of the first server. secondAgent is a second
	// process with the name of an agent. nil: there is none.
	second      *regionServer
	secondAgent *agent
	// own are the latest versions of the region's own jobs, by name.
	own map[string]*jobVersion
}

// regionServer is one server of a region.
type regionServer struct {
	r    *regionSim
	id   string // of the Raft group
	h    *machine.Host
	p    *machine.Proc
	lead *master // nil: not the master
	old  bool    // runs a version of the earlier feature level
	// start is what the present process found at its start.
	start presence.Start
}

func newRegion(w *world, num, servers, agents int) *regionSim {
	r := &regionSim{w: w, num: num, own: map[string]*jobVersion{}, name: fmt.Sprintf("r%d", num), nodeLease: machine.Pick[time.Duration](w.Engine, 6, 10, 15) * time.Second}
	r.raft = newRaftGroup(r)
	for i := range servers {
		r.raft.servers = append(r.raft.servers, newRegionServer(r, i, ""))
	}
	for i := range agents {
		r.agents = append(r.agents, newAgent(r, i, ""))
	}
	if w.Chance(6) {
		r.second = newRegionServer(r, 0, "b")
		r.second.p.Unwanted = true
	}
	if w.Chance(6) {
		r.secondAgent = newAgent(r, 0, "b")
		r.secondAgent.p.Unwanted = true
		r.agents = append(r.agents, r.secondAgent)
	}
	return r
}

// newRegionServer makes a server. A second server of the same name has a suffix in its id.
func newRegionServer(r *regionSim, i int, suffix string) *regionServer {
	name := fmt.Sprintf("r%d-s%d", r.num, i)
	h := r.w.NewHost(name + suffix)
	s := &regionServer{r: r, id: name + suffix, h: h, p: h.NewProc(name)}
	s.p.OnStart = func() { s.start.At = s.h.Clock() }
	s.p.OnKill = func(bool) {
		s.start.Index = r.raft.index // the index of the log on the disk, unless an operator restores another log
		if s.lead != nil {
			s.lead.end()
		}
	}
	s.p.Accept = s.acceptAgent
	return s
}

// master is what a server does while it leads: it plans, and holds the agents' sessions and the
// session with the global tier.
type master struct {
	r       *regionSim
	srv     *regionServer
	p       *machine.Proc
	l       *leadership
	planner *sched.Planner
	// elected is the reading of the server's clock at the election.
	elected time.Duration
	// began is the index of the log at the election.
	began uint64
	nodes map[string]*nodeState
	up    *uplink
	epoch string

	planQueued, planning bool
	limitsSet            int   // number of the latest timer of limits
	wakeAt               int64 // true time of the next scheduled wake; 0: none
	plan                 *sched.Plan
	placed               int64
	// planned is the position of the slot orders that the committed plans include.
	planned     state.Position
	reportDirty bool
	// knowsMore holds the ids of the agents that are refused because the log is an old copy.
	knowsMore map[string]bool
	// holders are the nodes that hold names, by name. It is nil before the first agent.
	holders map[string]string
	// suspicion says whether the log may be an old copy.
	suspicion  presence.Suspicion
	wasSuspect bool
	// stop is the longest stop time that an agent has named.
	stop time.Duration
}

func newMaster(s *regionServer, l *leadership) *master {
	m := &master{r: s.r, srv: s, p: s.p, l: l, planner: sched.NewPlanner(), elected: s.h.Clock(), began: l.view.Index(), nodes: map[string]*nodeState{}, knowsMore: map[string]bool{},
		epoch: fmt.Sprintf("%s/%d/%d", l.view.Cluster().ID, l.view.Cluster().Incarnation, l.term)}
	longest := max(s.r.nodeLease, l.view.Cluster().NodeLeaseMax, l.view.Cluster().RegionLeaseMax)
	m.suspicion = presence.NewSuspicion(s.start, m.began, lease.Over(longest, l.view.LongestStop()), l.view.Nodes())
	m.up = newUplink(m)
	s.lead = m
	m.watchNodes()
	m.limits()
	m.up.connectLater(0)
	m.wake()
	return m
}

// end ends the leadership. No part of it continues.
func (m *master) end() {
	if m.l.ended {
		return
	}
	m.r.raft.disturbed()
	m.l.ended = true
	if m.srv.lead == m {
		m.srv.lead = nil
	}
	for _, id := range sortedKeys(m.nodes) {
		if e := m.nodes[id].session; e != nil {
			e.Close()
		}
	}
	m.up.stop()
	if m.r.w.Tracing() {
		m.r.w.Tracef("%s: %s ends term %d", m.r.name, m.srv.p.Name, m.l.term)
	}
}

func (m *master) view() *state.View { return m.l.view }

// propose proposes one command to the log.
func (m *master) propose(cmd state.Command, done func(state.Result)) {
	cmd.NowUnixNano = m.srv.h.Wall()
	m.l.propose([]state.Command{cmd}, func(res []state.Result) {
		if done != nil {
			done(res[0])
		}
	})
}

// committed reacts to the results of one entry.
func (m *master) committed(res []state.Result) {
	changed := false
	for i := range res {
		m.spread(&res[i])
		changed = changed || res[i].Changed
	}
	m.r.w.watch.applied(m)
	if changed {
		m.wake()
		m.up.changed()
	}
}

func (m *master) spread(res *state.Result) {
	for i := range res.Batch {
		m.spread(&res.Batch[i])
	}
	for _, a := range res.Orders {
		m.ordersChanged(a.NodeID)
	}
	for _, id := range res.Nodes {
		m.ordersChanged(id)
	}
}

// wake schedules a plan.
func (m *master) wake() {
	if m.planQueued || m.l.ended {
		return
	}
	m.planQueued = true
	m.p.After(5*time.Millisecond, func() {
		m.planQueued = false
		m.decide()
	})
}

// decide makes a plan and proposes it. It is the shell of the shipped planner without speculation,
// so a plan waits for the commit of the plan before it.
func (m *master) decide() {
	if m.l.ended || m.planning {
		return
	}
	if len(m.knowsMore) > 0 { // as regional/master does
		m.wakeIn(time.Second)
		return
	}
	in := m.planInput()
	m.plan = m.planner.Make(in)
	m.r.w.watch.planned(m, in.View)
	var cmds []state.Command
	for _, c := range m.plan.Commands(m.r.w.newID, 64) {
		cmds = append(cmds, state.Command{NowUnixNano: in.NowUnixNano, ApplyPlan: &c})
	}
	returned, recheck := accept.Return(accept.Input{View: in.View, Unplaced: m.plan.Unplaced, LinkUp: m.up.session != nil,
		NowUnixNano: in.NowUnixNano, Grace: accept.DefaultGrace})
	if returned != nil {
		cmds = append(cmds, state.Command{NowUnixNano: in.NowUnixNano, AnswerSlots: returned})
	}
	if m.plan.Empty() && !in.View.Cluster().OrdersIncomplete && in.View.SlotsRevision() > m.placed {
		m.placed, m.reportDirty = in.View.SlotsRevision(), true
	}
	if next := m.plan.Wake; next > 0 && (recheck == 0 || next < recheck) {
		recheck = next
	}
	if recheck > 0 {
		m.wakeIn(recheck)
	}
	follows := m.planned
	if !m.plan.More && !in.View.Cluster().OrdersIncomplete {
		follows = in.View.Cluster().Orders
	}
	if len(cmds) == 0 {
		if follows != m.planned {
			m.planned = follows
			m.up.leaseState()
		}
		return
	}
	m.planning = true
	m.l.propose(cmds, func(res []state.Result) {
		m.planning = false
		if !unpredicted(res) {
			m.planned = follows
		}
		m.wake()
	})
}

// unpredicted reports whether a part of a plan was refused, because entries in flight had changed the
// state before it. The shipped planner knows these entries, and regional/raftlog does not count a
// plan as committed whose results it did not predict.
func unpredicted(res []state.Result) bool {
	return slices.ContainsFunc(res, func(r state.Result) bool { return len(r.Skipped) > 0 || unpredicted(r.Batch) })
}

// logSuspect reports whether the log may be an old copy. When the suspicion ends, the work that
// waited for that continues.
func (m *master) logSuspect() bool {
	was := m.wasSuspect
	m.wasSuspect = m.suspicion.At(m.srv.h.Clock())
	if was && !m.wasSuspect {
		m.wake()
		m.up.changed()
		m.up.repeatGrants()
	}
	return m.wasSuspect
}

func (m *master) wakeIn(d time.Duration) {
	d = max(d, 20*time.Millisecond)
	at := m.r.w.Now + int64(m.srv.h.TrueFor(d))
	if m.wakeAt > m.r.w.Now && m.wakeAt <= at {
		return
	}
	m.wakeAt = at
	m.p.After(d, func() {
		if m.wakeAt == at {
			m.wakeAt = 0
		}
		m.wake()
	})
}

func (m *master) planInput() sched.Input {
	return sched.Input{View: m.view(), NowUnixNano: m.srv.h.Wall(), NodeLease: m.r.nodeLease, Absence: m.absence, Funcs: noFuncs,
		LogSuspect: m.logSuspect()}
}

var noFuncs = sched.Funcs{
	Match: func(string, *state.Node) (bool, error) { return true, nil },
	Value: func(string, *state.Node) (string, error) { return "", nil },
}

// nothingRunsAgain repeats the operator's statement while the new cluster of a region is refused.
// That happens after the store was restored from a copy without the statement.
func (r *regionSim) nothingRunsAgain() {
	w := r.w
	w.In(w.Between(5*time.Second, 20*time.Second), r.nothingRunsAgain)
	t, have := w.active(), r.raft.st.Snapshot().Cluster().ID
	if t == nil || t.leadership.conflict || t.regions[r.name] == nil {
		return
	}
	if rec := t.regions[r.name].rec; t.regions[r.name].calls && rec.ClusterID != "" && rec.ClusterID != have && !rec.NothingRuns {
		t.nothingRuns(r.name)
	}
}

// empty replaces the disks of a region's machines by new ones. So the statement that nothing runs
// there stays true, and another cluster gets the name.
func (r *regionSim) empty() {
	g := r.raft
	r.dropSecond()
	if g.leader != nil {
		g.leader.ended, g.leader.inFlight = true, nil
	}
	g.st, g.index = state.New(), 0
	r.clusters++
	if r.clusters == 1 {
		r.nothingRunsAgain()
	}
	g.commit([]state.Command{{NowUnixNano: machine.Epoch + r.w.Now, Bootstrap: &state.Bootstrap{ClusterID: fmt.Sprintf("cluster-%s-%d", r.name, r.clusters), Region: r.name}}})
	r.w.watch.restoredRegion(r)
	clear(r.own)
	for _, a := range r.agents {
		a.forget()
	}
}

// summaries returns what a region reports about its parts of jobs, by job.
func summaries(view *state.View) map[string]place.Summary {
	out := map[string]place.Summary{}
	for g := range view.Groups() {
		if g.Key.Local || len(g.Slots) == 0 {
			continue
		}
		s, known := out[g.Key.Job]
		if !known {
			s = place.Summary{Version: g.Slots[0].JobVersion, Run: g.Slots[0].Run, Groups: map[string]place.GroupCounts{}}
		}
		for _, slot := range g.Slots {
			s.Version, s.Run = min(s.Version, slot.JobVersion), min(s.Run, slot.Run)
		}
		n := func(c int32) int { return int(c) }
		c := g.Counts
		s.Groups[g.Key.Group] = place.GroupCounts{
			Live: n(c.Pending + c.Starting + c.Running + c.Complete + c.Failed + c.Lost + c.Held), Pending: n(c.Pending), Failed: n(c.Failed), Busy: n(c.Starting + c.Outdated),
			Ended: n(c.Complete + c.Failed), Open: n(c.Pending + c.Starting + c.Running + c.Lost)}
		out[g.Key.Job] = s
	}
	return out
}

func sameSummary(a, b place.Summary) bool {
	return a.Version == b.Version && a.Run == b.Run && maps.Equal(a.Groups, b.Groups)
}

// waitingForTurn returns how many instances of arrays wait because as many run as their `parallel` allows.
func waitingForTurn(plan *sched.Plan) map[groupName]int {
	out := map[groupName]int{}
	if plan == nil {
		return out
	}
	for _, w := range plan.Waiting {
		if w.Reason == state.ReasonParallel && !w.Key.Local {
			out[groupName{w.Key.Job, w.Key.Group}] += int(sched.Instances(w.Ranges))
		}
	}
	return out
}

// newSummaries reports whether the summaries have changed since the latest report.
func (u *uplink) newSummaries() bool {
	return u.sums == nil || u.summed != u.m.view().Index() && !(maps.EqualFunc(u.sums.parts, summaries(u.m.view()), sameSummary) &&
		maps.Equal(u.sums.versions, versionCounts(u.m.view())))
}

// versionOfGroup names the instances of a group that have one version.
type versionOfGroup struct {
	groupName
	version int64
}

// versionCount counts the instances of a group that have one version.
type versionCount struct{ serving, starting, down int }

// versionCounts returns what a region reports about the versions of its instances. The shipped servers derive
// these counts from JobSummary.groups and JobSummary.newer.
func versionCounts(view *state.View) map[versionOfGroup]versionCount {
	out := map[versionOfGroup]versionCount{}
	for a := range view.Allocs() {
		if !a.Live() || a.Local || a.Desired != state.Run {
			continue
		}
		key := versionOfGroup{groupName{a.Job, a.Group}, a.JobVersion}
		n := out[key]
		switch {
		case a.Disconnected:
			n.down++
		case a.Serving():
			n.serving++
		default:
			n.starting++
		}
		out[key] = n
	}
	return out
}

// addSummaries adds the regions' reports about a job.
func addSummaries(t *globalTerm, j *place.Job) {
	for _, name := range t.names {
		if rep := t.regions[name].report; rep != nil {
			if s, has := rep.parts[j.Name]; has {
				s.Region, s.Groups = name, maps.Clone(s.Groups)
				for group, c := range s.Groups {
					c.Waiting = min(c.Pending, rep.waiting[groupName{j.Name, group}])
					s.Groups[group] = c
				}
				j.Summaries = append(j.Summaries, s)
			}
		}
	}
}

// down returns, by group, how many instances have an owner and must run, but are reported as
// running by no region. Instances of an array that wait for their turn, or have ended, need not run.
func (t *globalTerm) down(j *place.Job) map[string]int {
	if len(j.Slots) == 0 {
		return nil
	}
	out, done := map[string]int{}, map[groupName]int{} // done: by region and group
	for _, s := range j.Slots {
		if s.Desired == region.DesiredRun && s.State != region.Done {
			out[s.Group] += s.Count()
		} else if s.Desired == region.DesiredRun {
			done[groupName{s.Region, s.Group}] += s.Count()
		}
	}
	for group, must := range out {
		running := 0
		for _, name := range t.names {
			if rep := t.regions[name].report; rep != nil {
				running += rep.running[groupName{j.Name, group}] + rep.held[groupName{j.Name, group}]
				if j.Type == place.Batch && rep.parts != nil {
					must -= max(0, rep.parts[j.Name].Groups[group].Ended-done[groupName{name, group}])
				}
			}
		}
		if g := j.Group(group); g != nil && g.Parallel > 0 {
			must = min(must, g.Parallel)
		}
		out[group] = max(0, must-running)
	}
	return out
}

// usedIn returns what a region reports about used attempts, as regional/uplink does.
func usedIn(view *state.View, parts map[string]place.Summary) map[groupName][]*nusav1.InstanceAttempts {
	out := map[groupName][]*nusav1.InstanceAttempts{}
	for g := range view.Groups() {
		version := parts[g.Key.Job].Version
		job, ok := view.Job(g.Key.JobKey(), version)
		if !ok || g.Key.Local || job.Group(g.Key.Group) == nil || job.Group(g.Key.Group).Retry == nil {
			continue
		}
		for _, s := range g.Slots {
			if s.Desired == state.Run && s.JobVersion == version {
				if used := wire.AttemptsToProto(view, s, s.From, s.To); len(used) > 0 {
					key := groupName{g.Key.Job, g.Key.Group}
					out[key] = append(out[key], used...)
				}
			}
		}
	}
	return out
}

// limits commits the limits that later masters rely on, as regional/master/limits.go does.
func (m *master) limits() {
	if m.l.ended || m.srv.old {
		return
	}
	now := m.srv.h.Clock()
	cmd, again := regionlease.Limits{Cluster: m.view().Cluster(), Level: m.r.level(), NodeLease: m.r.nodeLease, Led: now - m.elected,
		RegionLease: m.up.length, RegionLeaseFor: now - m.up.lengthSince, StopTime: func() time.Duration { return max(m.view().LongestStop(), m.stop) }}.Due()
	m.limitsSet++
	if set := m.limitsSet; again > 0 {
		m.p.After(again, func() {
			if m.limitsSet == set {
				m.limits()
			}
		})
	}
	if cmd != nil {
		m.propose(state.Command{SetLimits: cmd}, nil)
	}
}
