package world

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
	globalstate "github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/workflows/flow"
	"github.com/nusa-scheduler/nusa/internal/plant"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	regionletters "github.com/nusa-scheduler/nusa/regional/letters"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/state/retry"
	"github.com/nusa-scheduler/nusa/regional/wire"
	"github.com/nusa-scheduler/nusa/sim/world/attempts"
	"github.com/nusa-scheduler/nusa/sim/world/letters"
	"github.com/nusa-scheduler/nusa/sim/world/store"
)

// The numbers of the invariants of this file. Worlds with life check them, too.
const (
	// retriesKept: the first rule that matches a failure decides about its memory and its region, in whichever region
	// the next attempt is.
	retriesKept = 18
	// lettersKept: an instance that has used its retries leaves one dead letter, with its attempts, and no other does.
	lettersKept = 19
)

// attemptsPrefix is the prefix of the records of what the instances of groups have used of their retry policies.
const attemptsPrefix = "attempts/"

// retries keeps what instances use of their retry policies, and dead letters, in a leadership term.
type retries struct{ *globalTerm }

// putAttempts returns the write that stores what the instances from ≤ i < to of a slot have used, when the slot leaves
// its region.
func (t retries) putAttempts(s *region.Slot, from, to int, used []*nusav1.InstanceAttempts) []store.Write {
	key := s.Job + "/" + s.Group
	if next := globalstate.MergeAttempts(t.used[key], s, from, to, used); next != nil && t.level() > 0 {
		return []store.Write{{Key: attemptsPrefix + key, Value: next}}
	}
	return nil
}

// answered returns the writes about the attempts of the instances that an answer gives up.
func (t retries) answered(a region.Answer, used []*nusav1.InstanceAttempts) []store.Write {
	if a.State != region.Returned && a.State != region.Revoked {
		return nil
	}
	for _, s := range t.slotsOf(a.Job) {
		if s.Group == a.Group && s.Generation == a.Generation && a.From < s.To && s.From < a.To {
			return t.putAttempts(&s, a.From, a.To, used)
		}
	}
	return nil
}

// takenOver returns the writes about the attempts of the slots of lost regions, as far as the regions have reported.
func (t retries) takenOver(all []region.Slot) (out []store.Write) {
	next := map[string]*nusav1.AttemptsRecord{}
	for i := range all {
		s := &all[i]
		rep, key := t.regions[s.Region].report, s.Job+"/"+s.Group
		if rep == nil || rep.parts[s.Job].Version != s.JobVersion || rep.parts[s.Job].Run != s.Run || len(rep.used[groupName{s.Job, s.Group}]) == 0 {
			continue
		}
		if rec := globalstate.MergeAttempts(cmp.Or(next[key], t.used[key]), s, s.From, s.To, rep.used[groupName{s.Job, s.Group}]); rec != nil && t.level() > 0 {
			next[key] = rec
		}
	}
	for _, key := range sortedKeys(next) {
		out = append(out, store.Write{Key: attemptsPrefix + key, Value: next[key]})
	}
	return out
}

// forgetAttempts returns the writes that forget the attempts of a job.
func (t retries) forgetAttempts(job string) (out []store.Write) {
	for _, key := range sortedKeys(t.used) {
		if strings.HasPrefix(key, job+"/") {
			out = append(out, store.Write{Key: attemptsPrefix + key, Delete: true})
		}
	}
	return out
}

// withAttempts returns an order with what the instances of its slot have used in other regions.
func (t retries) withAttempts(o slotOrder) slotOrder {
	if len(t.used) == 0 {
		return o
	}
	o.used = globalstate.AttemptsIn(t.used[o.slot.Job+"/"+o.slot.Group], &o.slot)
	return o
}

// usedBy returns what the instances of an answer have used of their retry policy, as regional/uplink does.
func usedBy(view *state.View, a *state.Answer) []*nusav1.InstanceAttempts {
	g, ok := view.Group(state.GroupKey{Namespace: a.Namespace, Job: a.Job, Group: a.Group})
	if !ok || a.State != state.SlotReturned && a.State != state.SlotRevoked {
		return nil
	}
	for _, s := range g.Slots {
		if s.Generation == a.Generation && s.From <= a.From && a.To <= s.To {
			return wire.AttemptsToProto(view, s, a.From, a.To)
		}
	}
	return nil
}

