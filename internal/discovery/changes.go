package discovery

import (
	"fmt"
	"slices"

	"github.com/nusa-scheduler/nusa/internal/catalog"
	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Inbox converts the messages of one connection to contents of a store. It is not safe for concurrent
// use. Make a new one for each connection.
type Inbox struct {
	store   *Store
	inboxes map[string]*link.Inbox[*catalog.Instance]
}

// NewInbox returns an inbox for a connection that fills a store.
func NewInbox(s *Store) *Inbox {
	return &Inbox{store: s, inboxes: map[string]*link.Inbox[*catalog.Instance]{}}
}

// Add adds the instances of a message. It returns the region's position once a change is complete, and
// otherwise the zero value. Errors are ErrFull, catalog.ErrInvalid and the errors of link.Inbox. The
// connection must end after an error.
func (in *Inbox) Add(m *nusav1.ServiceChanges) (link.Position, error) {
	region := m.GetRegion()
	b := link.Batch[*catalog.Instance]{Full: m.GetFull(), Last: m.GetLast(), Removed: m.GetRemoved(), Position: positionFromProto(m.GetPosition())}
	for _, w := range m.GetInstances() {
		i := instanceFromProto(w)
		if err := i.Check(); err != nil {
			return link.Position{}, err
		}
		if i.Region != region {
			return link.Position{}, fmt.Errorf("%w instance of service %q: it is in region %q, not in %q", catalog.ErrInvalid, i.Service, i.Region, region)
		}
		b.Items = append(b.Items, link.Item[*catalog.Instance]{Key: i.Key(), Value: i})
	}
	of := in.inboxes[region]
	if of == nil {
		if region == "" || len(in.inboxes) >= MaxRegions {
			return link.Position{}, fmt.Errorf("%w: more than %d regions, or a region without a name", ErrFull, MaxRegions)
		}
		of = link.NewInbox[*catalog.Instance](MaxRegionInstances)
		in.inboxes[region] = of
	}
	change, complete, err := of.Add(b, slices.Values([]string(nil)))
	if err != nil || !complete {
		return link.Position{}, err
	}
	return change.Position, in.store.apply(region, change)
}

// apply stores a complete change of a region. If not all instances fit, ErrFull says so, and the set is partial: the
// others are stored, and the sender sends the full set when it connects again.
func (s *Store) apply(region string, c link.Change[*catalog.Instance]) error {
	s.mu.Lock()
	defer s.changed.Notify()
	defer s.mu.Unlock()
	if s.leads && region == s.roster.Own {
		return fmt.Errorf("%w: this server registers the instances of region %q itself", link.ErrOutOfOrder, region)
	}
	set := s.regions[region]
	if c.Full {
		return s.replace(region, c.Upserts, c.Position)
	}
	switch {
	case set == nil || set.outbox.Position().Epoch != c.Position.Epoch:
		return fmt.Errorf("%w: a change of region %q without its full set", link.ErrOutOfOrder, region)
	case c.Position.Sequence < set.outbox.Position().Sequence:
		return fmt.Errorf("%w: a change of region %q that is older than its set", link.ErrOutOfOrder, region)
	case !s.fits(set, c):
		set = s.makePartial(set)
		s.remove(set, c.Removed)
		return s.put(set, values(c.Upserts))
	}
	s.touch(set)
	for _, key := range c.Removed {
		if old, held := set.outbox.Get(key); held {
			s.forget(set, old)
			set.outbox.DeleteAt(c.Position.Sequence, key)
		}
	}
	for _, item := range c.Upserts {
		if old, held := set.outbox.Get(item.Key); held {
			s.forget(set, old)
		}
		s.remember(set, item.Value)
		set.outbox.PutAt(c.Position.Sequence, item.Key, item.Value)
	}
	set.loaded = false
	return nil
}

func values(items []link.Item[*catalog.Instance]) []*catalog.Instance {
	out := make([]*catalog.Instance, len(items))
	for n := range items {
		out[n] = items[n].Value
	}
	return out
}

// fits reports whether a set has room for a change. s.mu is held.
func (s *Store) fits(set *regionSet, c link.Change[*catalog.Instance]) bool {
	count, bytes := 0, 0
	now := map[string]int{} // sizes after the change
	change := func(key string, size int) {
		was, is := now[key]
		if old, held := set.outbox.Get(key); !is && held {
			was = old.Size()
		}
		now[key] = size
		bytes += size - was
		count += min(size, 1) - min(was, 1)
	}
	for _, key := range c.Removed {
		change(key, 0)
	}
	for _, item := range c.Upserts {
		change(item.Key, item.Value.Size())
	}
	return set.outbox.Len()+count <= MaxRegionInstances && set.bytes+bytes <= MaxRegionBytes &&
		s.count+count <= MaxInstances && s.bytes+bytes <= MaxBytes
}

// makePartial returns the set with positions of an epoch of their own. s.mu is held.
func (s *Store) makePartial(set *regionSet) *regionSet {
	if set.partial {
		return set
	}
	next := s.add(set.name, fmt.Sprintf("%s/part/%d", set.outbox.Position().Epoch, s.version))
	next.partial, next.bytes = true, set.bytes
	for _, key := range set.outbox.Keys() {
		i, _ := set.outbox.Get(key)
		next.outbox.Put(key, i)
	}
	return next
}

// replace stores a full set of a region. s.mu is held.
func (s *Store) replace(region string, items []link.Item[*catalog.Instance], at link.Position) error {
	was := s.regions[region]
	if was == nil {
		was = s.add(region, at.Epoch)
	}
	c := link.Change[*catalog.Instance]{Upserts: items}
	keep := make(map[string]bool, len(items))
	for _, item := range items {
		keep[item.Key] = true
	}
	for _, key := range was.outbox.Keys() {
		if !keep[key] {
			c.Removed = append(c.Removed, key)
		}
	}
	if !s.fits(was, c) {
		was = s.makePartial(was)
		s.remove(was, c.Removed)
		return s.put(was, values(items))
	}
	s.drop(region)
	set := s.add(region, at.Epoch)
	for _, item := range items {
		s.remember(set, item.Value)
		set.outbox.PutAt(at.Sequence, item.Key, item.Value)
	}
	set.outbox.ForgetUpTo(at.Sequence)
	return nil
}
