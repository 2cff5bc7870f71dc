package world

import (
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/sim/world/machine"
	"github.com/nusa-scheduler/nusa/sim/world/store"
)

// globalSession is one stream of a region's master to the active server.
type globalSession struct {
	t      *globalTerm
	e      *machine.End
	number uint64
	name   string
	fence  uint64 // the region's fence at the welcome
	level  int    // feature level of the global tier at the welcome
	cursor *link.Cursor[slotOrder]
	queued bool
}

// accept serves a stream.
func (t *globalTerm) accept(e *machine.End) {
	t.streams++
	s := &globalSession{t: t, e: e, number: t.streams}
	e.Recv = func(m any) {
		if t.ended() {
			e.Close()
			return
		}
		t.receive(s, m)
	}
	e.Closed = func() {
		if !t.ended() && s.name != "" {
			t.step(s.name, region.StreamEnded{Stream: s.number})
		}
	}
}

// step advances one region by an event, and handles the effects.
func (t *globalTerm) step(name string, e region.Event) {
	r := t.region(name)
	next, effects := region.Step(t.config(), r.life, t.now(), e)
	if _, resumed := e.(region.Resumed); !resumed && next.LastSeen > r.life.LastSeen {
		t.w.watch.arrived(name)
	}
	r.life = next
	t.do(name, effects)
}

func (t *globalTerm) do(name string, effects []region.Effect) {
	r := t.region(name)
	for _, e := range effects {
		if t.w.Tracing() && e.Kind != region.Grant {
			t.w.Tracef("%s: %s: %s", t.g.name, name, e)
		}
		switch e.Kind {
		case region.End:
			if s := r.session; s != nil && s.number == e.Stream {
				s.e.Close()
				r.session = nil
			}
		case region.Disconnected:
			if s := r.session; s != nil && s.number == e.Stream {
				r.session = nil
			}
			t.wakePlacer()
		case region.Grant:
			t.w.watch.granted(t, name, e)
			r.session.e.Send(regionGrant{id: e.ID, fence: e.Record.Fence, incarnation: e.Record.Incarnation, term: t.leadership.term, lease: e.Lease,
				orders: link.Position{Epoch: t.epoch, Sequence: e.Orders}})
		}
	}
}

// conflict stores that a region knows more than the store.
func (t *globalTerm) conflict(e region.Effect, m regionHello) {
	t.commit(func() []store.Write {
		rec := t.leadership
		if rec.conflict && rec.known >= e.Known && rec.knownTerm >= e.KnownTerm && rec.knownStop >= m.stop && rec.leaseMax >= m.leaseMax {
			return nil
		}
		rec.knownStop, rec.leaseMax = max(rec.knownStop, m.stop), max(rec.leaseMax, m.leaseMax)
		rec.conflict, rec.known, rec.knownTerm = true, max(rec.known, e.Known), max(rec.knownTerm, e.KnownTerm)
		return []store.Write{{Key: leadershipKey, Value: rec}}
	}, nil)
}

// recover does what the call System.Recover does: it makes all later revisions and terms greater
// than those that any region knows.
func (t *globalTerm) recover() {
	rec := t.leadership
	if !rec.conflict || rec.recovered {
		return
	}
	rec.term.Number, rec.recovered = max(rec.term.Number, rec.knownTerm), true
	rec.recovery, rec.recoveryStop, rec.unconfirmed = true, max(rec.knownStop, t.longestStop()), t.toConfirm()
	key, create, mod := t.c.key, t.c.create, t.mods[leadershipKey]
	t.g.db.Call(3*time.Second, func(s *store.Store) (any, error) {
		raised := []store.Compare{{Key: key, Create: true, Rev: create}, {Key: leadershipKey, Rev: mod}}
		if !s.Holds(raised) {
			return nil, store.ErrCompare
		}
		s.Rev = max(s.Rev, rec.known) + region.RecoveryStep
		ws := []store.Write{{Key: leadershipKey, Value: rec}}
		for _, k := range s.List(slotPrefix) { // each slot becomes a new offer, which no region mistakes for an old one
			slot := s.Keys[k].Value.(region.Slot)
			slot.Generation, slot.Unbound, slot.Former = 0, true, slices.Clone(slot.Former)
			if slot.Vacant && s.Keys[regionPrefix+slot.Region] != nil { // as ownedAgain of package global/state
				slot.Vacant = false
				slot.Former = slices.DeleteFunc(slot.Former, func(f region.FormerOwner) bool { return f.Region == slot.Region })
			}
			for i := range slot.Former {
				slot.Former[i].MayRun = true
			}
			if slot.Bound {
				slot.StopTime = max(slot.StopTime, rec.recoveryStop)
			}
			ws = append(ws, store.Write{Key: k, Value: slot})
		}
		return s.Txn(raised, ws)
	}, func(any, error) { t.c.end("an operator recovered the store") })
}