// letterCall asks a region for failed instances, and letterReply is its response.
type (
	letterCall  struct{ call *letters.Call }
	letterReply struct {
		call *letters.Call
		resp *nusav1.CollectResponse
	}
)

// collect answers a call, as the DeadLetters service of a region does.
func collect(u *uplink, s *upSession, c *letters.Call) {
	u.m.p.After(u.m.r.w.Between(time.Millisecond, 20*time.Millisecond), func() {
		if u.session != s {
			return
		}
		service := &regionletters.Service{View: u.m.view, Region: u.m.r.name}
		resp, err := service.Collect(context.Background(), &nusav1.CollectRequest{Jobs: c.Jobs})
		if err == nil {
			s.e.Send(letterReply{c, resp})
		}
	})
}

// askLetters asks regions for the failed instances that their reports count, as global/deadletters does.
func (t retries) askLetters() {
	t.book.Forget(func(job string) bool { return t.jobs[job] != nil })
	for _, job := range sortedKeys(t.jobs) {
		if t.jobs[job].typ != state.Batch || t.tried(job) {
			continue
		}
		for _, name := range t.names {
			part, has := partOf(children(t), name, job)
			m := letters.Mark{Version: part.Version, Run: part.Run}
			for _, n := range part.Groups {
				m.Failed += n.Failed
			}
			switch {
			case !has || m.Failed == 0:
			case plant.Is(plant.LettersUnread) && !t.lettersBegun:
				t.book.Ignore(job, name, m)
			default:
				t.book.Look(job, name, m, t.now())
			}
		}
	}
	t.lettersBegun = t.lettersBegun || len(t.jobs) > 0 && t.now()-t.began > 3*time.Second
	for _, name := range t.names {
		s := t.regions[name].session
		if s == nil {
			continue
		}
		c := t.book.Call(name)
		if c == nil {
			continue
		}
		s.e.Send(letterCall{c})
		t.g.p.After(5*time.Second, func() { t.book.Failed(c) })
	}
}

// lettersCame stores the dead letters of a response.
func (t retries) lettersCame(m letterReply) {
	for _, job := range t.book.Returned(m.call, m.resp.GetInstances(), m.resp.GetMore()) {
		t.commit(func() (ws []store.Write) {
			if t.leadership.conflict {
				return nil
			}
			all, sources := t.book.Writes(job)
			for _, l := range all {
				if t.w.Tracing() {
					t.w.Tracef("%s: dead letter %s from %s after %d attempts", t.g.name, letters.ID(l), l.GetRegion(), l.GetAttemptCount())
				}
				ws = append(ws, store.Write{Key: letters.Prefix + letters.ID(l), Value: l})
			}
			for _, s := range sources {
				ws = append(ws, store.Write{Key: s.Key(), Value: s})
			}
			return ws
		}, nil)
	}
}

// tried reports whether a job is an attempt of a step after which the step, or the step of an outer run, is tried again,
// as package workflows does.
func (t retries) tried(job string) bool {
	k := t.w.kids[job]
	r := t.flows[k.of]
	if k.flow == nil || r == nil {
		return false
	}
	at := [3]int{k.step, k.item, k.attempt}
	for !r.rules[at[0]].Followed(r.phase, r.items[at[0]][at[1]], at[2], r.attempts[at[0]][at[1]]) {
		outer := t.flows[r.outer]
		if outer == nil {
			return false
		}
		at, r = r.outerAt, outer
	}
	return true
}

// canceled reports whether the run of a workflow whose step a job is was canceled, or is an inner one. An attempt that was
// to be tried again then leaves no dead letter: see sim/LEDGER.md.
func (t retries) canceled(job string) bool {
	r := t.flows[t.w.kids[job].of]
	return r != nil && (r.outer != "" || t.w.watch.kids.canceled[r.name])
}

