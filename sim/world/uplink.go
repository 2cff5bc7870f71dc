package world

import (
	"maps"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/plant"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/accept"
	"github.com/nusa-scheduler/nusa/regional/regionlease"
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
	"github.com/nusa-scheduler/nusa/sim/world/machine"
)

// The messages between a region and the global tier.
type (
	regionHello struct {
		name, clusterID   string
		incarnation, term uint64
		level             uint32
		applied, fence    uint64
		federation        string
		known             region.Term
		revision          int64
		orders            link.Position
		master            string
		leaseMax, stop    time.Duration
	}
	globalWelcome struct {
		federation string
		term       region.Term
		fence      uint64
		revision   int64
		level      int
		confirm    bool
		lease      time.Duration
		asks       []place.Ask
	}
	refused       struct{ permanent bool }
	regionRequest struct {
		id, granted uint64
		ordered     bool
		blocked     time.Duration
		index       uint64
	}
	regionGrant struct {
		id, fence, incarnation uint64
		term                   region.Term
		lease                  time.Duration
		orders                 link.Position
	}
	slotOrder struct {
		slot region.Slot
		job  *jobVersion
		used []*nusav1.InstanceAttempts // in other regions
	}
	slotOrders struct{ b link.Batch[slotOrder] }
	ordersAck  struct {
		at    link.Position
		index uint64
	}
	slotAnswers struct {
		list []state.Answer
		used [][]*nusav1.InstanceAttempts // by answer
	}
	regionReport struct {
		*regionSums
		slotsRevision int64
		disconnected  []place.Disconnected
		jobs          []string // the jobs of disconnected, in the same order
		waiting       map[groupName]int
	}
	// regionSums are sums over one state of the log.
	regionSums struct {
		fits    map[uint64]int
		ready   int
		free    int64
		running map[groupName]int
		// held counts the instances that overrides keep stopped.
		held map[groupName]int
		// lost counts the instances whose only attempts are on lost nodes.
		lost map[groupName]int
		// parts, used and versions are only in worlds with life.
		parts    map[string]place.Summary
		used     map[groupName][]*nusav1.InstanceAttempts
		versions map[versionOfGroup]versionCount
	}
	goodbye struct{}
)

// uplink is the session of a region's master with the global tier.
type uplink struct {
	m       *master
	session *upSession
	stopped bool
	next    int
	dirty   bool
	asks    []place.Ask
	lease   regionlease.Lease
	// joining: a command that binds the log to a federation is proposed.
	joining bool
	once    map[string]state.Answer // answers that a planted bug keeps
	// sums are the sums over the state of the log at the index summed.
	sums   *regionSums
	summed uint64
	// length is the length of the lease in the latest session. All sessions since lengthSince had
	// it.
	length, lengthSince time.Duration
	seen                basis // used by the watch
}

type upSession struct {
	e        *machine.End
	welcomed bool
	joined   bool
	// federation is the federation that the welcome named. level is the level in the hello.
	federation string
	level      uint32
	// confirm: the global tier waits until nothing runs in the region without an order.
	confirm bool
	inbox   *link.Inbox[slotOrder]
	length  time.Duration
	sent    map[string]state.Answer
	// busy: a change of orders is being committed. waiting are the batches after it.
	busy    bool
	waiting []slotOrders
}

func newUplink(m *master) *uplink { return &uplink{m: m} }

func (u *uplink) stop() {
	u.stopped = true
	if u.session != nil {
		u.session.e.Send(goodbye{})
		u.session.e.Close()
		u.session = nil
	}
}

func (u *uplink) connectLater(d time.Duration) {
	u.m.p.After(d+u.m.r.w.Between(0, 200*time.Millisecond), u.connect)
}

