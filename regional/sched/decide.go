package sched

import (
	"fmt"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// DeclineMemory is how long nodes that declined an instance are left out,
// counted from its latest decline: what made an agent decline may pass, and an
// instance that only it can run shall not wait for ever.
const DeclineMemory = time.Minute

// excluded are the nodes that an instance is not given to again, and until
// when; nil once the memory is over. A node that came back since is asked
// again: an agent that declined because it was leaving is another one now.
func (in *Input) excluded(inst *state.Instance) ([]string, int64) {
	until := inst.FreedUnixNano + int64(DeclineMemory)
	if len(inst.Declined) == 0 || in.NowUnixNano >= until {
		return nil, 0
	}
	back := func(id string) bool {
		n, ok := in.View.Node(id)
		return ok && n.Status == state.NodeReady && n.StatusUnixNano > inst.FreedUnixNano
	}
	if !slices.ContainsFunc(inst.Declined, back) {
		return inst.Declined, until
	}
	if left := slices.DeleteFunc(slices.Clone(inst.Declined), back); len(left) > 0 {
		return left, until
	}
	return nil, 0
}

// defaultMaxPlaces bounds a plan where the caller does not.
const defaultMaxPlaces = 10_000

// planner grows one plan over all groups that may need a decision.
type planner struct {
	*Planner
	in     Input
	plan   *Plan
	wakeAt int64
	// claims of instances for which nodes are to be kept, in the order of the
	// plan; heard is how many have got theirs.
	claims []claim
	heard  int
}

// Make makes the plan: groups by priority, then by age.
func Make(in Input) *Plan { return NewPlanner().Make(in) }

// Make is as the function of that name, whatever was planned before.
func (k *Planner) Make(in Input) *Plan {
	if in.MaxPlaces <= 0 {
		in.MaxPlaces = defaultMaxPlaces
	}
	k.current = false
	k.made++
	if k.nodes != nil {
		k.nodes.kept = nil
	}
	defer k.forget()
	p := &planner{Planner: k, in: in, plan: &Plan{}}
	for g := range in.View.Unsettled() {
		p.group(g)
		if p.plan.More {
			break
		}
	}
	if p.heard > 0 {
		p.plan.Kept = p.nodes.kept
	}
	if p.wakeAt > 0 {
		p.plan.Wake = time.Duration(p.wakeAt - in.NowUnixNano)
	}
	return p.plan
}

// decision is about one group.
type decision struct {
	*planner
	g    *state.GroupView
	live []*state.Alloc // by index, then Seq
	// system: the group's instances are nodes.
	system bool
	// slot that is looked at, its job and group.
	slot *state.Slot
	job  *state.Job
	spec *state.Group
	// down counts instances that are on their way; they use the budget of
	// rolling changes up.
	down int32
	// exhausted instances hold a rollout up, not the drain of instances of the
	// present version: the next one would fail like them.
	exhausted int32

	rolls []roll
	wants []want
	todo  []todo
	waits []Waiting
	// stopped are the allocations that this plan stops, placed the positions of
	// nodes that it puts instances on.
	stopped map[string]bool
	placed  []int32
	// own claims: they bind the groups that come later.
	own []claim
}

// roll is a running instance that is to be replaced.
type roll struct {
	alloc   *state.Alloc
	reason  state.Reason
	message string
}

func (p *planner) group(g *state.GroupView) {
	d := &decision{planner: p, g: g}
	for a := range p.in.View.GroupAllocs(g.Key) {
		if a.Live() {
			d.live = append(d.live, a)
		}
	}
	for _, s := range g.Slots {
		if job, ok := p.in.View.Job(g.Key.JobKey(), s.JobVersion); ok {
			d.system = job.Type == state.System
		}
	}
	d.stopUnwanted()
	var insts []*state.Instance
	for in := range p.in.View.Instances(g.Key) {
		insts = append(insts, in)
	}
	for _, s := range g.Slots {
		if s.Desired != state.Run || !d.enter(s) {
			continue
		}
		if d.system {
			d.systemSlot(insts)
			break
		}
		d.rangeSlot(insts)
		d.todo = append(d.todo, todo{s, d.wants})
		d.wants = nil
	}
	d.roll()
	for _, next := range d.todo {
		d.enter(next.slot)
		d.place(next.wants)
	}
	d.claimed()
	p.plan.Waiting = append(p.plan.Waiting, d.waits...)
}

// enter looks at a slot; false when its job is not stored, which orders that
// were checked on arrival do not do.
func (d *decision) enter(s *state.Slot) bool {
	job, ok := d.in.View.Job(d.g.Key.JobKey(), s.JobVersion)
	if !ok || job.Group(d.g.Key.Group) == nil {
		return false
	}
	d.slot, d.job, d.spec = s, job, job.Group(d.g.Key.Group)
	return true
}

// rangeSlot decides about every wanted index of a service or batch slot.
func (d *decision) rangeSlot(insts []*state.Instance) {
	at, in := 0, 0
	overlap := overlapping(d.g.Slots)
	for _, r := range d.slot.Ranges() {
		for i := r[0]; i < r[1]; i++ {
			if overlap && state.SlotOf(d.g.Slots, i) != d.slot {
				continue
			}
			for in < len(insts) && insts[in].Index < i {
				in++
			}
			for at < len(d.live) && d.live[at].Index < i {
				at++
			}
			end := at
			for end < len(d.live) && d.live[end].Index == i {
				end++
			}
			w := want{index: i, to: i + 1}
			if in < len(insts) && insts[in].Index == i {
				w.known = insts[in]
			}
			if w.known == nil && at == end && !overlap {
				w.to = r[1]
				if in < len(insts) {
					w.to = min(w.to, insts[in].Index)
				}
				if at < len(d.live) {
					w.to = min(w.to, d.live[at].Index)
				}
				i = w.to - 1
			}
			d.index(w, d.live[at:end])
		}
	}
}

// overlapping says that two slots have an index in common, which happens while
// a change of orders is incomplete.
func overlapping(slots []*state.Slot) bool {
	for i := 1; i < len(slots); i++ {
		if slots[i].From < slots[i-1].To {
			return true
		}
	}
	return false
}

// index decides about one wanted index with its live allocations.
func (d *decision) index(w want, live []*state.Alloc) {
	if w.known == nil && len(live) == 0 {
		d.wants = append(d.wants, w)
		return
	}
	inst := w.instance()
	if inst.Finished() {
		for _, a := range live {
			d.stop(a, state.ReasonSuperseded, "the instance is finished")
		}
		if !inst.Done && d.job.Type != state.Batch {
			d.exhausted++
		}
		return
	}
	keep, connected := d.keep(live)
	switch {
	case connected > 0 && keep == nil: // being stopped
		d.down++
		return
	case connected > 0:
		d.kept(keep)
		return
	case len(live) > 0 && !d.replace(live):
		return
	}
	if inst.NotBeforeUnixNano > d.in.NowUnixNano {
		d.wait(inst.Index, state.ReasonBackoff, inst.NotBeforeUnixNano)
		d.down++
		return
	}
	if inst.Failures > 0 || ourDoing(inst.Reason) {
		d.down++
	}
	d.wants = append(d.wants, w)
}

// ourDoing says that an instance is down because of a rollout or a drain, or
// of what one brought: more of it must wait. One that never had a node, or
// lost it, does not hold others up.
func ourDoing(r state.Reason) bool {
	return r == state.ReasonSuperseded || r == state.ReasonNodeDraining || r == state.ReasonReschedulesExhausted
}

// keep chooses the connected allocation that stays and stops the others.
func (d *decision) keep(live []*state.Alloc) (keep *state.Alloc, connected int) {
	for _, a := range live {
		if a.Disconnected {
			continue
		}
		connected++
		if a.Desired != state.Run {
			continue
		}
		if keep == nil || d.prefers(a, keep) {
			a, keep = keep, a
		}
		if a != nil {
			d.stop(a, state.ReasonRescheduled, "its node is back and another attempt stays")
		}
	}
	return keep, connected
}

// prefers follows disconnect.reconcile; an attempt of the present version goes
// first, and one that can stay where it is before one that would be moved next.
func (d *decision) prefers(a, b *state.Alloc) bool {
	if an, bn := a.JobVersion == d.slot.JobVersion, b.JobVersion == d.slot.JobVersion; an != bn {
		return an
	}
	if a.Moving != b.Moving {
		return b.Moving
	}
	if d.spec.Disconnect.KeepReplacement {
		return a.Epoch > b.Epoch
	}
	return a.Epoch < b.Epoch
}

// kept looks whether the allocation that stays has to be moved or updated.
func (d *decision) kept(a *state.Alloc) {
	switch {
	case a.JobVersion != d.slot.JobVersion:
		d.rolls = append(d.rolls, roll{a, state.ReasonSuperseded,
			fmt.Sprintf("version %d replaces %d", d.slot.JobVersion, a.JobVersion)})
	case a.Moving:
		d.rolls = append(d.rolls, roll{a, state.ReasonNodeDraining, "moved from " + a.NodeName})
	}
	if !a.Serving() {
		d.down++
		d.prove(a)
	}
}

// HealthyAfter is how long what a rollout or a failure brought must be up
// without a restart until it counts as running. The first attempt of an
// instance counts at once.
const HealthyAfter = time.Second

// prove looks whether an allocation has proved itself.
func (d *decision) prove(a *state.Alloc) {
	if a.State != state.Running || a.UpUnixNano == 0 || a.Moving || a.JobVersion != d.slot.JobVersion {
		return
	}
	if due := a.UpUnixNano + int64(HealthyAfter); due > d.in.NowUnixNano {
		d.wake(due)
		return
	}
	d.plan.Proven = append(d.plan.Proven, Proven{AllocID: a.ID, Key: d.g.Key, Index: a.Index, UpUnixNano: a.UpUnixNano})
}

// roll stops instances that are to be replaced, so that at most max_parallel
// are down at once. Those that are not up yet are replaced in any case.
func (d *decision) roll() {
	if len(d.rolls) == 0 {
		return
	}
	budget := max(1, d.spec.MaxParallel) - d.down
	for _, r := range d.rolls {
		if r.alloc.Serving() {
			room := budget
			if r.reason == state.ReasonSuperseded {
				room -= d.exhausted
			}
			if room <= 0 {
				continue
			}
			budget--
		}
		d.stop(r.alloc, r.reason, r.message)
	}
}

func (d *decision) stop(a *state.Alloc, reason state.Reason, message string) {
	if a.Desired == state.Run {
		d.gone(a)
		d.plan.Stops = append(d.plan.Stops, Stop{
			AllocID: a.ID, Key: d.g.Key, Index: a.Index, NodeName: a.NodeName, Reason: reason, Message: message,
		})
	}
}

func (d *decision) gone(a *state.Alloc) {
	if d.stopped == nil {
		d.stopped = map[string]bool{}
	}
	d.stopped[a.ID] = true
}

func (d *decision) giveUp(a *state.Alloc, reason state.Reason, message string) {
	d.gone(a)
	d.plan.Stops = append(d.plan.Stops, Stop{
		AllocID: a.ID, Key: d.g.Key, Index: a.Index, NodeName: a.NodeName,
		Reason: reason, Message: message, GiveUp: true,
	})
}

// wake notes when a plan is due that time alone makes possible.
func (p *planner) wake(at int64) {
	if p.wakeAt == 0 || at < p.wakeAt {
		p.wakeAt = at
	}
}

// wait notes an index that is due later; until 0 = not by time.
func (d *decision) wait(index int32, reason state.Reason, until int64) {
	if until > 0 {
		d.wake(until)
	}
	for i := range d.waits {
		w := &d.waits[i]
		if w.Reason == reason {
			w.Ranges = addIndex(w.Ranges, index)
			if until > 0 && (w.UntilUnixNano == 0 || until < w.UntilUnixNano) {
				w.UntilUnixNano = until
			}
			return
		}
	}
	d.waits = append(d.waits, Waiting{d.g.Key, []Range{{index, index + 1}}, reason, until})
}

// replace says whether an instance all of whose attempts are on lost nodes may
// have another one now.
func (d *decision) replace(lost []*state.Alloc) bool {
	for _, a := range lost {
		due, ever := d.due(d.spec, a)
		if !ever {
			// It may take for ever: that must not hold a rollout up.
			d.wait(a.Index, state.ReasonNodeLost, 0)
			return false
		}
		if due > d.in.NowUnixNano {
			d.wait(a.Index, state.ReasonNodeLost, due)
			d.down++
			return false
		}
	}
	for _, a := range lost {
		if d.spec.Singleton || d.spec.Disconnect.StopRunning || a.Desired == state.Stop {
			d.giveUp(a, state.ReasonNodeLost, "its node is "+d.status(a))
		}
	}
	return true
}

// due is from when on an allocation on a lost node counts as gone, and whether
// it ever does without its node's word.
func (d *decision) due(spec *state.Group, a *state.Alloc) (int64, bool) {
	n, ok := d.in.View.Node(a.NodeID)
	if !ok || spec == nil {
		return 0, true
	}
	if !spec.Disconnect.Replace || d.system {
		return 0, false
	}
	after := spec.Disconnect.After
	if n.Status == state.NodeLeft {
		after = 0
	}
	if spec.Singleton || spec.Disconnect.StopRunning {
		// The holder's clock and ours may drift by 1 % each.
		after = max(after, d.in.NodeLease+d.in.NodeLease/50+spec.KillTimeout)
	}
	return n.StatusUnixNano + int64(after), true
}

func (d *decision) status(a *state.Alloc) string {
	if n, ok := d.in.View.Node(a.NodeID); ok {
		return n.Status.String()
	}
	return "gone"
}

// stopUnwanted stops what no slot wants to run.
func (d *decision) stopUnwanted() {
	for _, a := range d.live {
		reason, message := d.unwanted(a)
		if reason == "" {
			continue
		}
		if !a.Disconnected {
			d.stop(a, reason, message)
			continue
		}
		var spec *state.Group
		if job, ok := d.in.View.Job(d.g.Key.JobKey(), a.JobVersion); ok {
			spec = job.Group(d.g.Key.Group)
		}
		due, ever := d.due(spec, a)
		switch {
		case ever && due <= d.in.NowUnixNano:
			d.giveUp(a, reason, message+d.mayRun(a, spec))
			continue
		case ever:
			d.wait(a.Index, state.ReasonNodeLost, due)
		default:
			d.wait(a.Index, state.ReasonNodeLost, 0)
		}
		if !d.mayStay(a.Index) {
			d.stop(a, reason, message)
		}
	}
}

// mayStay says that an index is to be given up only if its node is not back
// before that: then no stop may wait there for it.
func (d *decision) mayStay(index int32) bool {
	return slices.ContainsFunc(d.g.Slots, func(s *state.Slot) bool {
		return s.Desired == state.Revoke && s.UnlessHeard && index >= s.From && index < s.To
	})
}

// mayRun says of an allocation that is given up where it may still run: its
// node is lost, and its group lets it run on there.
func (d *decision) mayRun(a *state.Alloc, spec *state.Group) string {
	n, ok := d.in.View.Node(a.NodeID)
	if !ok || n.Status != state.NodeLost || spec == nil || spec.Singleton || spec.Disconnect.StopRunning {
		return ""
	}
	return "; " + a.NodeName + " is silent and may run it until it is back"
}

// unwanted is why an allocation is not wanted; empty if it is, or if the slot
// orders are not whole yet.
func (d *decision) unwanted(a *state.Alloc) (state.Reason, string) {
	var covers *state.Slot
	for _, s := range d.g.Slots {
		i := a.Index
		if d.system {
			i = s.From
		}
		if s.Wants(i) {
			return "", ""
		}
		if i >= s.From && i < s.To {
			covers = s
		}
	}
	switch {
	case covers != nil && covers.Desired == state.Stop:
		return state.ReasonStoppedByUser, "the job was stopped or scaled down"
	case covers != nil && d.in.View.Keeps(covers, a.Index):
		return "", "" // it is heard of
	case covers != nil && covers.Desired == state.Revoke:
		return state.ReasonRevoked, "the slot was taken back"
	case d.in.View.Cluster().OrdersIncomplete && !a.Local:
		return "", ""
	case covers == nil && len(d.g.Slots) > 0:
		return state.ReasonOutOfRange, "no slot has this index any more"
	}
	return state.ReasonRevoked, "the region no longer owns it"
}
