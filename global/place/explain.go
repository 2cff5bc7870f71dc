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

// explain adds what became of a group to the plan.
func (p *planner) explain(w *work) {
	e := GroupExplanation{
		Namespace: w.job.Namespace, Job: w.job.Name, Group: w.group.Name,
		Desired: w.desired(), Unplaced: w.n,
	}
	if w.job.Type == System {
		e.Desired = len(w.owned) + len(w.given) + w.n
	}
	for i := range w.candidates {
		if then, ok := w.placedAs[w.candidates[i].index]; ok {
			w.candidates[i] = then
		}
	}
	p.sort(w)
	if w.n > 0 || p.detailed(w) {
		p.sortRefused(w)
	}
	p.leftOver(w)
	switch {
	case w.n > 0:
		e.Pending = p.pending(w)
	case w.job.Type == System:
		e.Pending = p.full(w)
	}
	if p.detailed(w) {
		e.Regions = make([]RegionVerdict, 0, len(w.candidates))
		for i := range w.candidates {
			e.Regions = append(e.Regions, p.verdict(w, &w.candidates[i]))
		}
		for _, name := range slices.Sorted(maps.Keys(w.owned)) {
			if p.region(name) < 0 {
				e.Regions = append(e.Regions, RegionVerdict{
					Region: name, Taken: w.owned[name],
					Message: fmt.Sprintf("keeps %d, though no such region is defined", w.owned[name]),
				})
			}
		}
	}
	p.plan.Groups = append(p.plan.Groups, e)
}

// sortRefused puts first, among regions that are refused for equally good
// reasons, those that the job would like best: the nearest, then the preferred.
// Few are told with a reason, and these are where a change of the job, or of the
// region, helps first.
func (p *planner) sortRefused(w *work) {
	first := slices.IndexFunc(w.candidates, func(c candidate) bool { return c.reason != "" })
	if first < 0 {
		return
	}
	liked := make([]float64, len(p.snap.Regions)) // by index of the region
	for i := range w.candidates[first:] {
		c := &w.candidates[first+i]
		for n := range w.group.Regions.Near {
			near := &w.group.Regions.Near[n]
			liked[c.index] += float64(max(near.Weight, 1)) * near.closeness(near.deciding(w.near[n][c.index]))
		}
		liked[c.index] += float64(c.weight)
	}
	slices.SortStableFunc(w.candidates[first:], func(a, b candidate) int {
		return cmp.Or(cmp.Compare(p.rank(&a), p.rank(&b)), cmp.Compare(liked[b.index], liked[a.index]))
	})
}

// leftOver gives a reason to the regions that would do and got nothing.
func (p *planner) leftOver(w *work) {
	used := p.used(w)
	for i := range w.candidates {
		c := &w.candidates[i]
		if c.reason != "" || w.taken(p, c) > 0 {
			continue
		}
		c.reason = ReasonLowerScore
		if most := w.group.Regions.SpreadMax; most > 0 && used >= most {
			c.reason = ReasonSpreadLimit
		}
	}
}

func (w *work) taken(p *planner, c *candidate) int {
	return w.owned[p.snap.Regions[c.index].Name] + w.given[c.index]
}

// maxNamed is of how many regions the words, or the names, are told with a
// counted reason.
const maxNamed = 3

// reasonCount is a reason in the making: how many regions have it, and which.
type reasonCount struct {
	region.CountedReason
	rank            int
	reported, named []string
}

// add adds a region, with its own words if it has said any.
func (s *reasonCount) add(name string, c *candidate, r *Region) {
	s.Count++
	switch {
	case c.returned != nil && c.returned.Message != "":
		s.reported = append(s.reported, name+": "+c.returned.Message)
	case c.returned != nil:
		s.reported = append(s.reported, name)
	case c.reason == ReasonDisconnected && r.NeverConnected:
		s.named = append(s.named, name+" (never connected)")
	case s.Reason == ReasonRTTTooHigh && c.near != nil:
		s.named = append(s.named, fmt.Sprintf("%s (%s)", name, round(c.distance.RTT)))
	default:
		s.named = append(s.named, name)
	}
}

// message is the words of a few regions; where none has said any, the names.
func (s *reasonCount) message() string {
	all, between := s.reported, "; "
	if len(all) == 0 {
		all, between = s.named, ", "
	}
	if len(all) > maxNamed {
		return strings.Join(all[:maxNamed], between) + between + "and others"
	}
	return strings.Join(all, between)
}

