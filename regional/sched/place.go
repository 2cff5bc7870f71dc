package sched

import (
	"cmp"
	"slices"

	"github.com/nusa-scheduler/nusa/regional/state"
)

const (
	// One plan may place groupParts × MaxPlaces instances of one group.
	groupParts = 8
	// For a large group the bound is the number of its instances divided by partShare, if
	// that is more.
	partShare = 8
)

// place finds nodes for the pending instances of the present slot.
func (d *decision) place(all []pending) {
	if len(all) == 0 || d.awaitLeases(all) {
		return
	}
	if raised := raisedOf(d.spec, all); len(raised) > 0 {
		d.placeRaised(all, raised)
		return
	}
	d.placeWith(&d.spec.Ask, all)
}

// placeRaised is place if instances have more memory than the group asks for. raised are the amounts.
func (d *decision) placeRaised(all []pending, raised []int64) {
	rest := slices.Clone(all)
	for _, memory := range raised {
		ask := new(state.Ask) // the ranking keeps it
		*ask = d.spec.Ask
		ask.Resources.MemoryBytes = memory
		if !d.p.cache.ranking(&d.p.in, ask, d.g.Key.JobKey()).everFits() {
			continue // no node is large enough, ever: the instance gets what the group asks for
		}
		var these []pending
		rest = slices.DeleteFunc(rest, func(p pending) bool {
			if memoryOf(d.spec, p) == memory {
				these = append(these, p)
				return true
			}
			return false
		})
		d.placeWith(ask, these)
	}
	if len(rest) > 0 {
		d.placeWith(&d.spec.Ask, rest)
	}
}

// memoryOf returns the memory of an instance that has more than its group asks for, or 0.
func memoryOf(spec *state.Group, p pending) int64 {
	if p.record == nil || p.record.Retry == nil || p.record.Retry.MemoryBytes <= spec.Ask.Resources.MemoryBytes {
		return 0
	}
	return p.record.Retry.MemoryBytes
}

// raisedOf returns the amounts of memory of instances that have more than the group asks for, sorted.
func raisedOf(spec *state.Group, all []pending) (out []int64) {
	for _, p := range all {
		if m := memoryOf(spec, p); m > 0 && !slices.Contains(out, m) {
			out = append(out, m)
		}
	}
	slices.Sort(out)
	return out
}

// placeWith finds nodes for pending instances that ask for the same.
func (d *decision) placeWith(ask *state.Ask, all []pending) {
	in, cache := &d.p.in, d.p.cache
	r := cache.ranking(in, ask, d.g.Key.JobKey())
	pk := &d.p.picker
	pk.begin(r, cache.onNode)
	for _, a := range d.live {
		if pos, ok := cache.nodes.byNum[a.NodeNum]; ok && a.Desired == state.Run && !d.out.stopped[a.ID] {
			pk.count(pos)
		}
	}
	for _, pos := range d.placed { // other slots of the group placed these
		pk.count(pos)
	}
	var none Unplaced
	var declined declines
	ownClaims := len(d.p.reserved.own)
	// Each plan goes through all instances of the group. The number that one plan places
	// grows with the group. So the total work is proportional to the size of the job, not
	// to the square of its size.
	most := max(groupParts*in.MaxPlaces, len(d.live)/partShare)
	if r.fitting > 0 {
		d.p.plan.Places = slices.Grow(d.p.plan.Places, min(countPending(all), max(0, most-len(d.p.plan.Places))))
	}
	for next := range eachPending(all) {
		if len(d.p.plan.Places) >= most {
			d.p.plan.More = true
			break
		}
		inst := d.instance(next)
		exclude, until := in.declinedBy(inst)
		failed := in.failuresOf(d.g.Key, inst)
		pos := pk.choose(exclude, failed)
		if pos >= 0 && d.p.reserve() {
			pos = pk.choose(exclude, failed)
		}
		if pos < 0 && len(d.p.reserved.own) < ownClaims+maxReserved {
			d.claim(claim{filter: r.filter, ranking: r}, inst)
		}
		switch {
		case pos >= 0:
			d.placeBest(&cache.nodes.nodes[pos], inst, failed)
		case len(exclude) > 0:
			d.out.wake(until)
			message := inst.Message
			if len(exclude) < len(inst.Declined) {
				message = "" // the node that sent the message may be allowed again
			}
			declined = declined.add(inst.Index, exclude, message)
		default:
			none.Ranges = addIndex(none.Ranges, inst.Index)
		}
	}
	for _, x := range declined {
		d.refused(r, x.ranges, x.by, x.message)
	}
	if len(none.Ranges) > 0 {
		d.refused(r, none.Ranges, nil, "")
	}
	pk.done()
}

// awaitLeases reports whether a lease that the log does not know may bind the instances.
// That can be after a recovery of the region, or while the log may be an old copy. A node
// that has not been seen since then may still run the instances.
func (d *decision) awaitLeases(all []pending) bool {
	if !d.p.in.LogSuspect && !d.p.in.View.Cluster().Recovered || !bound(d.spec, d.g.Key.Local) {
		return false
	}
	for p := range eachPending(all) {
		d.out.wait(p.index, state.ReasonRegionLease, 0)
	}
	return true
}

// refused adds instances that no node takes to the plan.
func (d *decision) refused(r *ranking, ranges []Range, declined []string, message string) {
	f := r.refusals(declined, message, d.p.reservedMark())
	d.out.unplaced(Unplaced{Ranges: ranges, Counts: f.counts, Never: f.never}, d.slot, f.reason, f.message)
}

