package place

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/topology"
)

// maxBreaches of a job are followed at a time; further ones wait until one of
// them is healed.
const maxBreaches = 256

// Breach is a required bound on latency that a group does not keep in a region.
// One that is kept is not there: the zero value goes on alike.
type Breach struct {
	Group, Region string
	// Near is the bound, as Near.String prints it.
	Near string
	topology.Breach
}

type breachKey struct{ group, region, near string }

func (b *Breach) key() breachKey { return breachKey{b.Group, b.Region, b.Near} }

// BoundTracker follows bounds through the distances of one snapshot, of which it
// reads the topology, the origins, and the regions' names and labels.
type BoundTracker struct{ distances *distances }

// NewBoundTracker begins to look at jobs.
func NewBoundTracker(s Snapshot) *BoundTracker { return &BoundTracker{newDistances(s)} }

// Step answers the job's breaches after some time has passed, sorted: those that
// it had, until they are healed or their bound is no longer the job's, and new
// ones where it runs. Slots may be in any order. Only what was measured and is
// not old is evidence, unless the bound's Unknown allows more; a bound to a point
// on the map is never measured, so it cannot be broken.
func (f *BoundTracker) Step(j *Job, passed time.Duration) []Breach {
	if j.Stopped {
		return nil
	}
	before := map[breachKey]topology.Breach{}
	regions := map[string]map[string]bool{} // by group
	look := func(group, name string) {
		if regions[group] == nil {
			regions[group] = map[string]bool{}
		}
		regions[group][name] = true
	}
	for i := range j.Breaches {
		b := &j.Breaches[i]
		before[b.key()] = b.Breach
		look(b.Group, b.Region)
	}
	for _, s := range j.Slots {
		if s.Desired == region.DesiredRun && s.State != region.Done {
			look(s.Group, s.Region)
		}
	}
	var old, fresh []Breach
	for i := range j.Groups {
		g := &j.Groups[i]
		for k := range g.Regions.Near {
			n := &g.Regions.Near[k]
			if !n.Required || n.MaxRTT <= 0 || n.Location != nil {
				continue
			}
			for _, name := range slices.Sorted(maps.Keys(regions[g.Name])) {
				b := Breach{Group: g.Name, Region: name, Near: n.String()}
				was, had := before[b.key()]
				b.Breach = was
				at := f.index(name)
				if at < 0 {
					continue
				}
				b.Breach = b.Step(n.bound(), n.deciding(f.distances.at(n, at)).Distance, passed)
				delete(before, b.key()) // of an equal clause once is enough
				switch {
				case b.State == topology.WithinBound:
				case had:
					old = append(old, b)
				default:
					fresh = append(fresh, b)
				}
			}
		}
	}
	out := append(old, fresh[:max(0, min(len(fresh), maxBreaches-len(old)))]...)
	slices.SortStableFunc(out, func(a, b Breach) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Region, b.Region), cmp.Compare(a.Near, b.Near))
	})
	return slices.CompactFunc(out, func(a, b Breach) bool { return a.key() == b.key() })
}

func (f *BoundTracker) index(name string) int {
	i, ok := slices.BinarySearchFunc(f.distances.regions, name, func(r Region, name string) int { return cmp.Compare(r.Name, name) })
	if !ok {
		return -1
	}
	return i
}

// bound is what the distances of a required clause are held against.
func (n *Near) bound() topology.Bound {
	lax := n.Unknown == UnknownPredicted || n.Unknown == UnknownAccept
	return topology.Bound{MaxRTT: n.MaxRTT, Guesses: lax, Stale: lax}
}

// sustained are a group's sustained breaches of bounds that it still has: the
// first of each region.
func (j *Job) sustained(g *Group) map[string]*Breach {
	var out map[string]*Breach
	for i := range j.Breaches {
		b := &j.Breaches[i]
		if b.Group != g.Name || b.State != topology.Sustained || g.bound(b) == nil || out[b.Region] != nil {
			continue
		}
		if out == nil {
			out = map[string]*Breach{}
		}
		out[b.Region] = b
	}
	return out
}

// bound is the clause that a breach is of; nil if the group has it no longer.
func (g *Group) bound(b *Breach) *Near {
	for i := range g.Regions.Near {
		if n := &g.Regions.Near[i]; n.Required && n.String() == b.Near {
			return n
		}
	}
	return nil
}

// Move says what follows of a sustained breach.
type Move struct {
	Namespace, Job string
	Breach         Breach
	// Count of instances that the plan takes back, to be placed elsewhere.
	Count int
	// InProgress: the next part follows once the instances that are away run.
	InProgress bool
	Why        string
}

// String prints "move 2 of default/api/web from sea: …" or "stay …".
func (m Move) String() string {
	what := fmt.Sprintf("%s/%s/%s", m.Namespace, m.Job, m.Breach.Group)
	if m.Count > 0 {
		return fmt.Sprintf("move %d of %s from %s: %s", m.Count, what, m.Breach.Region, m.Why)
	}
	return fmt.Sprintf("stay %s at %s: %s", what, m.Breach.Region, m.Why)
}

func (p *planner) addMove(w *work, b *Breach, m Move) {
	m.Namespace, m.Job, m.Breach = w.job.Namespace, w.job.Name, *b
	p.plan.Moves = append(p.plan.Moves, m)
}

// stay notes that a group is not moved.
func (p *planner) stay(w *work, why string) {
	for _, name := range slices.Sorted(maps.Keys(w.breached)) {
		if w.owned[name] > 0 {
			p.addMove(w, w.breached[name], Move{Why: "stays: " + why})
		}
	}
}

