package world

import (
	"fmt"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/sim/world/machine"
)

// agent is one node of a region: its process, its store, and its sessions.
type agent struct {
	r    *regionSim
	h    *machine.Host
	p    *machine.Proc
	id   string
	name string
	cpu  int64
	old  bool // runs a version of the earlier feature level
	next int  // index of the next server to try

	disk agentDisk
	runs map[runID]*run // the runs that the host's kernel has

	// The fields below are the memory of the process. They are lost at its end.
	allocs   map[string]*agentAlloc
	order    []string // ids of allocs, sorted
	position link.Position
	term     [2]uint64 // incarnation and term of the latest master
	lease    lease.Holder
	session  *agentSession
	reports  *link.Outbox[state.AllocReport]
	wakeAt   int64
	leaving  bool
	// storing: the engine waits for the disk. waiting holds the steps that follow.
	storing   bool
	waiting   []func()
	advancing bool
	// specs and actual are buffers for the plan's input.
	specs  []reconcile.Alloc
	actual map[string]reconcile.Actual
	// decided are the lease verdicts at the latest plan that had no actions. due is when a step
	// other than the end of a lease is due; zero: none is.
	decided verdicts
	due     time.Time
}

type verdicts struct {
	known, diskFull bool
	of              [len(lease.Bindings)]lease.Verdict
}

// agentDisk is the agent's store. Writes that the disk has not completed are lost in a crash.
type agentDisk struct {
	orders   map[string]allocOrder
	records  map[string]reconcile.Actual
	removed  map[string]bool // the region has removed these allocations
	position link.Position
	term     [2]uint64
	starts   uint64
	pending  []func(d *agentDisk)
	writing  bool
}

type agentAlloc struct {
	order    allocOrder
	spec     reconcile.Alloc
	act      reconcile.Actual
	restarts int32
	dirty    bool
	// storing: the end of the allocation is being written to the disk.
	storing bool
	// setup is the number of the run that is being set up; 0: none.
	setup int
}

// agentSession is a stream to a server of the agent's region.
type agentSession struct {
	e        *machine.End
	active   bool
	inbox    *link.Inbox[allocOrder]
	cursor   *link.Cursor[state.AllocReport]
	lease    time.Duration
	lastSeen time.Duration
	granted  uint64         // id of the latest grant
	renewal  int            // number of the latest timer for a request
	renew    *machine.Alarm // the timer itself
	slept    int64          // host.slept when renew was set
}

// newAgent makes an agent. A second agent of the same name has a suffix in its id.
func newAgent(r *regionSim, i int, suffix string) *agent {
	name := fmt.Sprintf("r%d-n%d", r.num, i)
	a := &agent{r: r, h: r.w.NewHost(name + suffix), id: name + suffix, name: name, cpu: int64(machine.Pick(r.w.Engine, 2, 4, 6)) * 1000, runs: map[runID]*run{}}
	a.disk = agentDisk{orders: map[string]allocOrder{}, records: map[string]reconcile.Actual{}, removed: map[string]bool{}}
	a.p = a.h.NewProc(name)
	a.p.OnStart = a.start
	a.p.OnKill = a.killed
	return a
}

// forget replaces the disk by an empty one.
func (a *agent) forget() {
	a.disk = agentDisk{orders: map[string]allocOrder{}, records: map[string]reconcile.Actual{}, removed: map[string]bool{}, starts: a.disk.starts}
	clear(a.runs)
}

// killed drops the memory and the writes in progress. After a kill, the disk may have completed
// some of them; after a loss of power, it has completed none.
func (a *agent) killed(power bool) {
	if n := len(a.disk.pending); n > 0 && !power {
		for _, op := range a.disk.pending[:a.r.w.Rng.IntN(n+1)] {
			op(&a.disk)
		}
	}
	a.disk.pending, a.disk.writing = nil, false
	a.session = nil
}

func (a *agent) start() {
	a.disk.starts++
	a.allocs, a.order = map[string]*agentAlloc{}, nil
	a.position, a.term = a.disk.position, a.disk.term
	a.lease = lease.Holder{}
	a.session, a.wakeAt, a.leaving = nil, 0, false
	a.storing, a.waiting, a.decided = false, nil, verdicts{}
	a.reports = link.NewOutbox[state.AllocReport](a.id, 1024)
	a.reports.ForgetUpTo(a.disk.starts << 32)
	for _, id := range sortedKeys(a.disk.orders) {
		o := a.understood(a.disk.orders[id])
		al := &agentAlloc{order: o, spec: readOrder(o), act: copyActual(a.disk.records[id])}
		if a.disk.removed[id] {
			al.spec.Want = reconcile.Forget
		}
		a.allocs[id] = al
		a.recover(al)
	}
	a.order = sortedKeys(a.allocs)
	for _, id := range a.order {
		a.allocs[id].dirty = true
	}
	a.advance()
	a.p.After(a.r.w.Between(0, time.Second), a.connect)
}

