package place

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/topology"
)

// explainer adds to the plan why each region was taken or refused.
type explainer struct {
	eval *evaluator
	plan *Plan
}

// explain adds the explanation of one group.
func (ex *explainer) explain(w *work) {
	e := GroupExplanation{
		Namespace: w.job.Namespace, Job: w.job.Name, Group: w.group.Name,
		Desired: w.desired(), Unplaced: w.n, Rule: w.rule,
	}
	if w.job.Type == System {
		e.Desired = len(w.owned) + len(w.given) + w.n
	}
	for i := range w.candidates {
		if placed, ok := w.placedAs[w.candidates[i].index]; ok {
			placed.refusesRest = w.n > 0 && w.candidates[i].reason == ReasonConfigInvalid
			w.candidates[i] = placed
		}
	}
	ex.eval.sort(w)
	if w.n > 0 || ex.eval.detailed(w) {
		ex.sortRefused(w)
	}
	ex.leftOver(w)
	switch {
	case w.n > 0:
		e.Pending = ex.pending(w)
	case w.job.Type == System:
		e.Pending = ex.full(w)
	}
	if ex.eval.detailed(w) {
		e.Regions = make([]RegionVerdict, 0, len(w.candidates))
		for i := range w.candidates {
			e.Regions = append(e.Regions, ex.verdict(w, &w.candidates[i]))
		}
		for _, name := range slices.Sorted(maps.Keys(w.owned)) {
			if ex.eval.regions.index(name) < 0 {
				e.Regions = append(e.Regions, RegionVerdict{
					Region: name, Taken: w.owned[name],
					Message: fmt.Sprintf("keeps %d, though no such region is defined", w.owned[name]),
				})
			}
		}
	}
	ex.plan.Groups = append(ex.plan.Groups, e)
}

// explainDisconnected explains why no other region takes the disconnected instances of a group.
// These instances have an owner, so they do not count as unplaced.
func (ex *explainer) explainDisconnected(w *work) {
	w.n, w.owned = 0, map[string]int{}
	for _, s := range w.job.slotsOf(w.group.Name) {
		if s.Desired == region.DesiredRun {
			w.owned[s.Region] += s.Count()
		}
	}
	ex.explain(w)
}

// sortRefused sorts refused regions of equal rank by the job's preference: near clauses, then
// prefer. The message of a counted reason names only a few regions. For the preferred ones, a
// change of the job or of the region helps most.
func (ex *explainer) sortRefused(w *work) {
	first := slices.IndexFunc(w.candidates, func(c candidate) bool { return c.reason != "" })
	if first < 0 {
		return
	}
	preference := make([]float64, len(ex.eval.regions)) // by index of the region
	for i := range w.candidates[first:] {
		c := &w.candidates[first+i]
		for n := range w.group.Regions.Near {
			near := &w.group.Regions.Near[n]
			preference[c.index] += float64(max(near.Weight, 1)) * near.closeness(near.deciding(w.near[n].of(c.index)))
		}
		preference[c.index] += float64(c.weight)
	}
	slices.SortStableFunc(w.candidates[first:], func(a, b candidate) int {
		return cmp.Or(cmp.Compare(ex.eval.rank(&a), ex.eval.rank(&b)), cmp.Compare(preference[b.index], preference[a.index]))
	})
}

// leftOver sets the reason of regions that no filter refused and that got no instance.
func (ex *explainer) leftOver(w *work) {
	used := ex.eval.used(w)
	for i := range w.candidates {
		c := &w.candidates[i]
		if c.reason != "" || ex.eval.owned(w, c) > 0 {
			continue
		}
		c.reason = ReasonLowerScore
		if most := w.group.Regions.SpreadMax; most > 0 && used >= most {
			c.reason = ReasonSpreadLimit
		}
	}
}

// maxNamed is the number of regions that the message of a counted reason names.
const maxNamed = 3

// reasonCount collects the regions that have one reason.
type reasonCount struct {
	region.CountedReason
	rank int
	// reported are the texts that regions reported. named are the regions without such a text.
	reported, named []string
}

// add counts a region, with the text that it reported, if any.
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

// message joins the reported texts of a few regions. If none reported a text, it joins their names.
func (s *reasonCount) message() string {
	all, between := s.reported, "; "
	if len(all) == 0 {
		all, between = s.named, ", "
	}
	if len(all) > maxNamed {
		return fmt.Sprintf("%s%sand %d more", strings.Join(all[:maxNamed], between), between, len(all)-maxNamed)
	}
	return strings.Join(all, between)
}

// brief returns the first reported text if message joins several texts, and "" otherwise.
func (s *reasonCount) brief() string {
	if len(s.reported) < 2 {
		return ""
	}
	if len(s.reported) == 2 {
		return s.reported[0] + "; and 1 more region says so"
	}
	return fmt.Sprintf("%s; and %d more regions say so", s.reported[0], len(s.reported)-1)
}

