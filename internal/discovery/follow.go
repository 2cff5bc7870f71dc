package discovery

import (
	"context"
	"maps"
	"time"

	"github.com/nusa-scheduler/nusa/internal/catalog"
	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/wait"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// maxBatchItems and maxBatchBytes bound a message.
	maxBatchItems = 512
	maxBatchBytes = 256 << 10
	// coalesce is how long changes wait for further changes while there are many. burst is how many
	// messages are sent at once after a quiet time.
	coalesce = 100 * time.Millisecond
	burst    = 5
)

// follower is what one receiver has.
type follower struct {
	store *Store
	// only is the region whose instances are sent. Empty: all regions except the one named except.
	only, except string
	at           map[string]*place
	// sent is the roster that was sent last. hasRoster says that there was one.
	sent      Roster
	hasRoster bool
	// seen is the latest version of the store that the receiver has completely, and dropped the number of removed
	// regions that were looked at.
	seen, dropped uint64
}

// place is where a receiver is in the instances of one region.
type place struct {
	outbox *link.Outbox[*catalog.Instance]
	cursor *link.Cursor[*catalog.Instance]
	last   link.Position
}

func newFollower(s *Store, have map[string]link.Position) *follower {
	f := &follower{store: s, at: map[string]*place{}}
	for region, p := range have {
		f.at[region] = &place{last: p}
	}
	return f
}

// next returns the next message, or nil if the receiver has everything. roster: the receiver gets the
// list of regions, too.
func (f *follower) next(roster bool) *nusav1.ServiceChanges {
	s := f.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if roster && s.known && (!f.hasRoster || !f.sent.same(&s.roster)) {
		f.sent, f.hasRoster, f.seen = s.roster, true, 0
		// The receiver forgets the instances of the regions that are not listed.
		maps.DeleteFunc(f.at, func(region string, _ *place) bool { return !f.lists(region) })
		return &nusav1.ServiceChanges{Regions: rosterMessage(&s.roster, s.clock())}
	}
	if f.dropped != s.dropped {
		f.dropped = s.dropped
		// A region that has not reached this server yet keeps its place.
		maps.DeleteFunc(f.at, func(region string, p *place) bool { return p.outbox != nil && s.regions[region] == nil })
	}
	for _, set := range s.inOrder() { // there may be thousands of regions, and of receivers
		if set.version <= f.seen || set.name == f.except || f.only != "" && set.name != f.only {
			continue
		}
		if roster && !f.lists(set.name) {
			continue // it may have reached this server before the list: then it follows the next one
		}
		if m := f.nextOf(set.name, set.outbox); m != nil {
			return m
		}
	}
	f.seen = s.version
	return nil
}

// lists reports whether the latest list that was sent has a region.
func (f *follower) lists(region string) bool {
	_, found := f.sent.find(region)
	return found
}

// nextOf returns the next message about one region, or nil. The store's lock is held.
func (f *follower) nextOf(region string, of *link.Outbox[*catalog.Instance]) *nusav1.ServiceChanges {
	p := f.at[region]
	if p == nil {
		p = &place{}
		f.at[region] = p
	}
	if p.outbox != of {
		p.outbox, p.cursor = of, of.Cursor(p.last)
	}
	b, more := p.cursor.NextWithin(maxBatchItems, maxBatchBytes, func(i link.Item[*catalog.Instance]) int { return i.Value.Size() })
	if !more {
		return nil
	}
	if b.Position != (link.Position{}) {
		p.last = b.Position
	}
	out := &nusav1.ServiceChanges{Region: region, Full: b.Full, Last: b.Last, Removed: b.Removed, Position: positionToProto(b.Position)}
	for _, i := range b.Items {
		out.Instances = append(out.Instances, instanceToProto(i.Value))
	}
	return out
}

// run sends what the receiver lacks, and then each change, until ctx ends or send fails.
func (f *follower) run(ctx context.Context, roster bool, send func(*nusav1.ServiceChanges) error) error {
	pace := wait.NewPace(coalesce, burst)
	for {
		changed := f.store.changed.C()
		for m := f.next(roster); m != nil; m = f.next(roster) {
			if err := send(m); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
		if !pace.Wait(ctx) {
			return ctx.Err()
		}
	}
}

// Serve sends a receiver what it lacks, and then each change, until ctx ends or send fails. It sends
// nothing of the region except.
func Serve(ctx context.Context, s *Store, req *nusav1.FollowServicesRequest, except string, send func(*nusav1.ServiceChanges) error) error {
	have := map[string]link.Position{}
	for _, h := range req.GetHave()[:min(len(req.GetHave()), MaxRegions)] {
		have[h.GetRegion()] = positionFromProto(h.GetPosition())
	}
	f := newFollower(s, have)
	f.except = except
	return f.run(ctx, true, send)
}