func (u *uplink) connect() {
	w := u.m.r.w
	if u.stopped || u.session != nil || u.m.l.ended || len(w.globals) == 0 {
		return
	}
	if u.m.view().Cluster().FeatureLevel < u.m.r.level() {
		u.connectLater(100 * time.Millisecond)
		return
	}
	u.next++
	s := &upSession{inbox: link.NewInbox[slotOrder](10_000), sent: map[string]state.Answer{}}
	s.e = w.Net.Dial(u.m.p, w.globals[(u.next+u.m.r.num)%len(w.globals)].p)
	u.session = s
	s.e.Recv = func(msg any) {
		if u.session == s {
			u.receive(s, msg)
		}
	}
	s.e.Closed = func() { u.lost(s, 300*time.Millisecond) }
	c := u.m.view().Cluster()
	s.level = c.FeatureLevel
	s.e.Send(regionHello{name: u.m.r.name, clusterID: c.ID, level: c.FeatureLevel, incarnation: c.Incarnation, term: u.m.l.term, applied: u.m.view().Index(),
		fence: c.Fence, federation: c.FederationID, known: region.Term{Number: c.LeadershipTerm, Nonce: c.LeadershipNonce},
		revision: c.StoreRevision, orders: link.Position(c.Orders), master: u.m.srv.p.Name,
		leaseMax: c.RegionLeaseMax, stop: u.m.view().LongestStop()})
	u.m.p.After(10*time.Second, func() {
		if u.session == s && !s.welcomed {
			s.e.Reset()
			u.lost(s, 0)
		}
	})
}

func (u *uplink) lost(s *upSession, retry time.Duration) {
	if u.session != s {
		return
	}
	u.session = nil
	u.connectLater(retry)
}

func (u *uplink) receive(s *upSession, msg any) {
	switch msg := msg.(type) {
	case refused:
		s.e.Close()
		retry := 500 * time.Millisecond
		if msg.permanent {
			retry = 5 * time.Second
		}
		u.lost(s, retry)
	case globalWelcome:
		u.welcome(s, msg)
	case slotOrders:
		s.waiting = append(s.waiting, msg)
		u.commitNext(s)
	case letterCall:
		collect(u, s, msg.call)
	case regionGrant:
		g := regionlease.Grant{ID: msg.id, Duration: min(msg.lease, s.length), Basis: regionlease.Basis{Term: msg.term.Number, Nonce: msg.term.Nonce,
			Fence: msg.fence, Incarnation: msg.incarnation, Orders: state.Position(msg.orders)}}
		u.m.r.w.watch.received(u, g)
		u.lease.Granted(g)
		u.leaseState()
	}
}

// welcome stores the numbers of the welcome before any other message of the session counts.
func (u *uplink) welcome(s *upSession, msg globalWelcome) {
	s.welcomed, s.federation, s.confirm = true, msg.federation, msg.confirm
	u.asks = msg.asks
	u.lease.NewSession()
	s.length = msg.lease
	if u.length != msg.lease {
		u.length, u.lengthSince = msg.lease, u.m.srv.h.Clock()
		u.m.limits()
	}
	joined := func(res state.Result) {
		if u.session != s {
			return
		}
		if res.Err != nil {
			s.e.Close()
			u.lost(s, 2*time.Second)
			return
		}
		s.joined, s.length = true, msg.lease
		u.commitNext(s)
		u.requestLease(s)
		u.reportEvery(s)
		u.answerEvery(s)
		u.m.wake()
	}
	if u.m.view().Cluster().FederationID == "" && !u.joining && (msg.level == 0 || s.level == 0) { // as regional/uplink does
		joined(state.Result{})
		return
	}
	u.joining = true
	u.m.propose(state.Command{JoinFederation: &state.JoinFederation{FederationID: msg.federation, Term: msg.term.Number, Nonce: msg.term.Nonce,
		Fence: msg.fence, StoreRevision: msg.revision, Lease: msg.lease}}, joined)
}

// commitNext commits the next change of orders, and acknowledges it.
func (u *uplink) commitNext(s *upSession) {
	if s.busy || !s.joined || len(s.waiting) == 0 || u.session != s {
		return
	}
	b := s.waiting[0]
	s.waiting = s.waiting[1:]
	view := u.m.view()
	known := func(yield func(string) bool) {
		for slot := range view.Slots() {
			if !slot.Local && !yield(slot.ID()) {
				return
			}
		}
	}
	change, complete, err := s.inbox.Add(b.b, known)
	if err != nil {
		s.e.Reset()
		u.lost(s, time.Second)
		return
	}
	if !complete {
		u.commitNext(s)
		return
	}
	cmd := &state.ApplyOrders{Position: state.Position(change.Position), Removed: change.Removed}
	included := map[*jobVersion]bool{}
	for _, item := range change.Upserts {
		o := state.SlotOrder{Slot: slotToState(&item.Value.slot)}
		if view.Cluster().FeatureLevel >= state.AttemptsLevel {
			o.Attempts = wire.AttemptsFromProto(item.Value.used)
		}
		if v := item.Value.job; v != nil && !included[v] {
			o.Job, included[v] = v.toState(false), true
		}
		cmd.Orders = append(cmd.Orders, o)
	}
	s.busy = true
	if plant.Is(plant.AckBeforeSync) {
		s.e.Send(ordersAck{change.Position, u.m.view().Index()})
	}
	u.m.propose(state.Command{ApplyOrders: cmd}, func(state.Result) {
		s.busy = false
		u.m.r.w.watch.ordersStored(u.m, s.federation)
		if u.session == s {
			s.e.Send(ordersAck{link.Position(u.m.view().Cluster().Orders), u.m.view().Index()})
			u.commitNext(s)
		}
	})
}

