package failover

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/internal/plant"
)

// massLeast is the least number of regions of a mass loss.
const massLeast = 3

// massLoss describes the silence of many regions together.
type massLoss struct {
	// paused: more than a third of the regions, and at least massLeast, fell silent within one
	// lease of one another, and work of one of them could move. A failure of this server or of its
	// network is likelier then than the loss of so many regions.
	paused bool
	// fell is the number of these regions, and of is the number of all regions. longest is the
	// longest of their silences.
	fell, of int
	longest  time.Duration
}

// quietRegion is a region that has connected, is silent and is not lost.
type quietRegion struct {
	silent time.Duration
	// moves says that the region has slots that would move with a verdict.
	moves bool
}

// massLoss finds the greatest number of regions that fell silent together. Regions that never
// connected, or are lost, do not count. After an election the silence of all regions begins at the
// same time, so all regions that were gone before the election count as one loss.
func (s Snapshot) massLoss(due []RegionDue) massLoss {
	moves := map[string]bool{}
	for _, d := range due {
		moves[d.Region] = d.Moves
	}
	var quiet []quietRegion
	all := 0
	for i := range s.Regions {
		r := &s.Regions[i]
		if r.Lost || r.NeverConnected {
			continue
		}
		all++
		if r.Silent >= s.Quiet() {
			quiet = append(quiet, quietRegion{r.Silent, moves[r.Name]})
		}
	}
	slices.SortFunc(quiet, func(a, b quietRegion) int { return cmp.Compare(a.silent, b.silent) })
	var out massLoss
	first, moving := 0, 0
	for i, q := range quiet {
		if q.moves {
			moving++
		}
		for q.silent-quiet[first].silent > s.LeaseMax {
			if quiet[first].moves {
				moving--
			}
			first++
		}
		n := i - first + 1
		if moving > 0 && n >= massLeast && !plant.Is(plant.MassLossIgnored) && 3*n > all && n > out.fell {
			out = massLoss{paused: true, fell: n, of: all, longest: q.silent}
		}
	}
	return out
}

// earlierLasts reports whether the mass loss that an earlier active server saw still goes on, as
// far as this server can know: it became active just now, and too many regions have not connected.
func (s Snapshot) earlierLasts() bool {
	if s.Earlier == "" || s.Active >= s.earlierFor() {
		return false
	}
	all, missing := 0, 0
	for i := range s.Regions {
		r := &s.Regions[i]
		if r.Lost || r.NeverConnected {
			continue
		}
		all++
		if !r.Connected {
			missing++
		}
	}
	return missing >= massLeast && 3*missing > all
}

// earlierFor is how long after its election a server relies on the alarm of an earlier one. After
// that time the regions have been silent for this server too.
func (s Snapshot) earlierFor() time.Duration { return s.LeaseMax + s.notice() }

// alarm adds the alarm of a mass loss, and the resignation, to the plan.
func (s Snapshot) alarm(p *Plan, m massLoss) {
	if s.earlierLasts() {
		p.Alarm = s.Earlier
		p.nextIn(s.earlierFor() - s.Active)
	}
	if !m.paused {
		// A new active server cannot know earlier than this whether the regions are silent.
		p.Forget = s.Resigned && !p.Paused && s.Active > 2*s.LeaseMax+s.notice()
		return
	}
	withheld := slices.ContainsFunc(p.Regions, func(d RegionDue) bool { return d.Moves && d.In == 0 })
	if !withheld && m.longest < s.Lease {
		return
	}
	p.Alarm = fmt.Sprintf("%d of %d regions fell silent within %s of one another: nothing moves until some of them return", m.fell, m.of, s.LeaseMax)
	if s.OtherServers > 0 && !s.Resigned {
		p.Resign = "another server may reach the regions: " + p.Alarm
	}
}
