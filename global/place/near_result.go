package place

import (
	"fmt"

	"github.com/nusa-scheduler/nusa/topology"
)

// NearResult says how one region meets one near clause: the distance that
// decides, and the verdict.
type NearResult struct {
	Near *Near
	// Target is the region that decides; empty for a point on the map.
	Target string
	topology.Distance
	// Verdict is one of the constants below. Why explains it.
	Verdict, Why string
}

// Verdicts of a NearResult.
const (
	NearKept   = "kept"
	NearBroken = "broken"
	// NearUnknown: the bound is required, and no accepted distance shows
	// whether it is kept.
	NearUnknown = "unknown"
	// NearSoft: the bound is not required. It counts only in the score.
	NearSoft = "soft"
)

// NearResults returns how a region meets the near clauses of a group; nil for
// an unknown region.
func (f *BoundTracker) NearResults(g *Group, region string) []NearResult {
	at := f.distances.regions.index(region)
	if at < 0 {
		return nil
	}
	var out []NearResult
	for i := range g.Regions.Near {
		n := &g.Regions.Near[i]
		t := f.distances.at(n, at)
		if !n.Required {
			out = append(out, n.result(t.nearest, NearSoft, fmt.Sprintf("counts %.0f of %d in the score", float64(n.Weight)*n.closeness(t.nearest), n.Weight)))
			continue
		}
		d := n.deciding(t)
		guess := d.State != topology.OK || d.Source != topology.Measured
		switch n.refuses(t) {
		case "":
			why := ""
			if guess && n.Location == nil {
				why = "since the clause says unknown: " + string(n.Unknown)
			}
			out = append(out, n.result(d, NearKept, why))
		case ReasonRTTTooHigh:
			out = append(out, n.result(d, NearBroken, ""))
		default:
			why := "nothing is known of it"
			if n.Location != nil {
				why = "the region has no location"
			} else if d.name == "" {
				why = n.nothing()
			} else if d.Source != topology.None {
				why = "only what was measured and is fresh counts, unless the clause says unknown: predicted"
			}
			out = append(out, n.result(d, NearUnknown, why))
		}
	}
	return out
}

func (n *Near) result(t target, verdict, why string) NearResult {
	return NearResult{Near: n, Target: t.name, Distance: t.Distance, Verdict: verdict, Why: why}
}
