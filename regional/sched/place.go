package sched

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strconv"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// askKey is equal for asks that see the same nodes with the same scores; up to
// suits for those that the same nodes suit.
func askKey(b []byte, a *state.Ask, job state.JobKey) (key []byte, suits int) {
	num := func(ns ...int64) {
		for _, n := range ns {
			b = binary.AppendVarint(b, n)
		}
	}
	str := func(ss ...string) {
		num(int64(len(ss)))
		for _, s := range ss {
			num(int64(len(s)))
			b = append(b, s...)
		}
	}
	str(a.Pool, a.Spread)
	num(int64(len(a.Drivers)))
	for _, d := range a.Drivers {
		str(d.Name)
		str(d.Capabilities...)
	}
	str(a.Constraints...)
	num(int64(len(a.Affinities)))
	for _, f := range a.Affinities {
		num(int64(f.Weight))
		str(f.Expr)
	}
	str(a.Volumes...)
	suits = len(b)
	num(a.Resources.CPUMilli, a.Resources.MemoryBytes, a.Resources.DiskBytes)
	str(job.Namespace, job.Job)
	num(flag(a.Dedicated), flag(job.Local))
	num(int64(len(a.GPUs)))
	for _, g := range a.GPUs {
		num(int64(g.Count), int64(g.ShareMilli))
		str(g.Models...)
	}
	num(int64(len(a.Ports)))
	for _, port := range a.Ports {
		num(int64(port.Static))
	}
	str(a.Apart...)
	return b, suits
}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

const (
	// groupParts × MaxPlaces of one group may be placed at once.
	groupParts = 8
	// partShare of what a group has may be placed at once beyond that.
	partShare = 8
)

// place finds nodes for instances of the slot looked at.
func (d *decision) place(wants []want) {
	if len(wants) == 0 {
		return
	}
	job := d.g.Key.JobKey()
	r := d.ranking(&d.spec.Ask, job)
	pk := &d.picker
	pk.begin(r, d.here)
	for _, a := range d.live {
		if pos, ok := d.nodes.byNum[a.NodeNum]; ok && a.Desired == state.Run && !d.stopped[a.ID] {
			pk.count(pos)
		}
	}
	for _, pos := range d.placed { // by another slot of the group
		pk.count(pos)
	}
	var none Unplaced
	var declined declines
	own := len(d.own)
	// A part looks at all that its group has: parts grow with it, so that the
	// looking grows with the job and not with its square.
	most := max(groupParts*d.in.MaxPlaces, len(d.live)/partShare)
	if pk.fitting > 0 {
		d.plan.Places = slices.Grow(d.plan.Places, min(many(wants), max(0, most-len(d.plan.Places))))
	}
	for w := range each(wants) {
		if len(d.plan.Places) >= most {
			d.plan.More = true
			break
		}
		inst := d.instance(w)
		exclude, until := d.in.excluded(inst)
		blamed := d.in.blamed(d.g.Key, inst)
		pos := pk.choose(exclude, blamed)
		if pos >= 0 && d.reserve() {
			pos = pk.choose(exclude, blamed)
		}
		if pos < 0 && len(d.own) < own+maxKept {
			d.claim(claim{class: pk.class, ranking: pk.ranking}, inst)
		}
		switch {
		case pos >= 0:
			n := &d.nodes.nodes[pos]
			d.placeOn(pk, n, inst, timesOn(blamed, n.ID))
		case len(exclude) > 0:
			d.wake(until)
			said := inst.Message
			if len(exclude) < len(inst.Declined) {
				said = "" // it may be of a node that is no longer left out
			}
			declined = declined.add(inst.Index, exclude, said)
		default:
			none.Ranges = addIndex(none.Ranges, inst.Index)
		}
	}
	for _, x := range declined {
		d.unplaced(pk.ranking, x.ranges, x.by, x.said)
	}
	if len(none.Ranges) > 0 {
		d.unplaced(pk.ranking, none.Ranges, nil, "")
	}
	pk.done()
}

// declines are instances that nodes have declined, those of the same nodes and
// words together.
type declines []declinedBy

type declinedBy struct {
	by     []string
	said   string
	ranges []Range
}

// sameWithin bounds how many others an instance's declines are compared with.
const sameWithin = 8

func (l declines) add(index int32, by []string, said string) declines {
	for i := len(l) - 1; i >= max(0, len(l)-sameWithin); i-- {
		if l[i].said == said && slices.Equal(l[i].by, by) {
			l[i].ranges = addIndex(l[i].ranges, index)
			return l
		}
	}
	return append(l, declinedBy{by, said, []Range{{index, index + 1}}})
}

func (d *decision) placeOn(pk *picker, n *node, inst *state.Instance, failed int) {
	bucket := pk.bucket[n.pos]
	terms := pk.terms(d.terms[:0], n, pk.liking[n.pos], pk.here[n.pos], pk.there[bucket], pk.quoted[bucket])
	if failed > 0 {
		terms = append(terms, failedTerm(failed, pk.most()))
	}
	d.terms = terms
	d.give(pk.class, n, inst, score(terms), d.because(pk.choices(), terms))
	d.placed = append(d.placed, n.pos)
	pk.took(n)
}

