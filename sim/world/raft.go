package world

import (
	"fmt"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/voters"
	"github.com/nusa-scheduler/nusa/sim/world/machine"
)

// raftGroup models the replicated log of one region. It holds only the committed prefix, which a
// majority has. A leader appends entries while it reaches a majority. When leadership ends, the
// entries in flight are lost, or the next leader commits a prefix of them.
type raftGroup struct {
	r       *regionSim
	servers []*regionServer
	st      *state.State
	index   uint64
	term    uint64
	// leader is the leadership of the present term, or nil. An earlier leader may not know yet that
	// its term has ended.
	leader *leadership
	// silentSince is when the leader was last seen to reach a majority.
	silentSince int64
	// checked is the true time of the latest check. asleep: no check is scheduled until an event
	// happens that may disturb a healthy leader.
	checked    int64
	asleep     bool
	checkAgain func()
	// copies are older contents of the log that an operator may restore.
	copies []*state.View
	// copy is a second copy of the state, if followed is set.
	copy     *state.State
	followed bool
	// alive holds when the leader last saw each server, by id. It is nil until a second process of
	// a server starts.
	alive map[string]int64
	// copiedTerm is the term in which the latest of copies was made.
	copiedTerm uint64
}

// leadership is the leadership of one server in one term.
type leadership struct {
	g     *raftGroup
	srv   *regionServer
	life  int // srv.p.life at the beginning: the leadership ends when the process does
	term  uint64
	ended bool
	// view is the state that this leader has applied.
	view     *state.View
	inFlight []*proposal
	writing  bool
	// blockedSince is since when an entry has waited, on the host's clock; -1: none waits.
	blockedSince time.Duration
	reachedAt    int64
	// asleep: no verification is scheduled until an event happens that may disturb the leader.
	asleep      bool
	verifyAgain func()
	// deposedAt is the true time at which a later leader was elected; 0: not yet.
	deposedAt int64
}

type proposal struct {
	cmds []state.Command
	done func(res []state.Result)
}

const (
	raftElection = 1500 * time.Millisecond
	raftLease    = 500 * time.Millisecond
	raftCheck    = 400 * time.Millisecond
)

func newRaftGroup(r *regionSim) *raftGroup {
	g := &raftGroup{r: r, st: state.New(), followed: r.num == 0 && r.w.seed%4 == 0}
	g.checkAgain = g.check
	g.commit([]state.Command{{NowUnixNano: machine.Epoch, Bootstrap: &state.Bootstrap{ClusterID: "cluster-" + r.name, Region: r.name}}})
	return g
}

// commit applies commands as one entry.
func (g *raftGroup) commit(cmds []state.Command) []state.Result {
	g.index++
	cmd := state.Command{NowUnixNano: cmds[0].NowUnixNano, Batch: cmds}
	if len(cmds) == 1 {
		cmd = cmds[0]
	}
	g.r.w.watch.understands(g.r, &cmd)
	before := g.st.Snapshot()
	res := g.st.Apply(g.index, cmd)
	if before.Cluster().FeatureLevel < state.BindingLevel {
		g.r.w.watch.gaveUp(g, &res)
		g.r.leveledIndex = g.index
	}
	g.r.w.watch.reported(g, before, &cmd)
	if g.r.w.life {
		g.r.w.watch.lives(g, before, &cmd, &res)
		g.r.w.watch.overrides.applied(g, before, &cmd, &res)
	}
	g.follow(cmd)
	if len(cmds) == 1 {
		return []state.Result{res}
	}
	return res.Batch
}

// reaches reports whether a server can exchange messages with a majority now.
func (g *raftGroup) reaches(s *regionServer) bool {
	if !s.p.Up || s.p.Stalled() {
		return false
	}
	n := 0
	for _, o := range g.servers {
		if o == s || g.sees(s, o) {
			n++
		}
	}
	return 2*n > len(g.servers)
}

// check elects a leader if no leader reaches a majority.
func (g *raftGroup) check() {
	w := g.r.w
	g.checked = w.Now
	if l := g.leader; l != nil && !l.ended && l.srv.p.Life == l.life && g.reaches(l.srv) {
		g.silentSince, g.asleep = w.Now, true
		return
	}
	w.In(raftCheck, g.checkAgain)
	if w.Now-g.silentSince < int64(raftElection)+w.Rng.Int64N(int64(raftElection)) {
		return
	}
	first := w.Rng.IntN(len(g.servers))
	for i := range g.servers {
		if s := g.servers[(first+i)%len(g.servers)]; g.reaches(s) {
			g.elect(s)
			return
		}
	}
}