// endKids stops the runs that have ended, once their dead letters are stored, so that they can be forgotten.
func (t retries) endKids() {
	for _, name := range sortedKeys(t.jobs) {
		if j := t.jobs[name]; !j.purge || j.stopped || t.book.Awaits(name, t.now()) || !t.seen(name) {
			continue
		}
		t.commit(func() []store.Write {
			j := t.jobs[name]
			if j == nil || !j.purge || j.stopped {
				return nil
			}
			t.w.watch.retries.lettersLeft(t, name)
			next := *j
			next.stopped = true
			return []store.Write{{Key: jobPrefix + name, Value: &next}}
		}, nil)
	}
}

// seen reports whether each region of a job has reported it in this term, or does not report it in time.
func (t retries) seen(job string) bool {
	return t.now()-t.began > 15*time.Second || !slices.ContainsFunc(t.slotsOf(job), func(s region.Slot) bool {
		_, has := partOf(children(t), s.Region, job)
		return !has
	})
}

// retryWatch checks what must hold of retries and of dead letters.
type retryWatch struct {
	w       *world
	checker attempts.Checker
	// returned are the instances that a region has returned because of their retry policies.
	returned map[attempts.Key]returnedOther
	letters  map[string]bool // by id
}

type returnedOther struct {
	region  string
	version int64
	at      int64
	term    *globalTerm
	session *globalSession
}

func keyOf(r *regionSim, a *state.Alloc) attempts.Key {
	k := attempts.Key{Job: a.Job, Group: a.Group, Index: a.Index}
	if a.Local {
		k.Region = r.name
	}
	return k
}

func atOf(r *regionSim, a *state.Alloc) attempts.At {
	return attempts.At{Region: r.name, Run: a.Run, Version: a.JobVersion, Generation: a.Generation}
}

// unsure reports whether the log of a region may lack failures.
func (v *retryWatch) unsure(r *regionSim) bool {
	return r.careless || r.incarnation > 0 || r.clusters > 0
}

// ended checks the failures that a command has committed. A batch of commands is checked command by command.
func (v *retryWatch) ended(g *raftGroup, before, after *state.View, cmd *state.Command) {
	var ids []string
	switch {
	case cmd.AgentReports != nil:
		for _, rep := range cmd.AgentReports.Reports {
			ids = append(ids, rep.ID)
		}
	case cmd.ApplyPlan != nil:
		for _, s := range cmd.ApplyPlan.Stops {
			if s.GiveUp {
				ids = append(ids, s.ID)
			}
		}
	case cmd.RemoveNode != nil:
		for a := range before.NodeAllocs(cmd.RemoveNode.ID) {
			ids = append(ids, a.ID)
		}
	}
	for _, id := range ids {
		was, had := before.Alloc(id)
		is, has := after.Alloc(id)
		if had && has && was.Live() && !is.Live() && was.Desired == state.Run {
			v.failed(g, before, after, was, is, cmd)
		}
	}
}

// countsAsFailure reports whether the end of an attempt, which nobody has asked for, counts against a retry policy.
func countsAsFailure(typ state.JobType, a *state.Alloc) bool {
	switch {
	case a.State == state.Lost, a.Declined, a.State == state.Complete && typ == state.Batch:
		return false
	}
	return a.Reason != state.ReasonLeaseExpired && a.Reason != state.ReasonAgentLeaving && a.Reason != state.ReasonNodeDraining
}

// failed checks the end of an attempt.
func (v *retryWatch) failed(g *raftGroup, before, after *state.View, was, is *state.Alloc, cmd *state.Command) {
	spec, in := v.w.groupOf(after, is), before.Instance(was.Key(), was.Index)
	lost := is.State == state.Lost && is.Reason == state.ReasonNodeLost
	if spec == nil || spec.life.retry == nil || !lost && !countsAsFailure(spec.typ, is) || before.Cluster().FeatureLevel < state.RetryLevel ||
		in.Epoch != was.Epoch || in.Hash != was.GroupHash || in.Run != was.Run && in.Run != 0 && was.Run != 0 {
		return
	}
	key, at := keyOf(g.r, is), atOf(g.r, is)
	if v.unsure(g.r) {
		v.checker.Doubt(key, at)
		return
	}
	f := attempts.Failure{Alloc: is.ID, Node: is.NodeName, Region: g.r.name, Failure: retry.Failure{Category: retry.App}}
	if lost {
		f.Category = retry.NodeLost
	} else if i := slices.IndexFunc(cmd.AgentReports.Reports, func(r state.AllocReport) bool { return r.ID == is.ID }); cmd.AgentReports.Reports[i].Failure != nil {
		f.Failure = *cmd.AgentReports.Reports[i].Failure
	}
	if spec.typ != state.Batch && is.RunningUnixNano > 0 && cmd.NowUnixNano-is.RunningUnixNano >= int64(10*time.Minute) {
		v.checker.Forget(key) // a service that has run for so long: here, the wall clock of a server was set
	}
	l := v.checker.Failed(key, at, spec.life.retry, f, cmd.NowUnixNano)
	if l.Over && l.Since == 0 {
		l.Since = v.w.Now
	}
	if now := after.Instance(is.Key(), is.Index); !l.Unsure && now.Exhausted != l.Over {
		v.w.watch.fail(retriesEnd, "%s: %s has failed (%s), and has attempts left: %v, by its policy %v: %v", g.r.name, instanceOf(g.r, is), f, !now.Exhausted, !l.Over, l)
	}
}