// maxWhys bounds the reasons that are kept: many placements have the same.
const maxWhys = 1024

// because says why a node was chosen.
func (p *planner) because(choices int, terms []Term) string {
	b := append(p.text[:0], "best of "...)
	b = strconv.AppendInt(b, int64(choices), 10)
	b = append(b, " fitting nodes of "...)
	b = strconv.AppendInt(b, int64(len(p.nodes.nodes)), 10)
	b = appendTerms(append(b, ": "...), terms)
	p.text = b
	why, ok := p.whys[string(b)]
	if !ok {
		if len(p.whys) == maxWhys {
			clear(p.whys)
		}
		why = string(b)
		p.whys[why] = why
	}
	return why
}

// give writes a placement down and charges the node.
func (d *decision) give(c *class, n *node, inst *state.Instance, score float64, why string) {
	var ports []state.PortGrant
	if len(c.Ports) > 0 {
		ports = n.givePorts(c.Ports, portStart(d.g.Key, inst))
	}
	gpus, _ := giveGPUs(n.GPUs, n.gpu, c.units)
	d.plan.Places = append(d.plan.Places, Place{
		Key: d.g.Key, JobVersion: d.job.Version, Index: inst.Index, NodeID: n.ID, NodeName: n.Name,
		Epoch: inst.Epoch + 1, Resources: c.Resources, Ports: ports, GPUs: gpus, Why: why, Score: score,
	})
	d.nodes.take(n, c.Ask, d.g.Key.JobKey(), ports, gpus)
}

// portStart spreads dynamic ports over their range: FNV-1a of the instance and
// its attempt.
func portStart(key state.GroupKey, inst *state.Instance) uint64 {
	h := uint64(14695981039346656037)
	add := func(s string) {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * 1099511628211
		}
	}
	add(key.Namespace)
	add(key.Job)
	add(key.Group)
	for _, n := range [...]int64{int64(inst.Index), inst.Epoch} {
		for range 8 {
			h = (h ^ uint64(n&0xff)) * 1099511628211
			n >>= 8
		}
	}
	return h
}

func appendTerms(b []byte, terms []Term) []byte {
	for i, t := range terms {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = append(b, t.Name...)
		b = append(b, ' ')
		b = strconv.AppendFloat(b, t.Value, 'f', 2, 64)
		if t.Detail != "" {
			b = append(b, " ("...)
			b = append(b, t.Detail...)
			b = append(b, ')')
		}
	}
	return b
}

// score is the sum of its terms.
func score(terms []Term) float64 {
	sum := 0.0
	for _, t := range terms {
		sum += t.Value
	}
	return sum
}

// systemSlot decides about every node of the region.
func (d *decision) systemSlot() {
	byIndex := make(map[int32]*state.Instance, len(d.insts))
	for _, in := range d.insts {
		byIndex[in.Index] = in
	}
	live := map[int32][]*state.Alloc{}
	for _, a := range d.live {
		live[a.Index] = append(live[a.Index], a)
	}
	t := d.table()
	c := newClass(t, d.in.Funcs, &d.spec.Ask, d.g.Key.JobKey())
	var full Unplaced
	refused := newTally(c)
	for i := range t.nodes {
		n := &t.nodes[i]
		index := int32(n.Num)
		w := want{index, index + 1, byIndex[index]}
		inst := d.instance(w)
		if n.Status != state.NodeReady {
			continue // what runs there goes on when it is back
		}
		if len(live[index]) == 0 && (c.refuseStatus(n) != "" || c.refuseKind(n) != "") {
			continue
		}
		if _, until := d.in.excluded(inst); until > 0 { // its only node declined it
			d.wait(index, state.ReasonDeclined, until)
			continue
		}
		d.index(w, live[index])
		if len(d.wants) == 0 {
			continue
		}
		d.wants = d.wants[:0]
		if len(d.plan.Places) >= d.in.MaxPlaces {
			d.plan.More = true
			return
		}
		r := c.refuse(n)
		if r == "" {
			d.reserve()
			if t.keeps(n.pos) != nil {
				r = state.ReasonReserved
			}
		}
		if r != "" {
			if c.refuseEmpty(n) == "" {
				d.claim(claim{class: c, pos: n.pos}, inst)
			}
			full.Ranges = addIndex(full.Ranges, index)
			refused.add(n, r)
			continue
		}
		d.give(c, n, inst, fit(n.Capacity, n.free, c.Resources), "a system job runs on every fitting node")
	}
	if len(full.Ranges) > 0 {
		slices.SortFunc(full.Ranges, func(a, b Range) int { return cmp.Compare(a.From, b.From) })
		full.Counts = refused.counts()
		full.System = true
		why := blocking(full.Counts)
		d.addUnplaced(full, why.Reason, why.Message)
	}
}

func (d *decision) addUnplaced(u Unplaced, reason state.Reason, message string) {
	u.Key, u.JobVersion, u.Generation = d.g.Key, d.job.Version, d.slot.Generation
	u.Reason, u.Message = reason, message
	d.plan.Unplaced = append(d.plan.Unplaced, u)
}
