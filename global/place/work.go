package place

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/global/region"
)

// work is one group whose instances are being placed.
type work struct {
	job   *Job
	group *Group
	hash  uint64
	// near are the distances of each near clause, by index of the region.
	near [][]targets
	// free are the unowned index ranges [from,to), ascending; n is their sum.
	free [][2]int
	n    int
	// owned instances that shall run, by region; also regions that are no more.
	owned map[string]int
	// candidates are all regions, those that are not refused first, best first.
	candidates []candidate
	// given instances of this plan, by index of the region, and how the region
	// stood when it got the first of them.
	given    map[int]int
	placedAs map[int]candidate
	// room is kept, by region, for what is being taken back.
	room map[int]int
	// breached are the sustained breaches, the first of each region.
	breached map[string]*Breach
	// leaving are the regions that the group is moved away from.
	leaving map[string]bool
	// backoffs instances wait for spread.min.
	heldBack int
	// without are regions that get none of it now: instances of the group are
	// away there, or are being taken back.
	without map[string]bool
}

// candidate is a region under judgement for one group.
type candidate struct {
	index int // in Snapshot.Regions
	// reason is why it is refused, empty if it is not.
	reason string
	// nearReason is the reason of a required near that refuses it, be it the first
	// that does or not; near and distance are the bound.
	nearReason string
	near       *Near
	distance   target
	// returned is what it gave back.
	returned *Returned
	// colocation says in words which colocated group refused it.
	colocation string
	// breach is sustained: the region gets no more of the group.
	breach *Breach
	fits   int
	exact  bool
	// owned instances of the group that shall run there.
	owned  int
	weight int
	// score is the sum of terms, as they were when the region was judged.
	score float64
	terms []Term
}

func (p *planner) newWork(j *Job, g *Group) *work {
	w := &work{job: j, group: g, hash: g.Ask.Hash(), given: map[int]int{}, placedAs: map[int]candidate{}, owned: map[string]int{},
		breached: j.sustained(g), leaving: map[string]bool{}}
	for i := range g.Regions.Near {
		w.near = append(w.near, p.distances.of(&g.Regions.Near[i]))
	}
	next := 0
	slots := j.slotsOf(g.Name)
	for i := range slots {
		s := &slots[i]
		// What this very plan takes back is not counted on any more.
		kind, _, _ := j.correct(s, p.at(s))
		stays := s.Desired == region.DesiredRun && kind != Revoke && (kind != Stop || !s.System)
		if s.System || j.Type == System {
			if s.System && stays {
				w.owned[s.Region] = 1
			}
			continue
		}
		if n := min(s.To, g.Count) - s.From; n > 0 && stays {
			w.owned[s.Region] += n
		}
		w.addFree(next, min(s.From, g.Count))
		next = max(next, s.To)
	}
	if j.Type != System {
		w.addFree(next, g.Count)
	}
	return w
}

func (p *planner) newWorks(j *Job, set []*Group) []*work {
	works := make([]*work, 0, len(set))
	for _, g := range set {
		works = append(works, p.newWork(j, g))
	}
	return works
}

func (w *work) addFree(from, to int) {
	if from < to {
		w.free = append(w.free, [2]int{from, to})
		w.n += to - from
	}
}

// desired is the size of the whole group.
func (w *work) desired() int { return w.group.Count }

// evaluate looks at every region anew, after what the plan has given so far. What
// was given in this plan counts as owned.
func (p *planner) evaluate(w *work) {
	w.candidates = make([]candidate, len(p.snap.Regions))
	for i := range w.candidates {
		c, r := &w.candidates[i], &p.snap.Regions[i]
		c.index, c.owned = i, w.owned[r.Name]+w.given[i]
		c.weight = w.group.preference(r)
		p.filter(w, c)
		if c.reason == "" {
			c.terms = p.terms(w, c, p.detailed(w))
			c.score = score(c.terms)
		}
	}
	p.sort(w)
}

// detailed says whether somebody will read how each region fared.
func (p *planner) detailed(w *work) bool { return !p.snap.Terse || w.job.Explain }

// sort sorts the candidates: not refused, then nearest to it; best score, most
// room, name.
func (p *planner) sort(w *work) {
	slices.SortFunc(w.candidates, func(a, b candidate) int {
		if (a.reason == "") != (b.reason == "") {
			if a.reason == "" {
				return -1
			}
			return 1
		}
		if a.reason != "" && p.rank(&a) != p.rank(&b) {
			return cmp.Compare(p.rank(&a), p.rank(&b))
		}
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(b.fits, a.fits), cmp.Compare(a.index, b.index))
	})
}