// disturbed schedules the checks that were asleep. They run at the times at which they would have
// run without a pause.
func (g *raftGroup) disturbed() {
	w := g.r.w
	if g.asleep {
		g.asleep = false
		g.silentSince += (w.Now - g.checked) / int64(raftCheck) * int64(raftCheck)
		w.At(g.silentSince+int64(raftCheck), g.checkAgain)
	}
	if l := g.leader; l != nil && l.asleep {
		step := int64(l.srv.h.TrueFor(raftLease / 2))
		l.asleep = false
		l.reachedAt += (w.Now - l.reachedAt) / step * step
		l.srv.p.AfterTrue(time.Duration(l.reachedAt+step-w.Now), l.verifyAgain)
	}
}

func (g *raftGroup) elect(s *regionServer) {
	w := g.r.w
	g.disturbed()
	old := g.leader
	g.term++
	g.silentSince = w.Now
	if old != nil {
		old.deposedAt = w.Now
		for i := 0; i < len(old.inFlight) && w.Chance(2); i++ { // a majority has received these entries
			g.commit(old.inFlight[i].cmds)
		}
		old.inFlight = nil
	}
	life := s.p.Life
	l := &leadership{g: g, srv: s, life: life, term: g.term, blockedSince: -1, reachedAt: w.Now}
	g.leader = l
	if w.Tracing() {
		w.Tracef("%s: %s leads term %d at index %d", g.r.name, s.p.Name, l.term, g.index)
	}
	w.watch.elected(g, l)
	w.In(w.Between(5*time.Millisecond, 100*time.Millisecond), func() {
		s.p.Then(life, func() {
			if s.lead != nil {
				s.lead.end()
			}
			if g.leader != l {
				l.ended = true
				return
			}
			l.view = g.st.Snapshot()
			s.lead = newMaster(s, l)
			l.verify(life)
		})
	})
}

// verify ends a leadership that has not reached a majority for a while, or has learned of a later
// term. A server that was paused does that only some time after it resumes.
func (l *leadership) verify(life int) {
	p, g := l.srv.p, l.g
	l.verifyAgain = func() {
		if l.ended || p.Life != life {
			return
		}
		reaches := g.reaches(l.srv)
		if reaches {
			l.reachedAt = g.r.w.Now
		}
		if g.leader != l && reaches || g.r.w.Now-l.reachedAt > int64(raftLease) {
			l.srv.lead.end()
			return
		}
		l.asleep = g.leader == l && reaches
		if !l.asleep {
			p.After(raftLease/2, l.verifyAgain)
		}
	}
	p.After(raftLease/2, l.verifyAgain)
}

// propose appends commands. done is called after the commit. It is never called if the outcome
// stays unknown.
func (l *leadership) propose(cmds []state.Command, done func(res []state.Result)) {
	if l.ended {
		return
	}
	l.inFlight = append(l.inFlight, &proposal{cmds, done})
	if l.blockedSince < 0 {
		l.blockedSince = l.srv.h.Clock()
	}
	l.write()
}

// write commits the waiting proposals, one write to the disk after the other.
func (l *leadership) write() {
	if l.writing || len(l.inFlight) == 0 {
		return
	}
	l.writing = true
	n := len(l.inFlight)
	l.srv.p.Write(func() {
		g := l.g
		l.writing = false
		if l.ended || g.leader != l {
			return
		}
		if !g.reaches(l.srv) || g.lagging() {
			l.srv.p.After(200*time.Millisecond, func() { l.write() })
			return
		}
		batch := l.inFlight[:n:n]
		l.inFlight = l.inFlight[n:]
		l.blockedSince = -1
		if len(l.inFlight) > 0 {
			l.blockedSince = l.srv.h.Clock()
		}
		for _, p := range batch {
			res := g.commit(p.cmds)
			l.view = g.st.Snapshot()
			l.srv.lead.committed(res)
			if p.done != nil {
				p.done(res)
			}
			if l.ended {
				return
			}
		}
		l.write()
	})
}

// lagging reports whether full disks prevent a majority from writing.
func (g *raftGroup) lagging() bool {
	n := 0
	for _, s := range g.servers {
		if s.p.Up && !s.p.Stalled() && !s.h.DiskFull {
			n++
		}
	}
	return 2*n <= len(g.servers)
}

// confirm calls done when a majority has confirmed the leadership. It never calls done if no
// majority does.
func (l *leadership) confirm(done func()) {
	if plant.Is(plant.Unverified) {
		done()
		return
	}
	p, life, w := l.srv.p, l.srv.p.Life, l.g.r.w
	w.In(w.Between(time.Millisecond, 4*time.Millisecond), func() {
		// At this moment the majority confirms that it knows no later term.
		sure := l.g.leader == l && l.g.reaches(l.srv)
		p.Then(life, func() {
			switch {
			case l.ended:
			case sure:
				done()
			case l.srv.lead != nil && l.srv.lead.l == l:
				l.srv.lead.end()
			}
		})
	})
}

