package discovery

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nusa-scheduler/nusa/internal/catalog"
	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/notify"
)

// Bounds of a store. Every node that answers questions about services has a copy of all instances.
const (
	// MaxRegionInstances and MaxRegionBytes bound the instances of one region.
	MaxRegionInstances = 10_000
	MaxRegionBytes     = 4 << 20
	// MaxInstances and MaxBytes bound those of all regions.
	MaxInstances = 50_000
	MaxBytes     = 16 << 20
	// MaxRegions bounds the regions.
	MaxRegions = 2048
	// maxTombstones is how many removed instances of a region are remembered.
	maxTombstones = 1024
)

// ErrFull means that instances are not stored because a bound is reached.
var ErrFull = errors.New("too many instances of services")

// Store holds instances by region. It is safe for concurrent use.
type Store struct {
	// clock is monotonic. Ages count on it.
	clock func() time.Duration

	mu       sync.Mutex
	regions  map[string]*regionSet
	services map[serviceKey]map[*catalog.Instance]struct{}
	count    int
	bytes    int
	turn     uint64
	roster   Roster
	// known: a roster was set, or a file was read. Before that the store does not answer.
	known   bool
	lost    time.Duration // when the connection that fills the store ended
	isLost  bool
	changed notify.Signal
}

type serviceKey struct{ namespace, name string }

// regionSet has the instances of one region. A full set replaces the whole regionSet.
type regionSet struct {
	outbox *link.Outbox[*catalog.Instance]
	bytes  int
	// loaded says that the set came from a file at the time at, and was not confirmed since then.
	loaded bool
	at     time.Duration
}

// New returns an empty store. clock is monotonic.
func New(clock func() time.Duration) *Store {
	return &Store{clock: clock, regions: map[string]*regionSet{}, services: map[serviceKey]map[*catalog.Instance]struct{}{}}
}

// Changed returns a channel that is closed at the next change.
func (s *Store) Changed() <-chan struct{} { return s.changed.C() }

// Begin makes an empty set of a region, whose positions have the given epoch. The caller then adds
// instances with Update.
func (s *Store) Begin(region, epoch string) {
	s.mu.Lock()
	s.drop(region)
	s.regions[region] = &regionSet{outbox: link.NewOutbox[*catalog.Instance](epoch, maxTombstones)}
	s.mu.Unlock()
	s.changed.Notify()
}

// Update changes instances of a region that Begin made. Keys of removed that do not exist are ignored.
// ErrFull names the first instance that did not fit. The others are stored.
func (s *Store) Update(region string, put []*catalog.Instance, removed []string) error {
	s.mu.Lock()
	defer s.changed.Notify()
	defer s.mu.Unlock()
	set := s.regions[region]
	if set == nil {
		return nil
	}
	for _, key := range removed {
		if old, held := set.outbox.Get(key); held {
			s.forget(set, old)
			set.outbox.Delete(key)
		}
	}
	var full error
	for _, i := range put {
		old, held := set.outbox.Get(i.Key())
		if held && old.Equal(i) {
			continue
		}
		if held {
			s.forget(set, old)
		}
		if err := s.room(region, set, set.outbox.Len(), i, held); err != nil {
			if held {
				set.outbox.Delete(i.Key())
			}
			if full == nil {
				full = err
			}
			continue
		}
		s.remember(set, i)
		set.outbox.Put(i.Key(), i)
	}
	return full
}

// Keys returns the keys of a region's instances, sorted.
func (s *Store) Keys(region string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if set := s.regions[region]; set != nil {
		return slices.Sorted(slices.Values(set.outbox.Keys()))
	}
	return nil
}

// Position returns the position of a region's instances. It is the zero value if there are none.
func (s *Store) Position(region string) link.Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	if set := s.regions[region]; set != nil {
		return set.outbox.Position()
	}
	return link.Position{}
}

// Positions returns the positions of all regions except one.
func (s *Store) Positions(except string) map[string]link.Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]link.Position{}
	for name, set := range s.regions {
		if name != except {
			out[name] = set.outbox.Position()
		}
	}
	return out
}

// Len returns the number of instances.
func (s *Store) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

// drop removes the set of a region. s.mu is held.
func (s *Store) drop(region string) {
	set := s.regions[region]
	if set == nil {
		return
	}
	for _, key := range set.outbox.Keys() {
		i, _ := set.outbox.Get(key)
		s.forget(set, i)
	}
	delete(s.regions, region)
}

// room returns ErrFull if another instance does not fit. replaces: it replaces one that was forgotten
// already, and that the number of the region's instances still includes. s.mu is held.
func (s *Store) room(region string, set *regionSet, inRegion int, i *catalog.Instance, replaces bool) error {
	if replaces {
		inRegion--
	}
	size := i.Size()
	switch {
	case inRegion >= MaxRegionInstances || set.bytes+size > MaxRegionBytes:
		return fmt.Errorf("%w: region %q has %d of %d bytes, at most %d of %d bytes; service %q in namespace %q is not complete",
			ErrFull, region, inRegion, set.bytes, MaxRegionInstances, MaxRegionBytes, i.Service, i.Namespace)
	case s.count >= MaxInstances || s.bytes+size > MaxBytes:
		return fmt.Errorf("%w: all regions have %d of %d bytes, at most %d of %d bytes; service %q in namespace %q is not complete",
			ErrFull, s.count, s.bytes, MaxInstances, MaxBytes, i.Service, i.Namespace)
	}
	return nil
}

// remember counts an instance and makes it findable. s.mu is held.
func (s *Store) remember(set *regionSet, i *catalog.Instance) {
	s.count, s.bytes, set.bytes = s.count+1, s.bytes+i.Size(), set.bytes+i.Size()
	key := serviceKey{i.Namespace, i.Service}
	if s.services[key] == nil {
		s.services[key] = map[*catalog.Instance]struct{}{}
	}
	s.services[key][i] = struct{}{}
}

// forget undoes remember. s.mu is held.
func (s *Store) forget(set *regionSet, i *catalog.Instance) {
	s.count, s.bytes, set.bytes = s.count-1, s.bytes-i.Size(), set.bytes-i.Size()
	key := serviceKey{i.Namespace, i.Service}
	delete(s.services[key], i)
	if len(s.services[key]) == 0 {
		delete(s.services, key)
	}
}

// find returns the instances of a service in no order. s.mu is held.
func (s *Store) find(namespace, name string) []*catalog.Instance {
	return slices.Collect(maps.Keys(s.services[serviceKey{namespace, name}]))
}
