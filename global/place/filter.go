package place

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/topology"
)

// boundLevel is the feature level from which on a region's lease binds instances.
const boundLevel = 1

// filter applies the hard filters in their order, and stores the first reason.
func (ev *evaluator) filter(w *work, c *candidate) {
	g, r := w.group, ev.regions[c.index]
	c.fits, c.exact = ev.ledger.fits(c.index, g.Ask, w.hash)
	switch {
	case !allowed(g.Regions.Allow, r):
		c.reason = ReasonNotAllowed
	case r.closed() != "":
		c.reason = r.closed()
	case r.FeatureLevel < g.level():
		c.reason = ReasonFeatureLevel
	case w.refusal(r.Name) != "":
		c.reason = ReasonConfigInvalid
	case !r.HasReport:
		c.reason = ReasonNoReport
	}
	for i := range g.Regions.Near {
		n, t := &g.Regions.Near[i], w.near[i].of(c.index)
		if !n.Required || c.nearReason != "" {
			continue
		}
		c.nearReason = n.refuses(t)
		if c.nearReason != "" {
			c.near, c.distance = n, n.deciding(t)
		}
	}
	c.breach = w.breached[r.Name]
	if c.breach != nil && c.nearReason == "" {
		c.nearReason = ReasonRTTTooHigh // a sustained breach refuses even if the latest value keeps the bound
	} else {
		c.breach = nil
	}
	if c.reason == "" {
		c.reason = c.nearReason
	}
	if c.reason != "" {
		return
	}
	if w.without[r.Name] {
		c.reason = ReasonNoCapacity
		return
	}
	c.returned = ev.returns.backoffs[groupIn{w.job.Namespace, w.job.Name, g.Name, r.Name}]
	if c.returned != nil {
		c.reason = ReasonReturnedRecently
		return
	}
	c.returned = ev.returns.byAsk[askIn{w.hash, r.Name}]
	if c.returned != nil && (r.ReportSequence <= c.returned.ReportSequence || !c.exact) {
		c.reason = ReasonReturnedRecently
		return
	}
	c.returned = nil
	if c.fits == 0 {
		c.reason = ReasonNoCapacity
		c.returned = ev.returns.last[groupIn{w.job.Namespace, w.job.Name, g.Name, r.Name}]
		if short, now := r.NoFitReasons[w.hash]; now {
			c.returned = &short
		} else if d := r.missingDriver(g.Ask); d != "" && !c.exact {
			c.returned = &Returned{Region: r.Name, Reason: "driver_missing", Message: "has no driver " + d}
		}
	}
}

// closed returns why the region gets no new slots of any group, or "" if it may get some. A region
// without a report is not closed.
func (r *Region) closed() string {
	switch {
	case r.Cordoned:
		return ReasonCordoned
	case r.Lost:
		return ReasonLost
	case !r.Connected:
		return ReasonDisconnected
	case r.Draining:
		return ReasonDraining
	case r.CommitBlocked > 0, r.Behind:
		return ReasonNoCommit
	}
	return ""
}

// refuses returns why a required near clause refuses a region, or "" if it does not.
func (n *Near) refuses(t targets) string {
	d := n.deciding(t)
	over := n.MaxRTT > 0 && d.RTT > n.MaxRTT
	if n.Location != nil {
		switch {
		case d.Source == topology.None:
			return ReasonRTTUnknown
		case over:
			return ReasonRTTTooHigh
		}
		return ""
	}
	if d.State == topology.OK && d.Source == topology.Measured {
		if over {
			return ReasonRTTTooHigh
		}
		return ""
	}
	switch n.Unknown {
	case UnknownAccept:
		return ""
	case UnknownPredicted:
		if d.Known() {
			if over {
				return ReasonRTTTooHigh
			}
			return ""
		}
	}
	if d.name == "" {
		return ReasonNearNothing
	}
	if d.State == topology.Stale || d.State == topology.Unreachable {
		return ReasonRTTStale
	}
	return ReasonRTTUnknown
}

// deciding returns the target whose distance decides: the nearest fresh measurement, if only fresh
// measurements count; otherwise the nearest target.
func (n *Near) deciding(t targets) target {
	refusing := n.Unknown != UnknownPredicted && n.Unknown != UnknownAccept
	if refusing && t.measured.Source != topology.None {
		return t.measured
	}
	return t.nearest
}

// Allows reports whether the group's regions.allow matches a region.
func (r RegionsSpec) Allows(at *Region) bool { return allowed(r.Allow, at) }

// allowed reports whether a region matches one of the selectors. An empty list
// allows every region.
func allowed(allow []Selector, r *Region) bool {
	return len(allow) == 0 || slices.ContainsFunc(allow, func(s Selector) bool { return s.Matches(r) })
}