// requestLease requests the region's lease after the leadership was verified.
func (u *uplink) requestLease(s *upSession) {
	if u.session != s || u.stopped {
		return
	}
	u.m.l.confirm(func() {
		if u.session != s {
			return
		}
		now := u.m.srv.h.Clock()
		waited := time.Duration(0)
		if since := u.m.l.blockedSince; since >= 0 {
			waited = now - since
		}
		id := u.lease.Request(now)
		u.m.r.w.watch.requested(u, id, now)
		ordered := false
		if s.confirm {
			n, complete := accept.Unordered(u.m.view())
			ordered = n == 0 && complete && !u.m.logSuspect()
		}
		s.e.Send(regionRequest{id, u.lease.Latest(), ordered, regionlease.CommitBlocked(waited), u.m.view().Index()})
	})
	u.m.p.After(regionlease.Pause(s.length), func() { u.requestLease(s) })
}

// changed notes that the log has changed, so that answers may have to be sent.
func (u *uplink) changed() {
	s := u.session
	if s != nil && u.m.view().Cluster().FeatureLevel > s.level {
		s.e.Close()
		u.lost(s, 0)
		return
	}
	if u.dirty || s == nil || !s.joined {
		return
	}
	u.dirty = true
	u.m.p.After(20*time.Millisecond, func() {
		u.dirty = false
		if u.session == s {
			u.answer(s, false)
			u.m.reportDirty = u.m.reportDirty || u.m.r.w.life && u.newSummaries()
			if u.m.reportDirty {
				u.m.reportDirty = false
				u.report(s)
			}
		}
	})
}

func (u *uplink) answerEvery(s *upSession) {
	if u.session != s {
		return
	}
	u.answer(s, true)
	if !plant.Is(plant.AnswerOnce) {
		u.m.p.After(5*time.Second, func() { u.answerEvery(s) })
	}
}

// answer sends the changed answers, or all answers.
func (u *uplink) answer(s *upSession, all bool) {
	var out []state.Answer
	now := map[string]state.Answer{}
	if plant.Is(plant.AnswerOnce) {
		if u.once == nil {
			u.once = map[string]state.Answer{}
		}
		s.sent, all = u.once, false
	}
	answers := accept.Answers(u.m.view())
	if u.m.logSuspect() {
		answers = accept.OfSuspectLog(answers)
	}
	for _, a := range answers {
		key := state.SlotID(a.Namespace, a.Job, a.Group, a.From)
		now[key] = a
		if u.m.view().Cluster().FeatureLevel < state.BindingLevel {
			u.m.r.w.watch.answered(u.m.r, a)
		}
		if was, sent := s.sent[key]; all || !sent || was.State != a.State || was.To != a.To || was.Generation != a.Generation || was.Bound != a.Bound || was.StopTime != a.StopTime || was.MayRun != a.MayRun {
			out = append(out, a)
		}
	}
	s.sent, u.once = now, now
	if len(out) == 0 {
		return
	}
	msg := slotAnswers{list: out}
	for i := range out {
		msg.used = append(msg.used, usedBy(u.m.view(), &out[i]))
	}
	s.e.Send(msg)
}

func (u *uplink) reportEvery(s *upSession) {
	if u.session != s {
		return
	}
	u.report(s)
	u.m.p.After(5*time.Second, func() { u.reportEvery(s) })
}

// report sends the fit counts, and which instances may run on lost nodes.
func (u *uplink) report(s *upSession) {
	view, in := u.m.view(), u.m.planInput()
	if u.sums == nil || u.summed != view.Index() {
		u.sums, u.summed = sum(in, u.asks, u.m.r.w.life), view.Index()
	}
	out := regionReport{regionSums: u.sums, slotsRevision: u.m.placed}
	out.waiting = waitingForTurn(u.m.plan)
	if u.m.plan != nil && len(u.m.plan.Unplaced) > 0 {
		for g := range view.Groups() {
			if g.Key.Local {
				continue
			}
			for _, d := range accept.Disconnected(view, g.Key, u.m.plan.Unplaced) {
				out.disconnected = append(out.disconnected, place.Disconnected{Group: g.Key.Group, Region: u.m.r.name, From: int(d.From), To: int(d.To),
					Generation: d.Generation, Node: d.NodeName})
				out.jobs = append(out.jobs, g.Key.Job)
			}
		}
	}
	s.e.Send(out)
}