// write writes to the store. done runs once the write is durable.
func (a *agent) write(op func(d *agentDisk), done func()) {
	a.disk.pending = append(a.disk.pending, op)
	if done != nil {
		life := a.p.Life
		a.disk.pending = append(a.disk.pending, func(*agentDisk) { a.r.w.At(a.r.w.Now, func() { a.p.Then(life, done) }) })
	}
	a.flush()
}

func (a *agent) flush() {
	d := &a.disk
	if d.writing || len(d.pending) == 0 {
		return
	}
	d.writing = true
	n := len(d.pending)
	a.p.Write(func() {
		d.writing = false
		batch := d.pending[:n:n]
		d.pending = d.pending[n:]
		for _, op := range batch {
			op(d)
		}
		a.flush()
	})
}

// connect tries the servers one after the other, until one of them is the master.
func (a *agent) connect() {
	if a.session != nil || len(a.r.raft.servers) == 0 {
		return
	}
	a.next++
	a.dial(a.r.raft.servers[a.next%len(a.r.raft.servers)])
}

func (a *agent) dial(srv *regionServer) {
	s := &agentSession{e: a.r.w.Net.Dial(a.p, srv.p), inbox: link.NewInbox[allocOrder](10_000), lastSeen: a.h.Clock()}
	a.session = s
	s.e.Recv = func(m any) {
		if a.session == s {
			s.lastSeen = a.h.Clock()
			a.then(func() {
				if a.session == s {
					a.receive(s, m)
				}
			})
		}
	}
	s.e.Closed = func() { a.lostSession(s, a.r.w.Between(100*time.Millisecond, 2*time.Second)) }
	newest, stop := allocOrder{}, time.Duration(0)
	for _, id := range a.order {
		al := a.allocs[id]
		if newer(al.order, newest) {
			newest = al.order
		}
		if al.order.binding != lease.None && al.act.End == nil {
			stop = max(stop, al.order.spec.kill)
		}
	}
	s.e.Send(agentHello{id: a.id, name: a.name, orders: a.position, incarnation: newest.incarnation, index: newest.index, cpu: a.cpu, stop: stop, old: a.old})
	a.watch(s)
}

// watch ends a session when its server has been silent for too long.
func (a *agent) watch(s *agentSession) {
	limit := 5 * time.Second
	if s.active {
		limit = s.lease
	}
	a.p.After(limit-(a.h.Clock()-s.lastSeen)+time.Millisecond, func() {
		if a.session != s {
			return
		}
		if a.h.Clock()-s.lastSeen >= limit {
			s.e.Reset()
			a.lostSession(s, a.r.w.Between(50*time.Millisecond, time.Second))
			return
		}
		a.watch(s)
	})
}

// then runs a step of the engine. While the engine stores orders, the step waits for the disk.
func (a *agent) then(do func()) {
	if a.storing {
		a.waiting = append(a.waiting, func() { a.then(do) })
		return
	}
	do()
}

func (a *agent) lostSession(s *agentSession, retry time.Duration) {
	if a.session != s {
		return
	}
	a.session = nil
	a.p.After(retry, a.connect)
}

func (a *agent) receive(s *agentSession, m any) {
	switch m := m.(type) {
	case standby:
		s.e.Close()
		a.session = nil
		if m.leader != nil {
			a.p.After(a.r.w.Between(time.Millisecond, 50*time.Millisecond), func() {
				if a.session == nil {
					a.dial(m.leader)
				}
			})
			return
		}
		a.p.After(a.r.w.Between(200*time.Millisecond, time.Second), a.connect)
	case agentWelcome:
		a.welcome(s, m)
	case nodeGrant:
		s.granted = max(s.granted, m.id)
		if s.active && a.lease.Granted(lease.Grant{ID: m.id, Node: m.lease, Region: m.regionLeft, Continue: m.continues}, a.h.Clock()) {
			a.renewRuns()
			if !a.idle() {
				a.advance()
			}
		}
		if s.active {
			a.renewLater(s)
		}
	case nodeOrders:
		if s.active {
			a.orders(s, m)
		}
	case reportsAck:
		// The position need not be kept: a new session resumes from the position that the master
		// names.
		a.r.w.watch.acknowledged(a.id, a.r, a.r.raft.st.Snapshot().Reports(a.id), m.at)
	}
}

func (a *agent) welcome(s *agentSession, m agentWelcome) {
	term := [2]uint64{m.incarnation, m.term}
	if term[0] < a.term[0] || term[0] == a.term[0] && term[1] < a.term[1] {
		s.e.Close()
		a.lostSession(s, time.Second)
		return
	}
	a.lease.NewSession()
	if term[0] != a.term[0] {
		a.lease.Forget()
	}
	a.term = term
	a.write(func(d *agentDisk) { d.term = term }, nil)
	s.active, s.lease = true, m.lease
	s.cursor = a.reports.Cursor(m.reports)
	a.sendReports()
	a.requestLease(s)
}

func (a *agent) requestLease(s *agentSession) {
	if a.session != s || !s.e.Open {
		return
	}
	id := a.lease.Request(a.h.Clock())
	s.e.Send(leaseRequest{id, s.granted})
	a.renewLater(s)
}

