package place

import (
	"math"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/place/rank"
	"github.com/nusa-scheduler/nusa/topology"
)

// The most numbers that an Index holds for asks and for rules. A column has one for each region.
const (
	askCells  = 1 << 18
	ruleCells = 1 << 21
)

// Index holds numbers about regions from plan to plan: how many instances of each ask fit in each
// region, and how each rule of `regions` scores each region. It changes no decision. Each plan
// first updates the numbers that depend on a replaced *Region, Topology or Origins. Only one plan
// at a time may use an Index. The zero value is not ready: see NewIndex.
type Index struct {
	regions regionList
	// open: no reason refuses the region for every group. late is the penalty for an old report, in
	// thousandths. lateFrom is when that penalty begins.
	open     []bool
	late     []int32
	lateFrom []time.Duration
	// changed lists the regions whose values have changed. rules counts the changes that affect
	// rules of `regions`.
	changed rank.Log
	rules   int
	// done has, for each region, the latest round in which ask has updated it.
	done   []uint64
	round  uint64
	view   *topology.View
	number []int

	asks  *rank.Cache[uint64, *askColumn]
	specs *rank.Cache[string, *specColumn]
	// The lists below are scratch memory, which each choice uses again.
	key           []byte
	folded, exact []rank.Spot
}

// askColumn says for each region how many instances of an ask fit. It also holds the terms of the
// score that depend on the ask, in thousandths. It refuses regions without room and regions that
// are not open.
type askColumn struct {
	ask    Ask
	hash   uint64
	column *rank.Column
	// seen is the position in Index.changed up to which the column is updated.
	seen int
}

// specColumn holds the score that a rule gives to each region, in thousandths, or that the rule
// refuses the region.
type specColumn struct {
	scores []int32
	// near holds the targets of the near clauses.
	near [][]int
	// allowed is the number of regions that regions.allow matches.
	allowed int
	// weighted: prefer gives some region a weight above 0. flat: all regions that the rule does not
	// refuse have score 0.
	weighted, flat bool

	rules   int
	view    *topology.View
	origins [][]string
	// bounded: for regions that are not in known, scores holds upper bounds. exacted are the regions
	// in known, with their upper bounds.
	bounded bool
	scale   float64 // of the near clause
	known   []bool
	exacted []rank.Spot
}

// NewIndex returns an empty Index.
func NewIndex() *Index { return &Index{} }

// update updates the index for the regions and distances of a snapshot.
func (x *Index) update(regions regionList, view *topology.View, now time.Duration) {
	same := len(regions) == len(x.regions) && x.asks != nil
	for i := 0; same && i < len(regions); i++ {
		same = regions[i] == x.regions[i] || regions[i].Name == x.regions[i].Name
	}
	if !same {
		n := len(regions)
		*x = Index{
			regions: make(regionList, n), open: make([]bool, n), late: make([]int32, n), lateFrom: make([]time.Duration, n), rules: x.rules + 1, done: make([]uint64, n),
			asks: rank.NewCache[uint64, *askColumn](askCells / max(1, n)), specs: rank.NewCache[string, *specColumn](ruleCells / max(1, n)),
		}
	}
	for i, r := range regions {
		old := x.regions[i]
		if r == old {
			continue
		}
		x.regions[i], x.open[i], x.lateFrom[i] = r, r.closed() == "" && r.HasReport, r.At-r.ReportAge+freshFor
		x.changed.Add(i)
		if old != nil && (old.FeatureLevel != r.FeatureLevel || !sameLabels(old.Labels, r.Labels)) {
			x.rules++
		}
	}
	for i, from := range x.lateFrom {
		if now <= from && x.late[i] == 0 {
			continue
		}
		if late := thousandths(stale(regions[i].reportAge(now))); late != x.late[i] {
			x.late[i] = late
			x.changed.Add(i)
		}
	}
	if view != x.view || x.number == nil && view != nil {
		was := x.number
		x.view, x.number = view, nil
		if view != nil {
			x.number = numbers(view, regions)
		}
		if !slices.Equal(was, x.number) {
			x.rules++
		}
	}
}

// thousandths returns a term of a score, rounded to the unit of scores.
func thousandths(term float64) int32 { return int32(math.Round(term * 1000)) }