// Matches reports whether a region has the name and the labels of the selector.
func (s Selector) Matches(r *Region) bool {
	if s.Name == "" && len(s.Labels) == 0 || s.Name != "" && s.Name != r.Name {
		return false
	}
	for k, v := range s.Labels {
		if have, ok := r.Labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// String prints the selector: the name, then the labels sorted by key, for example
// "sea,jurisdiction=eu".
func (s Selector) String() string {
	var words []string
	if s.Name != "" {
		words = append(words, s.Name)
	}
	for _, k := range slices.Sorted(maps.Keys(s.Labels)) {
		words = append(words, k+"="+s.Labels[k])
	}
	return strings.Join(words, ",")
}

// message explains a candidate's refusal.
func (ev *evaluator) message(w *work, c *candidate) string {
	g, r := w.group, ev.regions[c.index]
	switch c.reason {
	case ReasonNotAllowed:
		var words []string
		for _, s := range g.Regions.Allow {
			words = append(words, s.String())
		}
		return "matches none of regions.allow: " + strings.Join(words, "; ")
	case ReasonCordoned:
		return "an operator cordoned it"
	case ReasonLost:
		return "it was declared lost"
	case ReasonDisconnected:
		if r.NeverConnected {
			return "never connected"
		}
		return "no session for " + r.disconnectedFor(ev.now).Round(time.Second).String()
	case ReasonDraining:
		return "an operator moves its work away"
	case ReasonNoCommit:
		if r.CommitBlocked == 0 {
			return "it was lost, and has not stored yet what it lost"
		}
		return "it has not been able to commit to its log for " + r.CommitBlocked.Round(time.Second).String()
	case ReasonFeatureLevel:
		if r.FeatureLevel < boundLevel {
			return fmt.Sprintf("no lease binds instances in a region of feature level %d, level %d is needed", r.FeatureLevel, boundLevel)
		}
		return fmt.Sprintf("retry and parallel of a group need more than its feature level %d", r.FeatureLevel)
	case ReasonConfigInvalid:
		return w.refusal(r.Name)
	case ReasonNoReport:
		return "connected, no report of its capacity yet"
	case ReasonRTTTooHigh, ReasonRTTUnknown, ReasonRTTStale:
		if c.breach != nil {
			return c.breach.Near + " is required: " + c.breach.String()
		}
		return fmt.Sprintf("%s, at most %s is required", c.near.say(c.distance), c.near.MaxRTT)
	case ReasonNearNothing:
		return c.near.nothing()
	case ReasonColocation:
		return c.colocation
	case ReasonReturnedRecently:
		text := c.returned.reasonText() // the reason's text says that the region returned the work
		if left := c.returned.Backoff; left > 0 {
			text += fmt.Sprintf("; the region is tried again in %s", left.Round(time.Second))
		}
		return text
	case ReasonNoCapacity:
		switch {
		case r.NodesReady == 0:
			return "no node is ready"
		case c.returned != nil:
			return c.returned.reasonText()
		case c.exact:
			return "none of its nodes has room for one more"
		}
		return "none of its nodes seems to have room for one more, by their unreserved cpu, memory and disk"
	}
	return ""
}

// returnIndex finds rejected and returned work by its key.
type returnIndex struct {
	byAsk    map[askIn]*Returned
	backoffs map[groupIn]*Returned
	last     map[groupIn]*Returned
	// asked names the regions that returned an ask. heldOff names the regions that a group must
	// avoid; its keys have no region.
	asked   map[uint64][]string
	heldOff map[groupIn][]string
}

type askIn struct {
	ask    uint64
	region string
}

type groupIn struct{ namespace, job, group, region string }

func newReturnIndex(all []Returned) returnIndex {
	if len(all) == 0 {
		return returnIndex{}
	}
	x := returnIndex{byAsk: lastReturnsByAsk(all), backoffs: backoffs(all), last: lastReturns(all),
		asked: map[uint64][]string{}, heldOff: map[groupIn][]string{}}
	for i := range all {
		r := &all[i]
		x.asked[r.Ask] = append(x.asked[r.Ask], r.Region)
		if r.Backoff > 0 {
			k := groupIn{namespace: r.Namespace, job: r.Job, group: r.Group}
			x.heldOff[k] = append(x.heldOff[k], r.Region)
		}
	}
	return x
}

// of returns the regions that may refuse a group because they returned the group or its ask.
func (x *returnIndex) of(w *work) []string {
	if len(x.asked) == 0 {
		return nil
	}
	return slices.Concat(x.asked[w.hash], x.heldOff[groupIn{namespace: w.job.Namespace, job: w.job.Name, group: w.group.Name}])
}

// lastReturnsByAsk maps each ask and region to the region's latest return of the ask.
func lastReturnsByAsk(all []Returned) map[askIn]*Returned {
	out := make(map[askIn]*Returned, len(all))
	for i := range all {
		r := &all[i]
		k := askIn{r.Ask, r.Region}
		if old := out[k]; old == nil || r.ReportSequence > old.ReportSequence {
			out[k] = r
		}
	}
	return out
}

// backoffs maps each group and region to the longest backoff of the group in the region.
func backoffs(all []Returned) map[groupIn]*Returned {
	out := map[groupIn]*Returned{}
	for i := range all {
		r := &all[i]
		k := groupIn{r.Namespace, r.Job, r.Group, r.Region}
		if old := out[k]; r.Backoff > 0 && !plant.Is(plant.BackoffForgotten) && (old == nil || r.Backoff > old.Backoff) {
			out[k] = r
		}
	}
	return out
}

// lastReturns maps each group and region to the region's latest return of the group.
func lastReturns(all []Returned) map[groupIn]*Returned {
	out := make(map[groupIn]*Returned, len(all))
	for i := range all {
		r := &all[i]
		k := groupIn{r.Namespace, r.Job, r.Group, r.Region}
		if old := out[k]; old == nil || r.ReportSequence >= old.ReportSequence {
			out[k] = r
		}
	}
	return out
}

// reasonText returns the region's own text, or else the reason in words.
func (r *Returned) reasonText() string {
	return cmp.Or(r.ReasonText, r.Message, strings.ReplaceAll(r.Reason, "_", " "), "no reason given")
}

func sameLabels(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if other, ok := b[k]; !ok || other != v {
			return false
		}
	}
	return true
}