// String prints the group for a trace.
func (g *raftGroup) String() string {
	return fmt.Sprintf("%s index %d term %d", g.r.name, g.index, g.term)
}

// follow applies an entry to the second copy of a region's state, and checks that both have the
// same hash at the same index. The copy starts again from a snapshot from time to time.
func (g *raftGroup) follow(cmd state.Command) {
	if !g.followed {
		return
	}
	if g.copy == nil || g.copy.Snapshot().Index()+1 != g.index {
		g.copy = g.restored(g.st.Snapshot())
		return
	}
	g.copy.Apply(g.index, cmd)
	if g.index%96 != 0 {
		return
	}
	is, has := g.st.Snapshot(), g.copy.Snapshot()
	if a, b := is.Hash(), has.Hash(); a != b {
		g.r.w.watch.fail(8, "%s: two states at index %d", g.r.name, g.index)
	}
	g.copy = g.restored(has)
}

// restored returns a state that is restored from a snapshot.
func (g *raftGroup) restored(v *state.View) *state.State {
	st, err := state.Restore(func(yield func(state.Record, error) bool) {
		for r := range v.Records() {
			if !yield(r, nil) {
				return
			}
		}
	})
	if err != nil {
		g.r.w.watch.fail(8, "%s: the snapshot at index %d cannot be restored: %s", g.r.name, v.Index(), err)
		return nil
	}
	return st
}

// startSecond starts the second process of the region's first server. Its id is another one, so it
// becomes a voter like every new server.
func (r *regionSim) startSecond(d time.Duration) {
	r.w.begin(r.second.p)
	if r.raft.alive == nil {
		r.raft.alive = map[string]int64{}
		r.raft.changeMembers()
	}
	r.w.In(d, func() {
		if s, g := r.second, r.raft; s != nil && s.p.Up && r.w.Now < int64(calm) && (!slices.Contains(g.servers, s) || g.living(s) >= voters.Majority(len(g.servers))) {
			s.p.Kill(false)
			s.p.Unwanted = true
		}
	})
}

// dropSecond removes the second server for good: an operator has replaced the log.
func (r *regionSim) dropSecond() {
	if s := r.second; s != nil {
		s.p.Kill(false)
		s.p.Unwanted, r.second = true, nil
		r.raft.servers = slices.DeleteFunc(slices.Clone(r.raft.servers), func(o *regionServer) bool { return o == s })
	}
}

// living counts the voters that run, except one of them.
func (g *raftGroup) living(but *regionServer) (n int) {
	for _, s := range g.servers {
		if s != but && s.p.Up {
			n++
		}
	}
	return n
}

const (
	// membersEvery is the time between two membership plans of a leader.
	membersEvery = 2 * time.Second
	replaceAfter = 5 * time.Second
)

// changeMembers lets the leader change the voters, as regional/quorum does.
func (g *raftGroup) changeMembers() {
	w := g.r.w
	w.In(membersEvery, g.changeMembers)
	l := g.leader
	if l == nil || l.ended || l.srv.lead == nil || !g.reaches(l.srv) {
		return
	}
	v := voters.View{Self: l.srv.id, ReplaceAfter: replaceAfter, DeadAfter: time.Hour}
	all := g.servers
	if s := g.r.second; s != nil && !slices.Contains(all, s) {
		all = append(slices.Clone(all), s)
	}
	byID := map[string]*regionServer{}
	for _, s := range g.servers {
		v.Servers = append(v.Servers, voters.Server{ID: s.id, Addr: s.id})
	}
	for _, s := range all {
		byID[s.id] = s
		p := voters.Peer{ID: s.id, Addr: s.id, Alive: s == l.srv || g.sees(l.srv, s)}
		if p.Alive {
			g.alive[s.id] = w.Now
		}
		p.Silent = time.Duration(w.Now - g.alive[s.id])
		v.Peers = append(v.Peers, p)
	}
	for _, c := range voters.Plan(v) {
		if w.Tracing() {
			w.Tracef("%s: %s", g.r.name, c)
		}
		g.disturbed()
		if s := byID[c.ID]; c.Op == voters.Add {
			g.servers = append(slices.Clone(g.servers), s)
		} else {
			g.servers = slices.DeleteFunc(slices.Clone(g.servers), func(o *regionServer) bool { return o == s })
		}
	}
}

// sees reports whether two servers can exchange messages now.
func (g *raftGroup) sees(a, b *regionServer) bool {
	cuts := &g.r.w.Net.Cuts
	return b.p.Up && !b.p.Stalled() && !cuts[a.h.Num][b.h.Num] && !cuts[b.h.Num][a.h.Num]
}