// options are the candidates that are not refused, in their order, and the
// number of other regions that have instances of the group.
func (w *work) options() (options []option, usedElsewhere int) {
	used := 0
	for name, n := range w.owned {
		if n > 0 && !w.leaving[name] {
			used++
		}
	}
	for _, c := range w.candidates {
		if w.given[c.index] > 0 && c.owned == w.given[c.index] {
			used++
		}
		if c.reason != "" {
			continue
		}
		options = append(options, option{fits: c.fits, owned: c.owned, weight: c.weight})
		if c.owned > 0 {
			used--
		}
	}
	return options, used
}

// placeGroup places a group that is on its own.
func (p *planner) placeGroup(w *work) {
	if w.n == 0 && !w.job.Explain && len(w.breached) == 0 {
		return
	}
	p.evaluate(w)
	better := p.better(w)
	p.share(w)
	p.hold(w)
	p.moveAway(w, better)
}

// share gives the unowned instances to the candidates.
func (p *planner) share(w *work) {
	options, elsewhere := w.options()
	d := division{spec: w.group.Regions, desired: w.desired(), n: w.n, usedElsewhere: elsewhere, chunk: 1}
	out := d.divide(options)
	w.heldBack = out.heldBack
	p.give(w, out.counts)
}

// give offers counts, by position in the candidates, and charges the regions.
// A region takes one range if there is one of just its size, else what is next.
func (p *planner) give(w *work, counts []int) {
	ranges := make([][][2]int, len(counts))
	for i, n := range counts {
		if k := slices.IndexFunc(w.free, func(r [2]int) bool { return r[1]-r[0] == n }); k >= 0 {
			ranges[i] = [][2]int{w.free[k]}
			w.free = slices.Delete(w.free, k, k+1)
		}
	}
	for i, n := range counts {
		if n == 0 {
			continue
		}
		if ranges[i] == nil {
			ranges[i] = w.cutFree(n)
		}
		c := &w.candidates[i]
		for _, r := range ranges[i] {
			p.offer(w, c, r[0], r[1])
		}
		p.ledger.charge(c.index, w.group.Ask, w.hash, n)
		if w.given[c.index] == 0 {
			w.placedAs[c.index] = *c
		}
		w.given[c.index] += n
		w.n -= n
	}
}

// cutFree cuts the first n indices out of the free ranges.
func (w *work) cutFree(n int) (out [][2]int) {
	for n > 0 && len(w.free) > 0 {
		r := &w.free[0]
		k := min(n, r[1]-r[0])
		out = append(out, [2]int{r[0], r[0] + k})
		n -= k
		if r[0] += k; r[0] == r[1] {
			w.free = w.free[1:]
		}
	}
	return out
}

func (p *planner) offer(w *work, c *candidate, from, to int) {
	p.plan.Actions = append(p.plan.Actions, Action{
		Kind: Offer, Namespace: w.job.Namespace, Job: w.job.Name, Group: w.group.Name, From: from, To: to,
		Region: p.snap.Regions[c.index].Name, JobVersion: w.job.Version, Run: w.job.Run, System: w.job.Type == System,
		Why: c.why(),
	})
}

// why says in one line why a region was taken.
func (c *candidate) why() string {
	var words []string
	for _, t := range c.terms {
		words = append(words, fmt.Sprintf("%s %.1f", t.Name, t.Value))
	}
	return fmt.Sprintf("score %.1f (%s), fits %d", c.score, strings.Join(words, ", "), c.fits)
}

// placeSystem offers one slot to every region that can run the group, best
// first and at most spread.max.
func (p *planner) placeSystem(w *work) {
	p.evaluate(w)
	has := map[string]bool{}
	for _, s := range w.job.slotsOf(w.group.Name) {
		has[s.Region] = true // also one that is being stopped
	}
	used := len(w.owned)
	for i := range w.candidates {
		c := &w.candidates[i]
		if c.reason != "" || has[p.snap.Regions[c.index].Name] {
			continue
		}
		if most := w.group.Regions.SpreadMax; most > 0 && used >= most {
			continue
		}
		used++
		p.offer(w, c, 0, 1)
		p.ledger.charge(c.index, w.group.Ask, w.hash, p.snap.Regions[c.index].NodesReady)
		w.given[c.index], w.placedAs[c.index] = 1, *c
	}
	w.n = max(0, max(1, w.group.Regions.SpreadMin)-used)
}