// placed checks the attempts that an entry of a region's log begins.
func (v *retryWatch) placed(g *raftGroup, after *state.View, cmd *state.Command, res *state.Result) {
	for _, a := range res.Orders {
		if cmd.ApplyPlan == nil || a.CreateIndex != g.index || a.Desired != state.Run {
			continue
		}
		spec := v.w.groupOf(after, a)
		if spec == nil || spec.life.retry == nil || a.Local && v.w.upgraded {
			continue
		}
		key := keyOf(g.r, a)
		if v.unsure(g.r) {
			v.checker.Doubt(key, atOf(g.r, a))
			continue
		}
		if wrong := v.checker.Placed(key, atOf(g.r, a), spec.life.retry, a.Resources.MemoryBytes, cmd.NowUnixNano); wrong != "" {
			number := retriesKept
			if v.checker.Of(key).Over {
				number = retriesEnd
			}
			v.w.watch.fail(number, "%s: %s %s", g.r.name, instanceOf(g.r, a), wrong)
		}
	}
}

// barred notes that a region has returned instances because of their retry policy.
func (v *retryWatch) barred(t *globalTerm, from string, a region.Answer, version int64) {
	if v.returned == nil {
		v.returned = map[attempts.Key]returnedOther{}
	}
	for i := a.From; i < a.To; i++ {
		v.returned[attempts.Key{Job: a.Job, Group: a.Group, Index: int32(i)}] = returnedOther{from, version, v.w.Now, t, t.regions[from].session}
	}
	v.w.watch.stats.Left++
}

// offered checks that a region does not get back what it has returned because of a retry policy, for a while. The active
// server does not store that, and forgets it with the region's session.
func (v *retryWatch) offered(next any) {
	is, has := next.(region.Slot)
	if !has || is.System || is.Generation != 0 {
		return
	}
	for i := is.From; i < is.To; i++ { // a lost region may not have reported each failure
		k := attempts.Key{Job: is.Job, Group: is.Group, Index: int32(i)}
		if l := v.checker.Of(k); l != nil && l.Region != is.Region && v.w.watch.fences[l.Region].Lost {
			v.checker.Forget(k)
		}
	}
	for i := is.From; i < is.To && v.w.watch.restoredAt == 0; i++ {
		r, returned := v.returned[attempts.Key{Job: is.Job, Group: is.Group, Index: int32(i)}]
		if !returned || r.region != is.Region || r.version != is.JobVersion || r.term.leadership.term != v.w.watch.term || v.w.Now-r.at > int64(barredFor-3*time.Second) {
			continue
		}
		if g := r.term.regions[r.region]; g.session == r.session && g.session != nil {
			v.w.watch.fail(retriesKept, "%s is offered to %s, which returned it %s ago so that another region tries", is, is.Region, time.Duration(v.w.Now-r.at))
		}
	}
}