// ask returns the updated column of an ask.
func (x *Index) ask(a Ask, hash uint64) *askColumn {
	c, ok := x.asks.Get(hash)
	if !ok {
		c = &askColumn{ask: a, hash: hash, column: rank.NewColumn(len(x.regions)), seen: -1}
		x.asks.Put(hash, c)
	}
	changed, known := x.changed.Since(c.seen)
	if !known {
		for i := range x.regions {
			c.set(i, x, x.regions[i].Charged.charges)
		}
	}
	x.round++
	for _, i := range changed {
		if x.done[i] != x.round { // a region may have changed twice
			x.done[i] = x.round
			c.set(int(i), x, x.regions[i].Charged.charges)
		}
	}
	c.seen = x.changed.End()
	return c
}

// set computes the column's values for region i, with the given charges.
func (c *askColumn) set(i int, x *Index, charged charges) {
	spot := rank.Spot{Score: rank.Refused, Region: int32(i)}
	r := x.regions[i]
	if x.open[i] {
		spot.Fits, _ = r.fits(charged, c.ask, c.hash)
	}
	if spot.Fits > 0 {
		share, _ := r.headroom(charged, c.ask)
		spot.Score = thousandths(capacityWeight*share) + x.late[i]
	}
	c.column.Set(spot)
}

// spec returns the updated column of a group's rule, or nil if the rule gives all regions the same
// score.
func (x *Index) spec(g *Group, d *distances) *specColumn {
	if g.level() == 0 && len(g.Regions.Allow)+len(g.Regions.Prefer)+len(g.Regions.Near) == 0 {
		return nil
	}
	x.key = g.appendRules(x.key[:0])
	c, ok := x.specs.Get(string(x.key))
	if ok && (c.current(x, g, d) || c.rebase(x, g, d)) {
		return c
	}
	if !ok {
		c = &specColumn{scores: make([]int32, len(x.regions))}
		x.specs.Put(string(x.key), c)
	}
	c.rules, c.view, c.near, c.origins = x.rules, x.view, c.near[:0], c.origins[:0]
	c.allowed, c.weighted, c.flat, c.exacted = 0, false, true, c.exacted[:0]
	var nears []*nearness
	for k := range g.Regions.Near {
		n := &g.Regions.Near[k]
		known := d.of(n)
		c.near, c.origins, nears = append(c.near, known.targets()), append(c.origins, d.origins[n.Domain]), append(nears, known)
	}
	c.bounded = len(c.near) == 1 && len(c.near[0]) == 1 && x.view != nil && x.number[c.near[0][0]] >= 0
	if c.bounded {
		c.scale = g.Regions.Near[0].scale()
		if c.known == nil {
			c.known = make([]bool, len(x.regions))
		}
	}
	d.matches += g.labelSelectors() * len(x.regions)
	for i, r := range x.regions {
		c.scores[i] = c.score(g, r, i, nears)
		c.flat = c.flat && (c.scores[i] == 0 || c.scores[i] == rank.Refused)
	}
	return c
}

// labelSelectors returns how many selectors of allow and prefer have labels.
func (g *Group) labelSelectors() (n int) {
	for i := range g.Regions.Allow {
		n += min(1, len(g.Regions.Allow[i].Labels))
	}
	for i := range g.Regions.Prefer {
		n += min(1, len(g.Regions.Prefer[i].Selector.Labels))
	}
	return n
}

// current reports whether everything that the column depends on is unchanged.
func (c *specColumn) current(x *Index, g *Group, d *distances) bool {
	if c.rules != x.rules || len(c.near) > 0 && c.view != x.view {
		return false
	}
	for k := range g.Regions.Near {
		if n := &g.Regions.Near[k]; n.Domain != "" && !slices.Equal(c.origins[k], d.origins[n.Domain]) {
			return false
		}
	}
	return true
}

// score returns the score that a rule gives to a region. It also counts the allowed regions, and
// notes positive weights.
func (c *specColumn) score(g *Group, r *Region, i int, nears []*nearness) int32 {
	if !allowed(g.Regions.Allow, r) {
		return rank.Refused
	}
	c.allowed++
	if least := g.level(); least > 0 && r.FeatureLevel < least { // few rules look at a region itself
		return rank.Refused
	}
	weight := g.preference(r)
	c.weighted = c.weighted || weight > 0
	score := thousandths(float64(weight))
	if c.bounded {
		c.known[i] = false
		return score + c.bound(&g.Regions.Near[0], i, nears[0].distances)
	}
	return addNear(score, g, func(k int) targets { return nears[k].of(i) })
}