// toConfirm returns the regions that have to confirm what they run after a recovery.
func (t *globalTerm) toConfirm() (out []string) {
	if plant.Is(plant.NoConfirmation) {
		return nil
	}
	for _, name := range t.names {
		if rec := t.regions[name].rec; t.reported[name] || rec.ClusterID != "" {
			out = append(out, name)
		}
	}
	return out
}

// confirmRegions stores which regions have confirmed what they run since a recovery.
func (t *globalTerm) confirmRegions() {
	for _, name := range t.leadership.unconfirmed {
		if r := t.region(name); r.session != nil && r.life.Confirmed() {
			t.commit(func() []store.Write { return t.confirmed(name) }, nil)
		}
	}
}

// confirmed returns the write that takes a region off the list of the unconfirmed ones.
func (t *globalTerm) confirmed(name string) []store.Write {
	rec := t.leadership
	if !slices.Contains(rec.unconfirmed, name) {
		return nil
	}
	if t.w.Tracing() {
		t.w.Tracef("%s: %s has confirmed what it runs", t.g.name, name)
	}
	rec.unconfirmed = slices.DeleteFunc(slices.Clone(rec.unconfirmed), func(n string) bool { return n == name })
	return []store.Write{{Key: leadershipKey, Value: rec}}
}

// longestStop returns the longest kill_timeout of the instances that the regions' leases bind, as
// far as the store knows.
func (t *globalTerm) longestStop() (longest time.Duration) {
	for _, j := range t.jobs {
		for _, g := range j.groups {
			if g.boundByRegion() {
				longest = max(longest, g.kill)
			}
		}
	}
	for _, s := range t.slots {
		longest = max(longest, s.StopTime)
	}
	return longest
}

// outlasts notes that a region may hold a longer lease from before a recovery, or may run instances
// with a longer stop time. When all of that is over, it ends the wait of the recovery.
func (t *globalTerm) outlasts(stop, leaseMax time.Duration) {
	t.commit(func() []store.Write {
		rec := t.leadership
		over := t.now() >= t.config().GrantsFrom && len(rec.unconfirmed) == 0
		if !rec.recovery || !over && rec.recoveryStop >= stop && rec.leaseMax >= leaseMax {
			return nil
		}
		rec.recovery, rec.recoveryStop, rec.leaseMax = !over, max(rec.recoveryStop, stop), max(rec.leaseMax, leaseMax)
		return []store.Write{{Key: leadershipKey, Value: rec}}
	}, nil)
}

func (t *globalTerm) receive(s *globalSession, m any) {
	if h, ok := m.(regionHello); ok {
		t.hello(s, h)
		return
	}
	r := t.region(s.name)
	if r.session != s {
		s.e.Close()
		return
	}
	switch m := m.(type) {
	case regionRequest:
		orders := r.orders.Position().Sequence
		t.step(s.name, region.LeaseRequested{Stream: s.number, ID: m.id, Granted: m.granted, CommitBlocked: m.blocked, Orders: orders, Index: m.index, Ordered: m.ordered})
	case ordersAck:
		t.w.watch.acknowledged(s.name, t.w.regionNamed(s.name), t.w.regionNamed(s.name).raft.st.Snapshot().Cluster().Orders, m.at)
		if m.at.Epoch == t.epoch {
			t.step(s.name, region.OrdersAcked{Stream: s.number, Position: m.at.Sequence, Index: m.index})
		}
	case slotAnswers:
		t.step(s.name, region.Received{Stream: s.number})
		t.answers(s, m)
	case regionReport:
		t.step(s.name, region.Received{Stream: s.number})
		if !m.equal(r.report) {
			t.soft++
		}
		r.report = &m
		r.reports++
		t.wakePlacer()
	case letterReply:
		t.step(s.name, region.Received{Stream: s.number})
		retries{t}.lettersCame(m)
	case goodbye:
		s.e.Close()
		t.step(s.name, region.StreamEnded{Stream: s.number})
	}
}

