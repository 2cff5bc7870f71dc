package global

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/security/enroll"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/join"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// bans are those in the store. Every global server refuses banned regions, and banned and removed
// regional servers, and ends their connections.
type bans struct{ now atomic.Pointer[banned] }

// banned is what the store says about bans at one moment.
type banned struct {
	bans enroll.Bans
	// removed are the keys of removed members.
	removed map[trust.Key]bool
}

// refuses returns why a member is refused, or nil.
func (b *bans) refuses(id identity.ID, key trust.Key) error {
	now := b.now.Load()
	switch {
	case now == nil:
		return nil
	case now.removed[key]:
		return enroll.RefusesRemoved(id)
	}
	return now.bans.Refuses(id)
}

// region reports whether all servers of a region are banned.
func (b *bans) region(name string) bool {
	now := b.now.Load()
	return now != nil && now.bans.Refuses(identity.ID{Kind: identity.Server, Region: name}) != nil
}

// watchBans follows the bans in the store until ctx ends. Without the store those that were read last
// stay in force.
func watchBans(ctx context.Context, s *server) error {
	if s.cfg.Identity == nil {
		<-ctx.Done()
		return nil
	}
	for {
		err := followBans(ctx, s)
		if ctx.Err() != nil {
			return nil
		}
		s.log.Debug("cannot follow the bans", "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(campaignPause):
		}
	}
}

// followBans reads the bans, and reads them again after each change.
func followBans(ctx context.Context, s *server) error {
	revision, err := readBans(ctx, s)
	if err != nil {
		return err
	}
	return s.store.Watch(ctx, recordRoot+enroll.BansKey, revision, func([]store.Event) error {
		_, err := readBans(ctx, s)
		return err
	})
}

// readBans reads the bans, and closes the connections of the members that are refused now. The
// result is the revision of the store before the read.
func readBans(ctx context.Context, s *server) (revision int64, err error) {
	kv, ok, revision, err := s.store.Get(ctx, recordRoot+enroll.BansKey)
	if err != nil {
		return 0, err
	}
	next := &banned{removed: map[trust.Key]bool{}}
	if ok {
		next.bans, err = enroll.ReadBans(kv.Value)
		if err != nil {
			return 0, fmt.Errorf("stored record %s: %w", kv.Key, err)
		}
	}
	_, err = s.store.List(ctx, recordRoot+enroll.RemovedPrefix, func(kv store.KV) error {
		m, err := enroll.ReadRemoved(kv.Value)
		if err != nil {
			return fmt.Errorf("stored record %s: %w", kv.Key, err)
		}
		var key join.Hash
		copy(key[:], m.GetKey())
		next.removed[trust.Key(key)] = true
		return nil
	})
	if err != nil {
		return 0, err
	}
	s.bans.now.Store(next)
	s.cfg.Identity.Recheck()
	return revision, nil
}