// appendRules appends a key of the group's rules. Rules with equal keys give every region the same
// score or refusal.
func (g *Group) appendRules(b []byte) []byte {
	flag := func(yes bool) {
		if yes {
			b = append(b, 1)
		} else {
			b = append(b, 0)
		}
	}
	flag(g.Bound)
	b = appendNumber(b, uint64(g.Level))
	b = appendNumber(b, uint64(len(g.Regions.Allow)))
	for _, s := range g.Regions.Allow {
		b = s.appendKey(b)
	}
	b = appendNumber(b, uint64(len(g.Regions.Prefer)))
	for _, p := range g.Regions.Prefer {
		b = appendNumber(p.Selector.appendKey(b), uint64(p.Weight))
	}
	for k := range g.Regions.Near {
		n := &g.Regions.Near[k]
		b = appendNumber(n.appendTarget(b), uint64(n.MaxRTT))
		b = appendWord(appendNumber(appendNumber(b, uint64(n.Data)), uint64(n.Weight)), string(n.Unknown))
		flag(n.Required)
	}
	return b
}

// leader finds the best regions for the new groups of a plan.
type leader struct {
	eval  *evaluator
	index *Index
	asks  map[uint64]*askNow
	// start is the position in Index.changed at which the plan began. noted is the number of entries
	// of ledger.touched that Index.changed has.
	start, noted int
}

// askNow is the column of an ask, with the charges that the plan has made so far. The next plan
// computes again what these charges have changed.
type askNow struct {
	*askColumn
	// touched is the number of entries of ledger.touched that the column includes.
	touched int
}

func newLeader(ev *evaluator, x *Index) *leader {
	x.update(ev.regions, ev.distances.view, ev.now)
	ev.distances.number = x.number
	return &leader{eval: ev, index: x, asks: map[uint64]*askNow{}, start: x.changed.End()}
}

// now returns the present column of an ask. It must be called between two groups, when the ledger
// has no tentative charge.
func (l *leader) now(a Ask, hash uint64) *askNow {
	c := l.asks[hash]
	if c == nil {
		c = &askNow{askColumn: l.index.ask(a, hash)}
		l.asks[hash] = c
	}
	touched := *l.eval.ledger.touched
	if rest := touched[c.touched:]; len(rest) > 0 {
		for ; l.noted < len(touched); l.noted++ {
			l.index.changed.Add(int(touched[l.noted]))
		}
		c.seen = l.start
		for _, i := range rest {
			c.set(int(i), l.index, l.eval.ledger.of(int(i)))
		}
		c.touched = len(touched)
	}
	return c
}

// suits reports whether the leading regions are enough to place the group. That is so if no region
// owns or owned a part of it or refuses its config, and the plan need not explain why a region was not taken.
func (l *leader) suits(w *work) bool {
	return !l.eval.detailed(w) && w.job.Type != System && w.n > 0 && len(w.given)+len(w.owned)+len(w.breached)+len(w.group.Refused)+len(w.group.RefusedStable) == 0
}

// rule sets the rule of a group. It returns the column of the rule, or nil if all regions are
// equal.
func (l *leader) rule(w *work) *specColumn {
	spec, matching := l.index.spec(w.group, l.eval.distances), len(l.eval.regions)
	if spec != nil {
		matching = spec.allowed
		for k := range w.near {
			w.near[k].to, w.near[k].found = spec.near[k], true
		}
	}
	w.rule, w.wanted = ruleOf(w.job, w.group, matching), w.n
	return spec
}

// choose returns at least the first n regions in the order of evaluator.sort.
func (l *leader) choose(w *work, spec *specColumn, n int) rank.Choice {
	column := l.now(w.group.Ask, w.hash).column
	refused := l.refused(w)
	switch {
	case spec != nil && spec.bounded:
		return l.chooseBounded(w, spec, l.fold(column.Spots, spec, refused), n)
	case len(refused) > 0 || spec != nil && !spec.flat:
		return l.order(w, l.fold(column.Spots, spec, refused), n, false)
	case spec != nil:
		return l.order(w, l.fold(column.Order(), spec, nil), n, true)
	}
	return l.order(w, column.Order(), n, true)
}