// stored checks a dead letter.
func (v *retryWatch) stored(l *nusav1.DeadLetter) {
	id := letters.ID(l)
	if v.letters[id] {
		v.w.watch.fail(lettersKept, "dead letter %s is stored again", id)
	}
	if v.letters == nil {
		v.letters = map[string]bool{}
	}
	v.letters[id] = true
	of := v.checker.Of(attempts.Key{Job: l.GetJob(), Group: l.GetGroup(), Index: l.GetIndex()})
	if t := v.w.active(); t != nil && (retries{t}).triedSurely(l.GetJob()) {
		v.w.watch.fail(lettersKept, "dead letter %s is of a step that is tried again", id)
	}
	if of == nil || of.Run != l.GetRun() || of.Version != l.GetJobVersion() || of.Unsure {
		return
	}
	if !of.Over {
		v.w.watch.fail(lettersKept, "dead letter %s of an instance that has attempts left: %v", id, of)
		return
	}
	last, all := of.Failures[len(of.Failures)-1], l.GetAttempts()
	if len(all) == 0 || int(l.GetAttemptCount()) < len(of.Failures) {
		v.w.watch.fail(lettersKept, "dead letter %s has %d attempts: %v", id, l.GetAttemptCount(), of)
		return
	}
	end := all[len(all)-1]
	if end.GetAllocation() != last.Alloc || end.GetRegion() != last.Region || end.GetNode() != last.Node || !strings.EqualFold(strings.TrimPrefix(end.GetFailure().GetCategory().String(), "FAILURE_CATEGORY_"), cmp.Or(string(last.Category), "app")) {
		v.w.watch.fail(lettersKept, "the last attempt of dead letter %s is %v; it was %v", id, end, last)
	}
	for _, a := range all {
		if r := v.w.regionNamed(a.GetRegion()); r == nil || !slices.ContainsFunc(r.agents, func(n *agent) bool { return n.name == a.GetNode() }) {
			v.w.watch.fail(lettersKept, "dead letter %s names node %s of region %s, which does not exist", id, a.GetNode(), a.GetRegion())
		}
	}
}

// triedSurely reports whether the store has a later attempt of the same step than a job, or the step waits for one.
func (t retries) triedSurely(job string) bool {
	k := t.w.kids[job]
	r, _ := t.w.etcd.Value(flowPrefix + k.of).(*flowRecord)
	if k.flow == nil || r == nil {
		return false
	}
	tries := r.attempts[k.step][k.item]
	return r.items[k.step][k.item].Stage == flow.Backoff || k.attempt < tries && (r.before == nil || k.attempt > r.before.attempts[k.step][k.item])
}

// lettersLeft checks that each instance of a job that has used its retries has left a dead letter. The job is about to be
// forgotten, or the world ends.
func (v *retryWatch) lettersLeft(t retries, job string) {
	j := t.jobs[job]
	if v.w.watch.restoredAt != 0 || v.w.upgraded || t.book.TimedOut(job, t.now()) || t.tried(job) || t.canceled(job) {
		return
	}
	all := v.checker.All()
	for _, g := range j.groups {
		for i := range int32(maxArray) {
			k := attempts.Key{Job: job, Group: g.group, Index: i}
			l := all[k]
			if l == nil || !l.Over || l.Unsure || l.Run != j.run || l.Version != j.version || t.bookless(l) {
				continue
			}
			if v.letters[letters.ID(&nusav1.DeadLetter{Job: job, Run: l.Run, JobVersion: l.Version, Group: g.group, Index: i})] {
				continue
			}
			v.w.watch.fail(lettersKept, "%s/%s[%d] has used its retries in %s at %.3f s, and leaves no dead letter", job, g.group, i, l.Region, float64(l.Since)/1e9)
		}
	}
}

// bookless reports whether the active server cannot ask the region in which an instance has used its retries.
func (t retries) bookless(l *attempts.Life) bool {
	r := t.regions[l.Region]
	return r == nil || r.session == nil || r.report == nil || !r.life.Connected()
}

// lettersAtEnd is lettersLeft for all jobs, at the end of the world.
func (v *retryWatch) lettersAtEnd(t *globalTerm) {
	for _, name := range sortedKeys(t.jobs) {
		if j := t.jobs[name]; j.typ == state.Batch && !j.stopped && !(retries{t}).recent(name) {
			v.lettersLeft(retries{t}, name)
		}
	}
}

// recent reports whether an instance of a job has used its retries a moment ago.
func (t retries) recent(job string) bool {
	for k, l := range t.w.watch.retries.checker.All() {
		if k.Job == job && l.Over && t.w.Now-l.Since < 20e9 {
			return true
		}
	}
	return false
}