// pending counts the reasons why instances are unplaced. It counts regions by the reason why they
// take no further instance, with the texts that they reported. It counts nodes by the reason why
// they could not run a returned instance. The reasons are ordered by rank, so regions that are
// nearest to taking an instance come first.
func (ex *explainer) pending(w *work) []region.CountedReason {
	regions, nodes := map[string]*reasonCount{}, map[string]int{}
	for i := range w.candidates {
		c := &w.candidates[i]
		reason := c.reason
		switch {
		case c.refusesRest:
			reason = ReasonConfigInvalid
		case reason == "" && w.heldBack > 0:
			continue // the code below adds one reason for the instances that are held back
		case reason == "":
			reason = ReasonNoCapacity // the region took as many instances as fit
		case c.nearReason == ReasonRTTTooHigh && reason != ReasonNotAllowed && reason != ReasonLost:
			reason = c.nearReason // other reasons do not matter for a region that is too far away
		case c.returned != nil:
			reason = cmp.Or(c.returned.Reason, reason)
			for _, n := range c.returned.Counts {
				nodes[n.Reason] += n.Count
			}
		}
		e := regions[reason]
		if e == nil {
			e = &reasonCount{CountedReason: region.CountedReason{Reason: reason, What: "region"}, rank: ex.eval.rank(c)}
			regions[reason] = e
		}
		e.rank = min(e.rank, ex.eval.rank(c))
		e.add(ex.eval.regions[c.index].Name, c, ex.eval.regions[c.index])
	}
	sorted := slices.SortedFunc(maps.Values(regions), func(a, b *reasonCount) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(b.Count, a.Count), cmp.Compare(a.Reason, b.Reason))
	})
	var out []region.CountedReason
	for _, s := range sorted {
		s.Message, s.Brief = s.message(), s.brief()
		out = append(out, s.CountedReason)
	}
	if w.heldBack > 0 {
		// The regions that lack room come first. If they had room, spread.min would hold no
		// instance back.
		at := slices.IndexFunc(sorted, func(s *reasonCount) bool { return s.rank > lacksRoom || s.Reason == ReasonLowerScore })
		if at < 0 {
			at = len(out)
		}
		out = slices.Insert(out, at, region.CountedReason{
			Reason: ReasonSpreadLimit, Count: min(w.heldBack, w.n), What: "instance",
			Message: fmt.Sprintf("regions.spread.min is %d and %s can take instances: the share of the missing regions waits",
				w.group.Regions.SpreadMin, howMany(ex.eval.used(w), "region")),
		})
	}
	for _, reason := range slices.SortedFunc(maps.Keys(nodes), func(a, b string) int {
		return cmp.Or(cmp.Compare(nodes[b], nodes[a]), cmp.Compare(a, b))
	}) {
		out = append(out, region.CountedReason{Reason: reason, Count: nodes[reason], What: "node"})
	}
	if len(ex.eval.regions) == 0 {
		out = append(out, region.CountedReason{Reason: ReasonNoCapacity, Count: w.n, What: "instance", Message: "the federation has no regions"})
	}
	return out
}

func howMany(n int, what string) string {
	switch n {
	case 0:
		return "no " + what
	case 1:
		return "only 1 " + what
	}
	return fmt.Sprintf("only %d %ss", n, what)
}

// full counts the nodes of regions that have no room for a system job, by the missing resource.
func (ex *explainer) full(w *work) []region.CountedReason {
	nodes := map[string]int{}
	for i := range w.candidates {
		c, r := &w.candidates[i], ex.eval.regions[w.candidates[i].index]
		if c.reason != ReasonNoCapacity || ex.eval.owned(w, c) > 0 || r.NodesReady == 0 {
			continue
		}
		// Nodes that the job does not select do not count.
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

func (ex *explainer) verdict(w *work, c *candidate) RegionVerdict {
	r := ex.eval.regions[c.index]
	v := RegionVerdict{
		Region: r.Name, Taken: ex.eval.owned(w, c), New: w.given[c.index], Fits: c.fits,
		Reason: c.reason, Message: ex.eval.message(w, c), Score: c.score,
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
		v.Message = "suitable, but others come first"
		if c.tied > 0 {
			v.Message = fmt.Sprintf("suitable, but the name of the job chose among %d equal regions", c.tied)
		}
	case ReasonSpreadLimit:
		v.Terms = c.terms
		v.Message = fmt.Sprintf("suitable, but regions.spread.max is %d", w.group.Regions.SpreadMax)
	case ReasonNoCapacity:
		switch {
		case v.Taken > 0 && c.returned != nil:
			v.Reason, v.Message = "", fmt.Sprintf("keeps %d, and has no room for more: %s", v.Taken, v.Message)
		case v.Taken > 0:
			v.Reason, v.Message = "", fmt.Sprintf("keeps %d and %s", v.Taken, v.Message)
		}
	}
	if r.HasReport {
		v.Inputs = append(v.Inputs, Input{Name: "report", Age: r.reportAge(ex.eval.now)})
	}
	for i := range w.group.Regions.Near {
		t := w.group.Regions.Near[i].deciding(w.near[i].of(c.index))
		if t.Source == topology.Measured && t.name != r.Name {
			v.Inputs = append(v.Inputs, Input{Name: "rtt " + t.name, Age: t.Age})
		}
	}
	return v
}