// pending counts the reasons for what is left: regions by why they take no
// (more) instances, with their own words, and nodes by why they could not run
// what was returned. What the regions say that would do otherwise comes first:
// that is what stands in the way.
func (p *planner) pending(w *work) []region.CountedReason {
	regions, nodes := map[string]*reasonCount{}, map[string]int{}
	for i := range w.candidates {
		c := &w.candidates[i]
		reason := c.reason
		switch {
		case reason == "" && w.heldBack > 0:
			continue // it does its part, and what is kept is said by itself
		case reason == "":
			reason = ReasonNoCapacity // it took what it could
		case c.nearReason == ReasonRTTTooHigh && reason != ReasonNotAllowed && reason != ReasonLost:
			reason = c.nearReason // what else keeps it away does not matter
		case c.returned != nil:
			reason = cmp.Or(c.returned.Reason, reason)
			for _, n := range c.returned.Counts {
				nodes[n.Reason] += n.Count
			}
		}
		e := regions[reason]
		if e == nil {
			e = &reasonCount{CountedReason: region.CountedReason{Reason: reason, What: "region"}, rank: p.rank(c)}
			regions[reason] = e
		}
		e.rank = min(e.rank, p.rank(c))
		e.add(p.snap.Regions[c.index].Name, c, &p.snap.Regions[c.index])
	}
	sorted := slices.SortedFunc(maps.Values(regions), func(a, b *reasonCount) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(b.Count, a.Count), cmp.Compare(a.Reason, b.Reason))
	})
	var out []region.CountedReason
	if w.heldBack > 0 {
		out = append(out, region.CountedReason{
			Reason: ReasonSpreadLimit, Count: min(w.heldBack, w.n), What: "instance",
			Message: fmt.Sprintf("regions.spread.min is %d and %s can take some: the share of the missing regions waits",
				w.group.Regions.SpreadMin, howMany(p.used(w), "region")),
		})
	}
	for _, s := range sorted {
		s.Message = s.message()
		out = append(out, s.CountedReason)
	}
	for _, reason := range slices.SortedFunc(maps.Keys(nodes), func(a, b string) int {
		return cmp.Or(cmp.Compare(nodes[b], nodes[a]), cmp.Compare(a, b))
	}) {
		out = append(out, region.CountedReason{Reason: reason, Count: nodes[reason], What: "node"})
	}
	if len(p.snap.Regions) == 0 {
		out = append(out, region.CountedReason{Reason: ReasonNoCapacity, Count: w.n, What: "instance", Message: "the federation has no regions"})
	}
	return out
}

// used is how many regions have instances of the group after this plan.
func (p *planner) used(w *work) int {
	n := 0
	for i := range w.candidates {
		if w.taken(p, &w.candidates[i]) > 0 {
			n++
		}
	}
	return n
}

func howMany(n int, what string) string {
	if n == 1 {
		return "only 1 " + what
	}
	return fmt.Sprintf("only %d %ss", n, what)
}

// full counts the nodes of regions that a system job does without, since none
// of them has room, by what they lack.
func (p *planner) full(w *work) []region.CountedReason {
	nodes := map[string]int{}
	for i := range w.candidates {
		c, r := &w.candidates[i], &p.snap.Regions[w.candidates[i].index]
		if c.reason != ReasonNoCapacity || w.taken(p, c) > 0 || r.NodesReady == 0 {
			continue
		}
		// Nodes that it is not meant for are not missing.
		if c.returned != nil && strings.HasPrefix(c.returned.Reason, "insufficient_") {
			nodes[c.returned.Reason] += r.NodesReady
		}
	}
	var out []region.CountedReason
	for _, reason := range slices.Sorted(maps.Keys(nodes)) {
		out = append(out, region.CountedReason{Reason: reason, Count: nodes[reason], What: "node"})
	}
	return out
}

// rank says how far a region is from taking an instance: first those that
// would do but for what they said, then those that an operator or a link keeps
// from it, then those that are too far away, and last those that were never
// there or that the job does not want.
func (p *planner) rank(c *candidate) int {
	unborn := p.snap.Regions[c.index].NeverConnected
	switch {
	case c.reason == ReasonNotAllowed:
		return 7
	case c.reason == ReasonLost, c.reason == ReasonDisconnected && unborn:
		return 6
	case c.reason == c.nearReason && c.nearReason != "", c.nearReason == ReasonRTTTooHigh:
		return 5
	case c.reason == ReasonDisconnected:
		return 4
	case c.reason == ReasonCordoned:
		return 3
	case c.reason == ReasonNoReport:
		return 2
	case c.returned != nil:
		return 0
	}
	return 1
}

