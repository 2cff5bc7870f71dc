package place

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/topology"
)

// filter applies the hard filters in their order and leaves the first reason.
func (p *planner) filter(w *work, c *candidate) {
	g, r := w.group, &p.snap.Regions[c.index]
	c.fits, c.exact = p.ledger.fits(c.index, g.Ask, w.hash)
	switch {
	case !allowed(g.Regions.Allow, r):
		c.reason = ReasonNotAllowed
	case r.Cordoned:
		c.reason = ReasonCordoned
	case r.Lost:
		c.reason = ReasonLost
	case !r.Connected:
		c.reason = ReasonDisconnected
	case !r.HasReport:
		c.reason = ReasonNoReport
	}
	for i := range g.Regions.Near {
		n, t := &g.Regions.Near[i], w.near[i][c.index]
		if !n.Required || c.nearReason != "" {
			continue
		}
		if c.nearReason = n.refuses(t); c.nearReason != "" {
			c.near, c.distance = n, n.deciding(t)
		}
	}
	if c.breach = w.breached[r.Name]; c.breach != nil && c.nearReason == "" {
		c.nearReason = ReasonRTTTooHigh // for long, though not just now
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
	if c.returned = p.backoffs[groupIn{w.job.Namespace, w.job.Name, g.Name, r.Name}]; c.returned != nil {
		c.reason = ReasonReturnedRecently
		return
	}
	c.returned = p.returned[askIn{w.hash, r.Name}]
	if c.returned != nil && (r.ReportSequence <= c.returned.ReportSequence || !c.exact) {
		c.reason = ReasonReturnedRecently
		return
	}
	c.returned = nil
	if c.fits == 0 {
		c.reason = ReasonNoCapacity
		c.returned = p.lastReturns[groupIn{w.job.Namespace, w.job.Name, g.Name, r.Name}]
		if short, now := r.NoFitReasons[w.hash]; now {
			c.returned = &short
		} else if d := r.missingDriver(g.Ask); d != "" && !c.exact {
			c.returned = &Returned{Region: r.Name, Reason: "driver_missing", Message: "has no driver " + d}
		}
	}
}

// refuses says why a required near refuses a region, empty if it does not.
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

// deciding is the target whose distance decides: the nearest one that was
// measured and is ok if only such count, else the nearest one.
func (n *Near) deciding(t targets) target {
	refusing := n.Unknown != UnknownPredicted && n.Unknown != UnknownAccept
	if refusing && t.measured.Source != topology.None {
		return t.measured
	}
	return t.nearest
}

// allowed says whether a region matches one of the selectors, or there is none.
func allowed(allow []Selector, r *Region) bool {
	return len(allow) == 0 || slices.ContainsFunc(allow, func(s Selector) bool { return s.matches(r) })
}

func (s Selector) matches(r *Region) bool {
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

// String prints "name=sea,jurisdiction=eu", keys sorted.
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

// message says a candidate's refusal in words.
func (p *planner) message(g *Group, c *candidate) string {
	r := &p.snap.Regions[c.index]
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
		return "declared lost; its work has other owners"
	case ReasonDisconnected:
		if r.NeverConnected {
			return "never connected"
		}
		return "no session for " + r.DisconnectedFor.Round(time.Second).String()
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
		text := c.returned.reasonText() // that it gave the work back is the reason's own text
		if left := c.returned.Backoff; left > 0 {
			text += fmt.Sprintf("; it is asked again in %s", left.Round(time.Second))
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
		return "none of its nodes seems to have room for one more, going by their free cpu, memory and disk"
	}
	return ""
}

// reasonText are the region's own, or the reason as words.
func (r *Returned) reasonText() string {
	return cmp.Or(r.ReasonText, r.Message, strings.ReplaceAll(r.Reason, "_", " "), "no reason given")
}

// askIn is a key of the memory of returns.
type askIn struct {
	ask    uint64
	region string
}

// groupIn is a key of the groups that are held back.
type groupIn struct{ namespace, job, group, region string }

// backoffs indexes the groups that are held back; the longest counts.
func backoffs(all []Returned) map[groupIn]*Returned {
	out := map[groupIn]*Returned{}
	for i := range all {
		r := &all[i]
		k := groupIn{r.Namespace, r.Job, r.Group, r.Region}
		if old := out[k]; r.Backoff > 0 && (old == nil || r.Backoff > old.Backoff) {
			out[k] = r
		}
	}
	return out
}

// lastReturns indexes what regions said of a group last.
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

// lastReturnsByAsk indexes the memory of returns: of several for one ask and region the
// latest counts.
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