// placeBest places an instance on the node that the picker chose.
func (d *decision) placeBest(n *node, inst *state.Instance, failed []nodeFailures) {
	pk, cache := &d.p.picker, d.p.cache
	terms := pk.terms(cache.terms[:0], n, timesOn(failed, n.ID))
	cache.terms = terms
	d.placeOn(pk.ranking.filter, n, inst, sumTerms(terms), cache.reasons.line(pk.candidates(), len(cache.nodes.nodes), terms))
	d.placed = append(d.placed, n.pos)
	pk.placed(n)
}

// placeOn adds a placement to the plan and charges the node.
func (d *decision) placeOn(f *filter, n *node, inst *state.Instance, score float64, why string) {
	var ports []state.PortGrant
	if len(f.ask.Ports) > 0 {
		ports = n.givePorts(f.ask.Ports, portStart(d.g.Key, inst))
	}
	gpus, _ := giveGPUs(n.GPUs, n.gpu, f.units)
	memory := f.ask.Resources.MemoryBytes
	if memory == d.spec.Ask.Resources.MemoryBytes {
		memory = 0
	}
	d.p.plan.Places = append(d.p.plan.Places, Place{
		Key: d.g.Key, JobVersion: d.job.Version, Index: inst.Index, NodeID: n.ID, NodeName: n.Name,
		Epoch: d.p.in.View.NextEpoch(inst), Resources: f.ask.Resources, Ports: ports, GPUs: gpus, Why: why, Score: score, Memory: memory,
	})
	d.p.cache.nodes.charge(n, f.ask, d.g.Key.JobKey(), ports, gpus)
}

// claim adds a claim for an instance that no node takes now. It does so only if the
// instance has waited long enough and would fit an empty node.
func (d *decision) claim(c claim, inst *state.Instance) {
	in := &d.p.in
	c.since = max(d.slot.CommittedUnixNano, inst.EndedUnixNano)
	due := func() bool { return in.NowUnixNano >= c.since+int64(ReserveAfter) }
	if !due() || len(d.p.reserved.claims) == maxReserved || c.ranking != nil && !c.ranking.everFits() {
		return
	}
	at, _ := slices.BinarySearchFunc(d.live, inst.Index, func(a *state.Alloc, i int32) int { return cmp.Compare(a.Index, i) })
	for ; at < len(d.live) && d.live[at].Index == inst.Index; at++ { // these are on lost nodes
		gone, _ := in.replacementDue(d.spec, d.live[at], d.system)
		c.since = max(c.since, gone)
	}
	if !due() {
		return
	}
	c.key, c.index = d.g.Key, inst.Index
	d.p.reserved.own = append(d.p.reserved.own, c)
}

// declines groups the instances that nodes have declined. Instances with the same nodes and
// the same message are in one group.
type declines []decline

type decline struct {
	by      []string
	message string
	ranges  []Range
}

// comparedDeclines bounds the groups with which an instance is compared.
const comparedDeclines = 8

func (l declines) add(index int32, by []string, message string) declines {
	for i := len(l) - 1; i >= max(0, len(l)-comparedDeclines); i-- {
		if l[i].message == message && slices.Equal(l[i].by, by) {
			l[i].ranges = addIndex(l[i].ranges, index)
			return l
		}
	}
	return append(l, decline{by, message, []Range{{index, index + 1}}})
}

// systemSlot decides about every node of the region. The index of a system job's instance
// is the Num of its node.
func (d *decision) systemSlot() {
	byIndex := make(map[int32]*state.Instance, len(d.insts))
	for _, in := range d.insts {
		byIndex[in.Index] = in
	}
	live := map[int32][]*state.Alloc{}
	for _, a := range d.live {
		live[a.Index] = append(live[a.Index], a)
	}
	t := d.p.cache.table(d.p.in.View, d.p.in.Load)
	f := newFilter(t, d.p.in.Funcs, &d.spec.Ask, d.g.Key.JobKey())
	var full Unplaced
	refused := newTally(f)
	for i := range t.nodes {
		n := &t.nodes[i]
		index := int32(n.Num)
		next := pending{index, index + 1, byIndex[index]}
		inst := d.instance(next)
		if n.Status != state.NodeReady {
			continue // the instance continues on the node when the node is back
		}
		if len(live[index]) == 0 && (refuseStatus(n) != "" || f.refuseKind(n) != "") {
			continue
		}
		if _, until := d.p.in.declinedBy(inst); until > 0 { // its only possible node declined it
			d.out.wait(index, state.ReasonDeclined, until)
			continue
		}
		d.index(next, live[index])
		if len(d.pending) == 0 {
			continue
		}
		d.pending = d.pending[:0]
		if len(d.p.plan.Places) >= d.p.in.MaxPlaces {
			d.p.plan.More = true
			return
		}
		r := f.refuse(n)
		if r == "" {
			d.p.reserve()
			if t.reservedFor(n.pos) != nil {
				r = state.ReasonReserved
			}
		}
		if r != "" {
			if f.refuseEmpty(n) == "" {
				d.claim(claim{filter: f, pos: n.pos}, inst)
			}
			full.Ranges = addIndex(full.Ranges, index)
			refused.add(n, r)
			continue
		}
		d.placeOn(f, n, inst, fitScore(n.Capacity, n.free, f.ask.Resources), "a system job runs on every fitting node")
	}
	if len(full.Ranges) > 0 {
		slices.SortFunc(full.Ranges, func(a, b Range) int { return cmp.Compare(a.From, b.From) })
		full.Counts = refused.counts()
		full.System = true
		why := blocking(full.Counts)
		d.out.unplaced(full, d.slot, why.Reason, why.Message)
	}
}