// better finds, for every region with a sustained breach, the candidates that
// are worth a move, and marks the region as one that the group leaves if there
// are any.
func (p *planner) better(w *work) map[string][]int {
	out := map[string][]int{}
	for name, b := range w.breached {
		for i := range w.candidates {
			c := &w.candidates[i]
			if (c.reason == "" || c.reason == ReasonNoCapacity && w.room[c.index] > 0) && topology.WorthMoving(b.Latest, p.rttAt(w, b, c)) {
				out[name] = append(out[name], c.index)
			}
		}
		w.leaving[name] = w.job.Type == Service && len(out[name]) > 0
	}
	return out
}

// rttAt is the round trip of a breached bound as it would be at a candidate.
func (p *planner) rttAt(w *work, b *Breach, c *candidate) time.Duration {
	n := w.group.bound(b)
	t := n.deciding(p.distances.at(n, c.index))
	if !t.Known() {
		return b.Latest // nothing is gained for sure
	}
	return t.RTT
}

// moveAway takes instances back from regions with a sustained breach: as many as
// fit where it is better, and no more than may be away at a time. An instance has
// one owner, so it is placed anew only when the region has confirmed.
func (p *planner) moveAway(w *work, better map[string][]int) {
	if w.job.Type == Batch {
		p.stay(w, "the work of a batch instance would begin anew")
		return
	}
	away := w.n + w.job.Down[w.group.Name]
	for _, n := range w.given {
		away += n
	}
	for _, s := range w.job.slotsOf(w.group.Name) {
		if s.Desired == region.DesiredRevoke {
			away += s.Count()
		}
	}
	parallel := max(1, w.group.MaxParallel)
	for _, name := range slices.Sorted(maps.Keys(w.breached)) {
		b := w.breached[name]
		if w.owned[name] == 0 {
			continue
		}
		if len(better[name]) == 0 {
			p.addMove(w, b, Move{Why: "stays: " + p.noneBetter(w, b)})
			continue
		}
		if away >= parallel {
			p.addMove(w, b, Move{InProgress: true, Why: fmt.Sprintf("moves on once the instances that are away run: %d, and update.max_parallel is %d", away, parallel)})
			continue
		}
		n, to := p.room(w, better[name], min(parallel-away, w.owned[name]))
		if n = p.revoke(w, b, n, to); n == 0 {
			p.addMove(w, b, Move{Why: "stays: regions.spread leaves no other place for it"})
			continue
		}
		away += n
		p.addMove(w, b, Move{Count: n, InProgress: true, Why: fmt.Sprintf("%d of %d move now, where there is room at %s", n, n+w.owned[name], to)})
	}
}

// room says how many of n instances better regions would take, names those, and
// keeps the room for them against the jobs that come later.
func (p *planner) room(w *work, better []int, n int) (int, string) {
	var options []option
	var at []int
	elsewhere := 0
	for i := range w.candidates {
		c := &w.candidates[i]
		owned := w.owned[p.snap.Regions[c.index].Name] + w.given[c.index]
		fits, _ := p.ledger.fits(c.index, w.group.Ask, w.hash)
		if slices.Contains(better, c.index) && fits > 0 {
			options, at = append(options, option{fits: fits, owned: owned, weight: c.weight}), append(at, c.index)
		} else if owned > 0 && !w.leaving[p.snap.Regions[c.index].Name] {
			elsewhere++
		}
	}
	d := division{spec: w.group.Regions, desired: w.desired(), n: n, usedElsewhere: elsewhere, chunk: 1}
	sum, names := 0, []string{}
	for i, k := range d.divide(options).counts {
		if k > 0 {
			sum += k
			p.ledger.charge(at[i], w.group.Ask, w.hash, k)
			names = append(names, p.snap.Regions[at[i]].Name)
		}
	}
	return sum, strings.Join(names, ", ")
}

// revoke takes n instances back, the last ones first, so that what stays of a
// slot keeps its key; it says how many it could.
func (p *planner) revoke(w *work, b *Breach, n int, to string) int {
	slots, taken := w.job.slotsOf(w.group.Name), 0
	for i := len(slots) - 1; i >= 0 && taken < n; i-- {
		s := &slots[i]
		if kind, _, _ := w.job.correct(s, p.at(s)); kind != "" || s.Region != b.Region || s.Desired != region.DesiredRun || s.State == region.Done {
			continue
		}
		k := min(n-taken, s.Count())
		p.plan.Actions = append(p.plan.Actions, Action{
			Kind: Revoke, Namespace: w.job.Namespace, Job: w.job.Name, Group: s.Group, From: s.To - k, To: s.To,
			Region: s.Region, JobVersion: s.JobVersion, Run: w.job.Run, Slot: *s, Reason: ReasonRTTTooHigh,
			Why: fmt.Sprintf("%s, %s; better at %s", b.Near, b, to),
		})
		taken += k
	}
	w.owned[b.Region] -= taken
	return taken
}

// noneBetter says why nowhere is better.
func (p *planner) noneBetter(w *work, b *Breach) string {
	best, gain := "", time.Duration(0)
	for i := range w.candidates {
		c := &w.candidates[i]
		if g := b.Latest - p.rttAt(w, b, c); c.reason == "" && (best == "" || g > gain) {
			best, gain = p.snap.Regions[c.index].Name, g
		}
	}
	if best == "" {
		return "no other region that the job allows keeps the bound and has room"
	}
	return fmt.Sprintf("%s keeps the bound and would gain only %s; a move needs %s and a third", best, round(gain), topology.WorthMovingDelta)
}
