package regional

import (
	"context"
	"sync/atomic"

	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/security/enroll"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// bans are those in the region's log. Every server of the region refuses banned and removed members,
// and ends their connections.
type bans struct {
	now  atomic.Pointer[enroll.Bans]
	view func() *state.View
}

// refuses returns why a member is refused, or nil.
func (b *bans) refuses(id identity.ID, key trust.Key) error {
	if now := b.now.Load(); now != nil {
		if err := now.Refuses(id); err != nil {
			return err
		}
	}
	if _, removed := b.view().Document(enroll.RemovedKey(key)); removed {
		return enroll.RefusesRemoved(id)
	}
	return nil
}

// watchBans follows the bans in the log until ctx ends. The list also counts the removed members.
func watchBans(ctx context.Context, s *server) error {
	if s.cfg.Identity == nil {
		<-ctx.Done()
		return nil
	}
	version := uint64(0)
	for {
		view, changed := s.fsm.Watch()
		doc, ok := view.Document(enroll.BansKey)
		if ok && doc.Version != version {
			version = doc.Version
			next, err := enroll.ReadBans(doc.Value)
			if err != nil {
				s.cfg.Logger.Error("cannot read the bans: the earlier ones stay in force", "error", err)
			} else {
				s.bans.now.Store(&next)
				s.cfg.Identity.Recheck()
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}
