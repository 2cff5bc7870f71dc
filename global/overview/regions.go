package overview

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/overview/feed"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

const (
	// regionsAtOnce bounds the regions that are read while the lock is held.
	regionsAtOnce = 64
	// seenWithin is the greatest age of a round trip to a region that counts as a sight of its
	// servers.
	seenWithin = 45 * time.Second
)

// regions returns all regions, and what is due for them. The lock is free between two parts.
func (t *Term) regions() (out []*nusav1.OverviewRegion, due []*nusav1.OverviewDue) {
	st := t.cfg.State
	st.Lock()
	names := st.RegionNames()
	st.Unlock()
	now := time.Now()
	for len(names) > 0 {
		part := names[:min(len(names), regionsAtOnce)]
		names = names[len(part):]
		found, soon := readRegions(st, part, now)
		for _, r := range found {
			r.Banned = t.cfg.Banned(r.GetName())
		}
		out, due = append(out, found...), append(due, soon...)
	}
	return out, due
}

// readRegions returns some regions, and what is due for them.
func readRegions(st *state.State, names []string, now time.Time) (out []*nusav1.OverviewRegion, due []*nusav1.OverviewDue) {
	st.Lock()
	defer st.Unlock()
	see := st.Sight()
	for _, name := range names {
		r := st.Regions[name]
		if r == nil {
			continue // removed meanwhile
		}
		m := r.ToProto(see)
		o := feed.Region(m, now)
		if m.GetSilent() != nil {
			o.Island = isSeen(st, name, m.GetSilent().AsDuration())
			due = append(due, dueOf(st, r, m, now)...)
		}
		out = append(out, o)
	}
	return out, due
}

// isSeen reports whether other regions reach the servers of a silent region. The lock is held.
func isSeen(st *state.State, name string, silent time.Duration) bool {
	if silent < seenWithin { // what they measured before the silence says nothing
		return false
	}
	now := st.Clock()
	for _, e := range st.Latency.AppendColumn(nil, name, now-seenWithin, now) {
		if e.State == topology.OK && e.Age < seenWithin {
			return true
		}
	}
	return false
}

// dueOf returns what happens next to a silent region. The lock is held.
func dueOf(st *state.State, r *state.Region, m *nusav1.Region, now time.Time) (out []*nusav1.OverviewDue) {
	clock := st.Clock()
	if f := r.Failover; f != nil && m.GetMoveDue() != nil {
		moving := 0
		for _, s := range f.Slots {
			if s.Moves {
				moving++
			}
		}
		out = append(out, &nusav1.OverviewDue{
			Kind: "region_move", Subject: r.Name, At: timestamppb.New(now.Add(m.GetMoveDue().AsDuration())),
			Message: fmt.Sprintf("slots that move to other regions unless %s returns: %d", r.Name, max(1, moving)),
		})
	}
	if until := r.Life.BoundUntil(0); m.GetLost() == nil && until > clock {
		out = append(out, &nusav1.OverviewDue{
			Kind: "lease_end", Subject: r.Name, At: timestamppb.New(now.Add(until - clock)),
			Message: "what runs there under the region's lease has stopped by then",
		})
	}
	return out
}