// chooseBounded is choose for spots whose scores are upper bounds. It computes the exact scores
// only of regions that may be among the first.
func (l *leader) chooseBounded(w *work, spec *specColumn, spots []rank.Spot, n int) rank.Choice {
	column := l.now(w.group.Ask, w.hash).column
	exact := l.index.exact
	defer func() { l.index.exact = exact }()
	least := int32(math.MaxInt32) // the exact score is computed for regions with at least this bound
	for ask := n + 4; ; ask *= 4 {
		first := rank.Best(spots, ask)
		if len(first) == 0 {
			return rank.Choice{All: true}
		}
		least = min(least, first[len(first)-1].Score)
		exact = exact[:0]
		for _, s := range spots {
			if s.Score < least {
				continue
			}
			if more := spec.exact(w.group, int(s.Region), l.eval.distances); more != rank.Refused {
				s.Score = column.Spots[s.Region].Score + more
				exact = append(exact, s)
			}
		}
		all := len(first) == len(spots)
		// No other region can be among the first n, or equal to the best one.
		if best := rank.Best(exact, n); all || len(best) == n && best[n-1].Score >= least && float64(best[0].Score)/1000-tieBand >= float64(least)/1000 {
			c := l.order(w, exact, n, false)
			c.All = c.All && all
			return c
		}
	}
}

// refused returns the regions that refuse the group because they returned the group or its ask.
func (l *leader) refused(w *work) (out []int32) {
	for _, name := range l.eval.returns.of(w) {
		c := candidate{index: l.eval.regions.index(name)}
		if c.index < 0 {
			continue
		}
		l.eval.filter(w, &c)
		if c.reason != "" {
			out = append(out, int32(c.index))
		}
	}
	return out
}

// fold returns the spots that are not refused, with the scores of spec added if it is not nil.
func (l *leader) fold(spots []rank.Spot, spec *specColumn, refused []int32) []rank.Spot {
	out := l.index.folded[:0]
	for _, s := range spots {
		if s.Score == rank.Refused || len(refused) > 0 && slices.Contains(refused, s.Region) {
			continue
		}
		if spec != nil {
			more := spec.scores[s.Region]
			if more == rank.Refused {
				continue
			}
			s.Score += more
		}
		out = append(out, s)
	}
	l.index.folded = out
	return out
}

// order sorts spots in the order of evaluator.sort, as far as the first n need it. Among equal
// spots the name of the job chooses, as in spreadTies.
func (l *leader) order(w *work, spots []rank.Spot, n int, sorted bool) rank.Choice {
	c := rank.Choose(spots, n, sorted, w.wanted, tieBand)
	if c.Tied == 0 {
		return c
	}
	hash := nameHash(w)
	c.First = int(hash % uint64(c.Tied))
	other := 1 + int(hash>>32%uint64(c.Tied-1))
	first, _ := l.eval.headroom(int(c.At(0).Region), w.group.Ask)
	second, _ := l.eval.headroom(int(c.At(other).Region), w.group.Ask)
	if second > first {
		c.Other = other
	}
	return c
}

// lead places a new group in the best regions, if all of its instances find room there. Otherwise
// it changes nothing and returns false.
func (pl *placer) lead(w *work) bool {
	l := pl.eval.leader()
	if l == nil || !l.suits(w) {
		return false
	}
	spec := l.rule(w)
	d := division{spec: w.rule.apply(w.group.Regions), least: w.rule.Least, desired: w.desired(), n: w.n, chunk: 1}
	n := d.primarySize()
	if d.spec.Divide == DivideWeighted && spec != nil && spec.weighted {
		n = len(pl.eval.regions) // the regions with a weight may be the last ones
	}
	for ; ; n *= 4 {
		c := l.choose(w, spec, n)
		options := make([]option, min(n, len(c.Spots)))
		for i := range options {
			s := c.At(i)
			options[i] = option{fits: s.Fits, weight: w.group.preference(pl.eval.regions[s.Region])}
		}
		if out := d.divide(options); out.heldBack == 0 && out.placed() == w.n {
			pl.giveChosen(w, &c, out.counts)
			return true
		}
		if c.All && n >= len(c.Spots) {
			return false
		}
	}
}

// giveChosen offers counts[i] instances to the region at place i of the order. It changes counts.
func (pl *placer) giveChosen(w *work, chosen *rank.Choice, counts []int) {
	w.candidates = make([]candidate, 0, min(len(counts), w.n))
	taken := counts[:0]
	for i, n := range counts {
		if n == 0 {
			continue
		}
		w.candidates, taken = append(w.candidates, candidate{index: int(chosen.At(i).Region)}), append(taken, n)
		c := &w.candidates[len(taken)-1]
		pl.eval.assess(w, c)
		if i < chosen.Tied {
			c.tied = chosen.Tied
		}
	}
	pl.give(w, taken)
}
