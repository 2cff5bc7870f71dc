package discovery

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/catalog"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// Region is a region that may have instances.
type Region struct {
	Name string
	// Silent: the region has had no contact to the global tier since the time Since on the store's
	// clock.
	Silent bool
	Since  time.Duration
	// Distance is the distance from the region of the store's owner.
	Distance catalog.Distance
}

// Roster lists the regions that may have instances.
type Roster struct {
	// Own is the region of the store's owner. It is empty at a global server.
	Own     string
	Regions []Region // sorted by name
	// Silent: nothing was received about the other regions since the time Since on the store's clock.
	Silent bool
	Since  time.Duration
}

// find returns the region with a name.
func (r *Roster) find(name string) (Region, bool) {
	i, found := slices.BinarySearchFunc(r.Regions, name, func(r Region, name string) int {
		switch {
		case r.Name < name:
			return -1
		case r.Name > name:
			return 1
		}
		return 0
	})
	if !found {
		return Region{}, false
	}
	return r.Regions[i], true
}

// same reports whether two rosters have nothing different that a receiver must know.
func (r *Roster) same(o *Roster) bool {
	return r.Own == o.Own && r.Silent == o.Silent && slices.EqualFunc(r.Regions, o.Regions, func(a, b Region) bool {
		return a.Name == b.Name && a.Silent == b.Silent && a.Distance == b.Distance
	})
}

// SetRoster says which regions there are. The store forgets the instances of all others. Silence that
// lasts keeps its beginning.
func (s *Store) SetRoster(next Roster) {
	next.Regions = next.Regions[:min(len(next.Regions), MaxRegions)]
	byName := func(a, b Region) int { return cmp.Compare(a.Name, b.Name) }
	if !slices.IsSortedFunc(next.Regions, byName) {
		next.Regions = slices.SortedFunc(slices.Values(next.Regions), byName)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known && s.roster.same(&next) {
		return
	}
	for i := range next.Regions {
		if old, found := s.roster.find(next.Regions[i].Name); found && old.Silent && next.Regions[i].Silent {
			next.Regions[i].Since = min(old.Since, next.Regions[i].Since)
		}
	}
	if s.roster.Silent && next.Silent {
		next.Since = min(s.roster.Since, next.Since)
	}
	s.roster, s.known = next, true
	for name := range s.regions {
		if _, found := next.find(name); !found {
			s.drop(name)
		}
	}
	s.changed.Notify()
}

// Roster returns the regions. The caller must not change them.
func (s *Store) Roster() Roster {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.roster
}

// Connected says that a connection fills the store: the store is confirmed now and until Disconnected. A new
// connection may begin before the one to an earlier master has ended.
func (s *Store) Connected() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connections++
	s.isLost = false
	s.confirm()
}

// Confirm says that all instances are confirmed now. Only the owner of a store that leads calls it.
func (s *Store) Confirm() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.confirm()
}

func (s *Store) confirm() {
	for _, set := range s.regions {
		set.loaded = false
	}
}

// Lead says whether the store's owner leads its region from now on. Then it registers the region's instances, and
// knows how old the others are: the end of an earlier connection does not count any more.
func (s *Store) Lead(leads bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leads = leads
	s.isLost = s.isLost && !leads
}

// Disconnected says that a connection that fills the store has ended, or that there is none.
func (s *Store) Disconnected() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connections = max(0, s.connections-1)
	if s.connections == 0 && !s.isLost && !s.leads {
		s.isLost, s.lost = true, s.clock()
	}
}

// Lost reports whether the connection that fills the store has ended, and when.
func (s *Store) Lost() (since time.Duration, lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost, s.isLost
}

// age returns the time since a region's instances were last confirmed. s.mu is held.
func (s *Store) age(region string) time.Duration {
	now := s.clock()
	oldest := now
	if s.isLost {
		oldest = min(oldest, s.lost)
	}
	if set := s.regions[region]; set != nil && set.loaded {
		oldest = min(oldest, set.at)
	}
	if region != s.roster.Own || region == "" {
		if s.roster.Silent {
			oldest = min(oldest, s.roster.Since)
		}
		if r, found := s.roster.find(region); found && r.Silent {
			oldest = min(oldest, r.Since)
		}
	}
	return now - oldest
}

// rosterMessage returns the roster as a message. now is the time on the store's clock.
func rosterMessage(r *Roster, now time.Duration) *nusav1.ServiceRegions {
	out := &nusav1.ServiceRegions{}
	if r.Silent {
		out.Silence = durationpb.New(max(0, now-r.Since))
	}
	for _, of := range r.Regions {
		m := &nusav1.ServiceRegion{Name: of.Name}
		if of.Silent {
			m.Silence = durationpb.New(max(0, now-of.Since))
		}
		if of.Distance.Source != topology.None {
			m.Rtt, m.Source = durationpb.New(of.Distance.RTT), nusav1.RTTSource(of.Distance.Source)
		}
		out.Regions = append(out.Regions, m)
	}
	return out
}

// RosterFrom returns the roster in a message that was received at the time now. own is the receiver's
// region.
func RosterFrom(m *nusav1.ServiceRegions, own string, now time.Duration) Roster {
	out := Roster{Own: own}
	if m.GetSilence() != nil {
		out.Silent, out.Since = true, now-max(0, m.GetSilence().AsDuration())
	}
	for _, of := range m.GetRegions()[:min(len(m.GetRegions()), MaxRegions)] {
		r := Region{Name: of.GetName()}
		if of.GetSilence() != nil {
			r.Silent, r.Since = true, now-max(0, of.GetSilence().AsDuration())
		}
		if source := of.GetSource(); of.GetRtt() != nil && source > 0 && source <= nusav1.RTTSource(topology.Estimated) {
			r.Distance = catalog.Distance{RTT: max(0, of.GetRtt().AsDuration()), Source: topology.Source(source)}
		}
		out.Regions = append(out.Regions, r)
	}
	return out
}