// renewLater sets the time of the next lease request.
func (a *agent) renewLater(s *agentSession) {
	binds := false
	for _, al := range a.allocs {
		binds = binds || al.order.binding&lease.Region != 0 && al.act.End == nil
	}
	s.renewal++
	w := a.r.w
	if s.renew == nil {
		life := a.p.Life
		s.renew = w.NewAlarm(func() { a.renewalDue(s, life) })
	}
	s.slept = a.h.Slept
	s.renew.Set(w.Now + int64(a.h.TrueFor(a.lease.Renewal(a.h.Clock(), s.lease/3, binds))))
}

// renewalDue requests a lease. If the host was suspended, it waits for that time more.
func (a *agent) renewalDue(s *agentSession, life int) {
	if a.p.Life != life {
		return
	}
	if more := a.h.Slept - s.slept; more > 0 {
		s.slept = a.h.Slept
		s.renew.Set(a.r.w.Now + more)
		return
	}
	set := s.renewal
	a.p.Then(life, func() {
		if s.renewal == set {
			a.requestLease(s)
		}
	})
}

// orders stores new orders, and then acts on them.
func (a *agent) orders(s *agentSession, m nodeOrders) {
	known := func(yield func(string) bool) {
		for _, id := range a.order {
			if a.allocs[id].spec.Want != reconcile.Forget && !yield(id) {
				return
			}
		}
	}
	change, complete, err := s.inbox.Add(m.b, known)
	if err != nil {
		s.e.Reset()
		a.lostSession(s, time.Second)
		return
	}
	if !complete {
		return
	}
	var fresh []allocOrder
	for _, item := range change.Upserts {
		old := a.allocs[item.Key]
		if old == nil || newer(item.Value, old.order) || old.spec.Want == reconcile.Forget && !newer(old.order, item.Value) {
			fresh = append(fresh, item.Value)
		}
	}
	if a.h.DiskFull { // the orders are not acknowledged, but those for known allocations count
		a.adopt(fresh, change.Removed)
		a.declineUnstored(fresh)
		a.advance()
		return
	}
	apply := func() {
		a.storing = false
		a.adopt(fresh, change.Removed)
		a.position = change.Position
		if a.session == s {
			s.e.Send(ordersStored{change.Position})
			if slices.ContainsFunc(fresh, func(o allocOrder) bool { return o.binding&lease.Region != 0 }) {
				a.renewLater(s)
			}
		}
		a.advance()
		waiting := a.waiting
		a.waiting = nil
		for _, do := range waiting {
			do()
		}
	}
	if plant.Is(plant.ActBeforeStore) {
		a.adopt(fresh, change.Removed)
		a.advance()
	}
	a.storing = true
	a.write(func(d *agentDisk) {
		for _, o := range fresh {
			d.orders[o.id] = o
			delete(d.removed, o.id)
		}
		for _, id := range change.Removed {
			d.removed[id] = true
		}
		d.position = change.Position
	}, apply)
}

// declineUnstored declines new allocations whose orders could not be stored.
func (a *agent) declineUnstored(fresh []allocOrder) {
	for _, o := range fresh {
		if al := a.allocs[o.id]; al.order.index == o.index && !al.act.Accepted && al.act.End == nil && al.spec.Want == reconcile.Run && a.disk.orders[o.id].id == "" {
			al.act.End = &reconcile.Outcome{State: reconcile.Failed, Declined: true, Reason: reconcile.ReasonInsufficientDisk}
		}
	}
}

func (a *agent) adopt(fresh []allocOrder, removed []string) {
	for _, o := range fresh {
		o = a.understood(o)
		a.r.w.watch.supported(a, o)
		if al := a.allocs[o.id]; al != nil {
			if !newer(al.order, o) {
				a.r.w.watch.ordered(a, al.order, o)
				rebound := al.order.binding != o.binding
				al.order, al.spec, al.dirty = o, readOrder(o), true
				if rebound {
					a.renewAlloc(al)
				}
			}
			continue
		}
		a.allocs[o.id] = &agentAlloc{order: o, spec: readOrder(o), dirty: true}
	}
	for _, id := range removed {
		if al := a.allocs[id]; al != nil {
			al.spec.Want, al.dirty = reconcile.Forget, true
		}
	}
	a.order = sortedKeys(a.allocs)
}

func newer(a, b allocOrder) bool {
	return a.incarnation > b.incarnation || a.incarnation == b.incarnation && a.index > b.index
}

func (a *agent) sendReports() {
	s := a.session
	if s == nil || !s.active {
		return
	}
	for {
		b, more := s.cursor.Next(64)
		if !more {
			return
		}
		s.e.Send(nodeReports{b})
	}
}

// beSecond starts a second agent for a while. Later its host may lose power.
func (a *agent) beSecond(d time.Duration) {
	w := a.r.w
	w.begin(a.p)
	w.In(d, func() {
		if w.Now >= int64(calm) {
			return
		}
		a.p.Kill(false)
		a.p.Unwanted = true
		if w.Chance(2) {
			a.h.Crash()
		}
	})
}