// hello stores the changes of a hello, and then makes the stream the region's session.
func (t *globalTerm) hello(s *globalSession, m regionHello) {
	r := t.region(m.name)
	fence := r.life.Fence
	h := region.Hello{Stream: s.number, ClusterID: m.clusterID, Incarnation: m.incarnation, Term: m.term, AppliedIndex: m.applied, Fence: m.fence,
		Level: m.level, Master: m.master, Federation: m.federation, KnownTerm: m.known, KnownRevision: m.revision}
	step := func() (region.State, []region.Effect) {
		h.Required = max(1, r.orders.Position().Sequence)
		h.Acked = 0
		if m.orders.Epoch == t.epoch {
			h.Acked = m.orders.Sequence
		}
		return region.Step(t.config(), r.life, t.now(), h)
	}
	refusedNow := func(effects []region.Effect) bool {
		for _, e := range effects {
			if e.Kind == region.Refuse {
				if t.w.Tracing() {
					t.w.Tracef("%s: %s: %s", t.g.name, m.name, e)
				}
				if r := t.regions[m.name]; r != nil && e.OtherCluster {
					r.calls = true
				}
				s.e.Send(refused{e.Permanent})
				s.e.Close()
				return true
			}
		}
		return false
	}
	_, effects := step()
	for _, e := range effects {
		if e.Kind == region.Conflict {
			t.conflict(e, m)
		}
	}
	if refusedNow(effects) {
		if t.leadership.conflict {
			t.reported[m.name] = true
		}
		t.do(m.name, effects)
		return
	}
	t.outlasts(m.stop, m.leaseMax)
	if has := r.rec.ClusterID; has != "" && has != m.clusterID {
		t.commit(func() []store.Write { return putSlots(t.offeredAgain(m.name)) }, nil)
	}
	t.commit(func() []store.Write {
		rec, changed := r.rec, t.mods[regionPrefix+m.name] == 0
		_, now := step()
		for _, e := range now {
			if e.Kind == region.Persist {
				rec.Record, changed = e.Record, true
			}
		}
		if plant.Is(plant.FenceBack) {
			rec.Fence, rec.Lost = fence, false
		}
		if !changed {
			return nil
		}
		if rec.Name == "" {
			rec.Name = m.name
		}
		return []store.Write{{Key: regionPrefix + m.name, Value: rec}}
	}, func(bool) { t.welcome(s, m, step, refusedNow) })
}

// welcome makes the stream the region's session, after the store has recorded what the region may
// hold of the slots that it lost.
func (t *globalTerm) welcome(s *globalSession, m regionHello, step func() (region.State, []region.Effect), refusedNow func([]region.Effect) bool) {
	r := t.region(m.name)
	t.commit(func() []store.Write { return putSlots(t.heal(m.name, m.level)) }, func(bool) {
		next, effects := step()
		if refusedNow(effects) || !s.e.Open || t.ended() {
			return
		}
		if slices.ContainsFunc(effects, func(e region.Effect) bool { return e.Kind == region.Persist }) {
			t.hello(s, m) // a verdict was stored meanwhile
			return
		}
		t.do(m.name, effects)
		if next.LastSeen > r.life.LastSeen {
			t.w.watch.arrived(m.name)
		}
		r.life, r.session, s.name, s.fence = next, s, m.name, next.Fence
		r.refused, r.barred, r.calls = nil, nil, false
		t.soft++
		s.cursor, s.level = r.orders.Cursor(m.orders), t.level()
		s.e.Send(globalWelcome{federation: t.federation, term: t.leadership.term, fence: next.Fence, revision: t.rev, level: t.level(), lease: t.g.lease, confirm: slices.Contains(t.leadership.unconfirmed, m.name), asks: t.w.asks})
		s.wake()
		t.wakePlacer()
	})
}

