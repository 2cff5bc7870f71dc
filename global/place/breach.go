package place

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/topology"
)

// maxBreaches bounds the breaches of a job that are tracked at the same time. Further breaches are
// tracked once tracked ones have healed.
const maxBreaches = 256

// Breach is a required latency bound that the network does not keep for a group in a region. A
// bound that is kept has no Breach, because its state is the zero value.
type Breach struct {
	Group, Region string
	// Near is the bound, in the form of Near.String.
	Near string
	topology.Breach
}

type breachKey struct{ group, region, near string }

func (b *Breach) key() breachKey { return breachKey{b.Group, b.Region, b.Near} }

// BoundTracker compares the required bounds of jobs with the distances of one snapshot. It reads
// only the topology, the origins, and the names and labels of the regions.
type BoundTracker struct{ distances *distances }

// NewBoundTracker returns a tracker over a snapshot.
func NewBoundTracker(s Snapshot) *BoundTracker { return &BoundTracker{newDistances(s)} }

// Step returns the job's breaches after some time has passed, sorted. An earlier breach stays until
// it has healed or the job no longer has its bound. New breaches are found only where the job runs.
// Job.Slots may be in any order. Only fresh measurements are evidence, unless the bound's Unknown
// allows more. A bound to a location is never measured, so it cannot be broken.
func (f *BoundTracker) Step(j *Job, passed time.Duration) []Breach {
	if j.Stopped || len(j.Breaches) == 0 && !f.breaks(j, passed) {
		return nil
	}
	before := map[breachKey]topology.Breach{}
	regions := map[string]map[string]bool{} // by group
	add := func(group, name string) {
		if regions[group] == nil {
			regions[group] = map[string]bool{}
		}
		regions[group][name] = true
	}
	for i := range j.Breaches {
		b := &j.Breaches[i]
		before[b.key()] = b.Breach
		add(b.Group, b.Region)
	}
	for _, s := range j.Slots {
		if s.Desired == region.DesiredRun && s.State != region.Done {
			add(s.Group, s.Region)
		}
	}
	var known, found []Breach
	for i := range j.Groups {
		g := &j.Groups[i]
		for k := range g.Regions.Near {
			n := &g.Regions.Near[k]
			if !n.bounded() {
				continue
			}
			for _, name := range slices.Sorted(maps.Keys(regions[g.Name])) {
				b := Breach{Group: g.Name, Region: name, Near: n.String()}
				was, had := before[b.key()]
				b.Breach = was
				at := f.distances.regions.index(name)
				if at < 0 {
					continue
				}
				b.Breach = b.Step(n.bound(), n.deciding(f.distances.at(n, at)).Distance, passed)
				delete(before, b.key()) // equal clauses share one entry
				switch {
				case b.State == topology.WithinBound:
				case had:
					known = append(known, b)
				default:
					found = append(found, b)
				}
			}
		}
	}
	out := append(known, found[:max(0, min(len(found), maxBreaches-len(known)))]...)
	slices.SortStableFunc(out, func(a, b Breach) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Region, b.Region), cmp.Compare(a.Near, b.Near))
	})
	return slices.CompactFunc(out, func(a, b Breach) bool { return a.key() == b.key() })
}

// breaks reports whether a bound of the job is broken now. It is much cheaper than Step, and most
// jobs keep their bounds.
func (f *BoundTracker) breaks(j *Job, passed time.Duration) bool {
	for i := range j.Slots {
		s := &j.Slots[i]
		for n := range j.BoundsOf(s) {
			if f.Breaks(n, s.Region, passed) {
				return true
			}
		}
	}
	return false
}

// Breaks reports whether a bound is broken now in a region. Step finds a new breach of a job only if a bound of
// BoundsOf is broken in the region of the slot.
func (f *BoundTracker) Breaks(n *Near, region string, passed time.Duration) bool {
	at := f.distances.regions.index(region)
	return at >= 0 && (topology.Breach{}).Step(n.bound(), n.deciding(f.distances.at(n, at)).Distance, passed).State != topology.WithinBound
}

// BoundsOf yields the bounds that a slot of the job has to keep.
func (j *Job) BoundsOf(s *region.Slot) iter.Seq[*Near] {
	return func(yield func(*Near) bool) {
		if s.Desired != region.DesiredRun || s.State == region.Done {
			return
		}
		for i := range j.Groups {
			if j.Groups[i].Name != s.Group {
				continue
			}
			near := j.Groups[i].Regions.Near
			for k := range near {
				if near[k].bounded() && !yield(&near[k]) {
					return
				}
			}
		}
	}
}

// HasBound reports whether a breach of the job is possible, because it has a bound that is measured.
func (j *Job) HasBound() bool {
	for i := range j.Groups {
		if slices.ContainsFunc(j.Groups[i].Regions.Near, func(n Near) bool { return n.bounded() }) {
			return true
		}
	}
	return false
}

// bounded reports whether the clause has a bound that is measured.
func (n *Near) bounded() bool { return n.Required && n.MaxRTT > 0 && n.Location == nil }

// bound returns the clause as a bound for topology.Breach.
func (n *Near) bound() topology.Bound {
	lax := n.Unknown == UnknownPredicted || n.Unknown == UnknownAccept
	return topology.Bound{MaxRTT: n.MaxRTT, Guesses: lax, Stale: lax}
}

// sustained returns, by region, the first sustained breach of the group's present bounds.
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

// bound returns the clause that a breach is about, or nil if the group no longer has it.
func (g *Group) bound(b *Breach) *Near {
	for i := range g.Regions.Near {
		if n := &g.Regions.Near[i]; n.Required && n.String() == b.Near {
			return n
		}
	}
	return nil
}