func (p *planner) verdict(w *work, c *candidate) RegionVerdict {
	r := &p.snap.Regions[c.index]
	v := RegionVerdict{
		Region: r.Name, Taken: w.taken(p, c), New: w.given[c.index], Fits: c.fits,
		Reason: c.reason, Message: p.message(w.group, c), Score: c.score,
	}
	switch c.reason {
	case "":
		v.Terms = c.terms
		v.Message = fmt.Sprintf("keeps %d", v.Taken)
		if v.New > 0 {
			v.Message = fmt.Sprintf("takes %d", v.New)
		}
	case ReasonLowerScore:
		v.Terms = c.terms
		v.Message = "would do; others are better"
	case ReasonSpreadLimit:
		v.Terms = c.terms
		v.Message = fmt.Sprintf("would do; regions.spread.max is %d", w.group.Regions.SpreadMax)
	case ReasonNoCapacity:
		switch {
		case v.Taken > 0 && c.returned != nil:
			v.Reason, v.Message = "", fmt.Sprintf("keeps %d, and has no room for more: %s", v.Taken, v.Message)
		case v.Taken > 0:
			v.Reason, v.Message = "", fmt.Sprintf("keeps %d and %s", v.Taken, v.Message)
		}
	}
	if r.HasReport {
		v.Inputs = append(v.Inputs, Input{Name: "report", Age: r.ReportAge})
	}
	for i := range w.group.Regions.Near {
		t := w.group.Regions.Near[i].deciding(w.near[i][c.index])
		if t.Source == topology.Measured && t.name != r.Name {
			v.Inputs = append(v.Inputs, Input{Name: "rtt " + t.name, Age: t.Age})
		}
	}
	return v
}

// String prints the plan: the actions, then each group with its regions.
func (p Plan) String() string {
	var b strings.Builder
	if len(p.Actions) == 0 {
		b.WriteString("nothing to do\n")
	}
	for _, a := range p.Actions {
		fmt.Fprintln(&b, a)
	}
	for _, s := range p.RolloutStages {
		fmt.Fprintln(&b, s)
	}
	for _, m := range p.Moves {
		fmt.Fprintln(&b, m)
	}
	for _, g := range p.Groups {
		b.WriteString(g.String())
	}
	return b.String()
}

// String prints "offer default/api/web[0-5] v1 to sea: score 61.3 (…), fits 8".
func (a Action) String() string {
	slot := fmt.Sprintf("%s/%s/%s%s", a.Namespace, a.Job, a.Group, region.FormatRange(a.From, a.To))
	if a.Kind == Offer {
		return fmt.Sprintf("%s %s v%d to %s: %s", a.Kind, slot, a.JobVersion, a.Region, a.Why)
	}
	why := a.Why
	if a.Reason != "" {
		why = a.Reason + ": " + why
	}
	return fmt.Sprintf("%s %s at %s: %s", a.Kind, slot, a.Region, why)
}

// String prints the group in a line and each region in another.
func (g GroupExplanation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s/%s/%s: %d desired, %d unplaced\n", g.Namespace, g.Job, g.Group, g.Desired, g.Unplaced)
	for _, c := range g.Pending {
		fmt.Fprintf(&b, "  pending: %s %d %s", c.Reason, c.Count, c.What)
		if c.Message != "" {
			fmt.Fprintf(&b, " (%s)", c.Message)
		}
		b.WriteByte('\n')
	}
	for _, r := range g.Regions {
		fmt.Fprintln(&b, "  "+r.String())
	}
	return b.String()
}

// String prints the verdict in one line.
func (v RegionVerdict) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %d/%d", v.Region, v.Taken, v.Fits)
	if v.Reason != "" {
		fmt.Fprintf(&b, " %s:", v.Reason)
	}
	fmt.Fprintf(&b, " %s", v.Message)
	for i, t := range v.Terms {
		sep := " +"
		if i == 0 {
			sep = fmt.Sprintf("; %.1f =", v.Score)
		}
		fmt.Fprintf(&b, "%s %s %.1f (%s)", sep, t.Name, t.Value, t.Detail)
	}
	for i, in := range v.Inputs {
		sep := ","
		if i == 0 {
			sep = "; ages:"
		}
		fmt.Fprintf(&b, "%s %s %s", sep, in.Name, in.Age.Round(100*time.Millisecond))
	}
	return b.String()
}
