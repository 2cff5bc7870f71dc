package discovery

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
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

	mu      sync.Mutex
	regions map[string]*regionSet
	// sorted has the regions by name. nil: they have changed.
	sorted []*regionSet
	// version counts the changes of instances, and dropped the removals of regions.
	version, dropped uint64
	services         map[serviceKey]*serviceSet
	// keys has the services in order. nil: they have changed.
	keys   []serviceKey
	count  int
	bytes  int
	turn   uint64
	roster Roster
	// known: a roster was set, or a file was read. Before that the store does not answer.
	known bool
	// connections is the number of connections that fill the store. isLost: the last one ended at the time lost.
	connections int
	lost        time.Duration
	isLost      bool
	// leads: the store's owner registers the instances of its region itself, and knows how old the store is.
	leads   bool
	changed notify.Signal
}

type serviceKey struct{ namespace, name string }

// serviceSet has the instances of one service.
type serviceSet struct {
	all map[*catalog.Instance]struct{}
	// sorted has them in the order of catalog.Compare, because many questions follow each other. nil: all has
	// changed.
	sorted []*catalog.Instance
}

// regionSet has the instances of one region. A full set replaces the whole regionSet.
type regionSet struct {
	name   string
	outbox *link.Outbox[*catalog.Instance]
	bytes  int
	// version is that of the store after the latest change.
	version uint64
	// partial says that some instances did not fit. The positions then have an epoch of their own, so that the
	// sender sends the full set again.
	partial bool
	// loaded says that the set came from a file at the time at, and was not confirmed since then.
	loaded bool
	at     time.Duration
}

// New returns an empty store. clock is monotonic.
func New(clock func() time.Duration) *Store {
	return &Store{clock: clock, regions: map[string]*regionSet{}, services: map[serviceKey]*serviceSet{}}
}

// Changed returns a channel that is closed at the next change.
func (s *Store) Changed() <-chan struct{} { return s.changed.C() }

// Begin replaces the set of a region by other instances, whose positions have the given epoch. The caller then
// changes them with Update. ErrFull names the first instance that did not fit. The others are stored.
func (s *Store) Begin(region, epoch string, all []*catalog.Instance) error {
	s.mu.Lock()
	defer s.changed.Notify()
	defer s.mu.Unlock()
	s.drop(region)
	return s.put(s.add(region, epoch), all)
}

// add makes an empty set of a region that has none. s.mu is held.
func (s *Store) add(region, epoch string) *regionSet {
	set := &regionSet{name: region, outbox: link.NewOutbox[*catalog.Instance](epoch, maxTombstones)}
	s.regions[region], s.sorted = set, nil
	s.touch(set)
	return set
}

// touch notes a change of a set. s.mu is held.
func (s *Store) touch(set *regionSet) {
	s.version++
	set.version = s.version
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
	s.remove(set, removed)
	return s.put(set, put)
}

// remove removes instances. Each removal gets the next position. s.mu is held.
func (s *Store) remove(set *regionSet, keys []string) {
	s.touch(set)
	for _, key := range keys {
		if old, held := set.outbox.Get(key); held {
			s.forget(set, old)
			set.outbox.Delete(key)
		}
	}
}

// put adds and changes instances, in their order. Each change gets the next position. The error is that of the
// first one that did not fit, and those that did not fit are not in the set. s.mu is held.
func (s *Store) put(set *regionSet, all []*catalog.Instance) (full error) {
	s.touch(set)
	for _, i := range all {
		old, held := set.outbox.Get(i.Key())
		if held && old.Equal(i) {
			continue
		}
		if held {
			s.forget(set, old)
		}
		if err := s.room(set, set.outbox.Len(), i, held); err != nil {
			if held {
				set.outbox.Delete(i.Key())
			}
			full = cmp.Or(full, err)
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
	s.sorted = nil
	s.version++
	s.dropped++
}

// inOrder returns the sets of all regions, sorted by name. s.mu is held.
func (s *Store) inOrder() []*regionSet {
	if s.sorted == nil {
		s.sorted = slices.SortedFunc(maps.Values(s.regions), func(a, b *regionSet) int { return strings.Compare(a.name, b.name) })
	}
	return s.sorted
}

// room returns ErrFull if another instance does not fit. replaces: it replaces one that was forgotten
// already, and that the number of the region's instances still includes. s.mu is held.
func (s *Store) room(set *regionSet, inRegion int, i *catalog.Instance, replaces bool) error {
	if replaces {
		inRegion--
	}
	size := i.Size()
	switch {
	case inRegion >= MaxRegionInstances || set.bytes+size > MaxRegionBytes:
		return fmt.Errorf("%w: region %q has %d of %d bytes, at most %d of %d bytes; service %q in namespace %q is not complete",
			ErrFull, set.name, inRegion, set.bytes, MaxRegionInstances, MaxRegionBytes, i.Service, i.Namespace)
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
	of := s.services[key]
	if of == nil {
		of = &serviceSet{all: map[*catalog.Instance]struct{}{}}
		s.services[key], s.keys = of, nil
	}
	of.all[i], of.sorted = struct{}{}, nil
}

// forget undoes remember. s.mu is held.
func (s *Store) forget(set *regionSet, i *catalog.Instance) {
	s.count, s.bytes, set.bytes = s.count-1, s.bytes-i.Size(), set.bytes-i.Size()
	key := serviceKey{i.Namespace, i.Service}
	of := s.services[key]
	delete(of.all, i)
	of.sorted = nil
	if len(of.all) == 0 {
		delete(s.services, key)
		s.keys = nil
	}
}

// find returns the instances of a service, sorted. Nobody may change the result. s.mu is held.
func (s *Store) find(namespace, name string) []*catalog.Instance {
	of := s.services[serviceKey{namespace, name}]
	if of == nil {
		return nil
	}
	if of.sorted == nil {
		of.sorted = slices.SortedFunc(maps.Keys(of.all), catalog.Compare)
	}
	return of.sorted
}
