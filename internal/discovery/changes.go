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

// apply stores a complete change of a region. If it does not fit, nothing of it is stored.
func (s *Store) apply(region string, c link.Change[*catalog.Instance]) error {
	s.mu.Lock()
	defer s.changed.Notify()
	defer s.mu.Unlock()
	set := s.regions[region]
	if c.Full {
		return s.replace(region, c.Upserts, c.Position)
	}
	if set == nil || set.outbox.Position().Epoch != c.Position.Epoch {
		return fmt.Errorf("%w: a change of region %q without its full set", link.ErrOutOfOrder, region)
	}
	for _, key := range c.Removed {
		if old, held := set.outbox.Get(key); held {
			s.forget(set, old)
			set.outbox.DeleteAt(c.Position.Sequence, key)
		}
	}
	for _, item := range c.Upserts {
		old, held := set.outbox.Get(item.Key)
		if held {
			s.forget(set, old)
		}
		if err := s.room(region, set, set.outbox.Len(), item.Value, held); err != nil {
			if held {
				set.outbox.DeleteAt(c.Position.Sequence, item.Key)
			}
			return err
		}
		s.remember(set, item.Value)
		set.outbox.PutAt(c.Position.Sequence, item.Key, item.Value)
	}
	set.loaded = false
	return nil
}

// replace stores a full set of a region. s.mu is held.
func (s *Store) replace(region string, items []link.Item[*catalog.Instance], at link.Position) error {
	s.drop(region)
	set := &regionSet{outbox: link.NewOutbox[*catalog.Instance](at.Epoch, maxTombstones)}
	s.regions[region] = set
	for _, item := range items {
		if err := s.room(region, set, set.outbox.Len(), item.Value, false); err != nil {
			s.drop(region)
			return err
		}
		s.remember(set, item.Value)
		set.outbox.PutAt(at.Sequence, item.Key, item.Value)
	}
	set.outbox.ForgetUpTo(at.Sequence)
	return nil
}
