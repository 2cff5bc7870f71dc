package regional

import (
	"context"
	"sync/atomic"

	"github.com/nusa-scheduler/nusa/security/enroll"
	"github.com/nusa-scheduler/nusa/security/identity"
)

// bans are those in the region's log. Every server of the region refuses banned members, and ends
// their connections.
type bans struct{ now atomic.Pointer[enroll.Bans] }

// refuses returns why a member is refused, or nil.
func (b *bans) refuses(id identity.ID) error {
	if now := b.now.Load(); now != nil {
		return now.Refuses(id)
	}
	return nil
}

// watchBans follows the bans in the log until ctx ends.
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
