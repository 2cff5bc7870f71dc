package sched

import (
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// DeclineMemory is how long nodes that declined an instance are left out,
// counted from its latest decline: what made an agent decline may pass, and an
// instance that only it can run shall not wait for ever.
const DeclineMemory = time.Minute

// BusyMemory is the same where the latest decline was that the agent is starting
// as much as it may: that takes some seconds.
const BusyMemory = 5 * time.Second

// excluded are the nodes that an instance is not given to again, and until
// when; nil once the memory is over. A node that came back since is asked
// again: an agent that declined because it was leaving is another one now.
func (in *Input) excluded(inst *state.Instance) ([]string, int64) {
	until := inst.EndedUnixNano + int64(DeclineMemory)
	if inst.Reason == state.ReasonAgentBusy {
		until = inst.EndedUnixNano + int64(BusyMemory)
	}
	if len(inst.Declined) == 0 || in.NowUnixNano >= until {
		return nil, 0
	}
	back := func(id string) bool {
		n, ok := in.View.Node(id)
		return ok && n.Status == state.NodeReady && n.StatusUnixNano > inst.EndedUnixNano
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
	// of one group after the other
	d      decision
	picker picker
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
	for g := range in.View.Undecided() {
		p.group(g)
		if p.plan.More = p.plan.More || len(p.plan.Places) >= in.MaxPlaces; p.plan.More {
			break
		}
	}
	if p.heard > 0 {
		p.plan.Reserved = p.nodes.kept
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

	insts []*state.Instance // by index
	fresh state.Instance    // stands for one of which nothing is remembered
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

// begin is about a group, with the memory of the one before.
func (d *decision) begin(p *planner, g *state.GroupView) {
	*d = decision{
		planner: p, g: g,
		live: d.live[:0], insts: d.insts[:0], wants: d.wants[:0], todo: d.todo[:0], placed: d.placed[:0],
	}
	// To grow by doubling would cost as much again where there are thousands.
	c := &g.Counts
	d.live = slices.Grow(d.live, int(max(0, c.Pending+c.Starting+c.Running+c.Lost-g.Unplaced)))
	d.insts = slices.Grow(d.insts, int(max(0, g.Wanted-g.Unplaced)))
	for a := range p.in.View.AllocsIn(g) {
		if a.Live() {
			d.live = append(d.live, a)
		}
	}
	for in := range p.in.View.InstancesIn(g) {
		d.insts = append(d.insts, in)
	}
	for _, s := range g.Slots {
		if job := d.version(s); job != nil {
			d.system = job.Type == state.System
		}
	}
}

func (p *planner) group(g *state.GroupView) {
	d := &p.d
	d.begin(p, g)
	d.stopUnwanted()
	for _, s := range g.Slots {
		if s.Desired != state.Run || !d.enter(s) {
			continue
		}
		if d.system {
			d.systemSlot()
			break
		}
		first := len(d.wants)
		d.rangeSlot()
		d.todo = append(d.todo, todo{s, d.wants[first:]})
	}
	d.roll()
	for _, next := range d.todo {
		d.enter(next.slot)
		d.place(next.wants)
	}
	d.claimed()
	p.plan.Waiting = append(p.plan.Waiting, d.waits...)
}

// version is that of the job which a slot is about; nil when it is not stored,
// which orders that were checked on arrival do not do.
func (d *decision) version(s *state.Slot) *state.Job {
	if d.job == nil || d.job.Version != s.JobVersion {
		d.job, _ = d.in.View.Job(d.g.Key.JobKey(), s.JobVersion)
	}
	return d.job
}

// enter looks at a slot; false when nothing is known of its group.
func (d *decision) enter(s *state.Slot) bool {
	job := d.version(s)
	if job == nil {
		return false
	}
	spec := job.Group(d.g.Key.Group)
	if spec == nil {
		return false
	}
	d.slot, d.spec = s, spec
	return true
}

// instance is what is remembered of the first instance, or that nothing is; until
// the next call.
func (d *decision) instance(w want) *state.Instance {
	if w.known != nil {
		return w.known
	}
	d.fresh = state.Instance{Index: w.index}
	return &d.fresh
}

// rangeSlot decides about every wanted index of a service or batch slot.
func (d *decision) rangeSlot() {
	at, in, insts := 0, 0, d.insts
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
	inst := d.instance(w)
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