// wake sends the orders that are not sent yet.
func (s *globalSession) wake() {
	if s.queued || s.cursor == nil {
		return
	}
	s.queued = true
	s.t.g.p.After(0, func() {
		s.queued = false
		if s.t.ended() || s.t.region(s.name).session != s {
			return
		}
		for {
			b, more := s.cursor.Next(64)
			if !more {
				return
			}
			for i := range b.Items {
				b.Items[i].Value = retries{s.t}.withAttempts(b.Items[i].Value)
			}
			s.e.Send(slotOrders{b})
		}
	})
}

// answers applies a region's answers, each in its own transaction.
func (t *globalTerm) answers(s *globalSession, m slotAnswers) {
	from := s.name
	for i := range m.list {
		a := answerToGlobal(&m.list[i])
		a.Fence = s.fence
		var out region.Outcome
		t.commit(func() []store.Write {
			out = t.applyAnswer(from, a)
			ws := putSlots(out.Changes)
			if len(ws) > 0 {
				ws = append(ws, retries{t}.answered(a, m.used[i])...)
			}
			return ws
		}, func(ok bool) {
			if ok {
				t.noteAnswer(from, a, out)
			}
		})
	}
}

func (t *globalTerm) applyAnswer(from string, a region.Answer) region.Outcome {
	var slots []region.Slot
	for _, s := range t.slotsOf(a.Job) {
		if s.Group == a.Group {
			slots = append(slots, s.Reachable(func(name string) bool { return t.region(name).session != nil }))
		}
	}
	return region.ApplyAnswer(slots, from, a)
}

// noteAnswer stores refused work, so that the placer tries other regions first.
func (t *globalTerm) noteAnswer(from string, a region.Answer, out region.Outcome) {
	if t.w.Tracing() {
		t.w.Tracef("%s: %s answers %s", t.g.name, from, a)
	}
	if len(out.Released) == 0 || a.State != region.Rejected && a.State != region.Returned {
		return
	}
	j := t.jobs[a.Job]
	if j == nil || j.group(a.Group) == nil {
		return
	}
	r := t.region(from)
	if a.Reason == string(state.ReasonOtherRegion) {
		r.bar(a, j.version, t.now())
		t.soft++
		t.w.watch.retries.barred(t, from, a, j.version)
		return
	}
	if len(r.refused) > 50 {
		r.refused = r.refused[1:]
	}
	t.soft++
	r.refused = append(r.refused, place.Returned{Namespace: "default", Job: a.Job, Group: a.Group, Ask: askHashes[j.group(a.Group).cpu], Region: from,
		Reason: a.Reason, ReportSequence: r.reports})
}

// barredFor is how long a region gets no instances of a group from which a retry policy has moved one. It doubles up to
// barredMost.
const (
	barredFor  = time.Minute
	barredMost = 5 * time.Minute
)

// barredGroup is a group that a region does not get for a while.
type barredGroup struct {
	groupName
	version  int64
	at       time.Duration
	times    int
	sequence uint64
}

func (a *barredGroup) left(now time.Duration) time.Duration {
	return max(0, min(barredMost, barredFor<<min(a.times-1, 16))-(now-a.at))
}

// bar notes that a region has returned an instance because of its retry policy, as global/state does.
func (r *globalRegion) bar(a region.Answer, version int64, now time.Duration) {
	next := barredGroup{groupName{a.Job, a.Group}, version, now, 1, r.reports}
	if i := slices.IndexFunc(r.barred, func(o barredGroup) bool { return o.groupName == next.groupName }); i >= 0 {
		next.times = r.barred[i].times
		if next.sequence > r.barred[i].sequence {
			next.times++
		}
		r.barred = slices.Delete(r.barred, i, i+1)
	}
	r.barred = append(r.barred, next)
}

// barredNow returns the groups that a region does not get now. The latest version of a job begins again.
func barredNow(t *globalTerm, name string) (out []place.Returned) {
	for _, a := range t.regions[name].barred {
		if left := a.left(t.now()); left > 0 && t.jobs[a.job] != nil && t.jobs[a.job].version == a.version {
			out = append(out, place.Returned{Namespace: "default", Job: a.job, Group: a.group, Region: name, Reason: string(state.ReasonOtherRegion), Backoff: left, ReportSequence: a.sequence})
		}
	}
	return out
}