// sum returns the sums over the state of the log.
func sum(in sched.Input, asked []place.Ask, life bool) *regionSums {
	out := &regionSums{fits: map[uint64]int{}, running: map[groupName]int{}, lost: map[groupName]int{}}
	for g := range in.View.Groups() {
		if life && g.Counts.Lost > 0 && !g.Key.Local {
			out.lost[groupName{g.Key.Job, g.Key.Group}] = int(g.Counts.Lost)
		}
		if life && g.Counts.Held > 0 && !g.Key.Local {
			if out.held == nil {
				out.held = map[groupName]int{}
			}
			out.held[groupName{g.Key.Job, g.Key.Group}] = int(g.Counts.Held)
		}
	}
	for a := range in.View.Allocs() {
		if a.State == state.Running && !a.Local {
			out.running[groupName{a.Job, a.Group}]++
		}
	}
	asks := make([]*state.Ask, 0, len(asked))
	for _, a := range asked {
		asks = append(asks, &state.Ask{Resources: state.Resources{CPUMilli: a.CPUMilli}, Pool: "default", Drivers: []state.DriverAsk{{Name: "process"}}})
	}
	for i, n := range sched.FitCounts(in, asks, 100) {
		out.fits[askHashes[asked[i].CPUMilli]] = n
	}
	if life {
		out.parts, out.versions = summaries(in.View), versionCounts(in.View)
		out.used = usedIn(in.View, out.parts)
	}
	t := sched.Sum(in.View)
	out.ready, out.free = int(t.Ready), t.Free.CPUMilli
	return out
}

// equal reports whether a report has the same content as an earlier one.
func (r regionReport) equal(old *regionReport) bool {
	return old != nil && r.slotsRevision == old.slotsRevision && maps.Equal(r.waiting, old.waiting) && slices.Equal(r.disconnected, old.disconnected) && slices.Equal(r.jobs, old.jobs) &&
		(r.regionSums == old.regionSums || r.ready == old.ready && r.free == old.free && maps.Equal(r.fits, old.fits) && maps.Equal(r.running, old.running) && maps.Equal(r.held, old.held) && maps.Equal(r.lost, old.lost)) &&
		maps.EqualFunc(r.regionSums.parts, old.regionSums.parts, sameSummary) && maps.Equal(r.regionSums.versions, old.regionSums.versions)
}

// leaseState returns the state of the region's lease. When the region has a lease again, leaseState
// passes it on to the nodes.
func (u *uplink) leaseState() regionlease.State {
	m := u.m
	log := regionlease.BasisOf(m.view().Cluster())
	log.Planned = m.planned
	if log.Planned == (state.Position{}) {
		log.Planned.Epoch = log.Orders.Epoch // no plan is committed yet
	}
	st := u.lease.At(m.srv.h.Clock(), log)
	if st.Returned {
		u.repeatGrants()
	}
	return st
}

// repeatGrants sends each agent its latest grant again.
func (u *uplink) repeatGrants() {
	m := u.m
	for _, id := range sortedKeys(m.nodes) {
		if n := m.nodes[id]; n.session != nil && n.granted != 0 {
			m.sendGrant(n, n.session, n.granted)
		}
	}
}

// sendGrant sends a node a grant of its lease, with the remainder of the region's lease.
func (m *master) sendGrant(n *nodeState, e *machine.End, id uint64) {
	n.granted = id
	st, length := m.up.leaseState(), regionlease.NodeLease(m.view().Cluster(), m.r.nodeLease)
	if length == 0 {
		st.Left = 0
	}
	if n.ordersFirst || st.Left > 0 && !n.regionLease { // the node must know what it lost before a lease lets its tasks start again
		n.ordersFirst = false
		n.fill(m.view(), m.epoch)
		m.sendOrders(n)
	}
	n.regionLease = st.Left > 0
	m.r.w.watch.passedOn(m, st.Left)
	suspect := m.logSuspect()
	if length == 0 || suspect {
		n.empty = id
	}
	e.Send(nodeGrant{id: id, lease: length, regionLeft: st.Left, continues: suspect})
}
