package regional

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/wait"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/uplink"
	"github.com/nusa-scheduler/nusa/security/enroll"
	"github.com/nusa-scheduler/nusa/security/member"
	"github.com/nusa-scheduler/nusa/security/rotation"
)

// followEvery is how often a server looks whether it has what it should have.
const followEvery = time.Second

// wantedKeys are the roots and keys that the members of the region should have.
type wantedKeys struct {
	// version is that of the document in the log.
	version uint64
	goal    *nusav1.KeyGoal
	// announced is what this server tells the agents. It never has more than what this server can
	// give them. nil: nothing.
	announced atomic.Pointer[nusav1.KeyGoal]
}

// forAgents returns the part of a goal that concerns agents, or nil.
func forAgents(goal *nusav1.KeyGoal) *nusav1.KeyGoal {
	if want := goal.GetWant(); len(want.GetRoots()) > 0 {
		return &nusav1.KeyGoal{Want: &nusav1.KeyState{Roots: want.GetRoots(), Issuer: want.GetIssuer()}, Spread: goal.GetSpread(), Version: goal.GetVersion()}
	}
	return nil
}

// followKeys lets this server and the agents get the roots and keys that the log says, until ctx
// ends.
func followKeys(ctx context.Context, s *server) error {
	if s.cfg.Identity == nil {
		<-ctx.Done()
		return nil
	}
	s.cfg.Orders.Rings(func() (gossip, probe []string) { return s.gossip.KeyIDs(), enroll.KeyIDs(s.probes.Get()) })
	probes := ringFile{path: filepath.Join(s.cfg.Identity.Dir(), member.ProbeKeysFile)}
	for range wait.Ticks(ctx, followEvery) {
		if len(s.cfg.ProbeKeys) == 0 {
			if keys, changed := probes.read(s.cfg.Logger); changed {
				s.probes.Set(keys)
				s.cfg.Logger.Info("the keys of probes have changed", "keys", enroll.KeyIDs(keys))
			}
		}
		goal, version := uplink.StoredKeys(s.fsm.View())
		if version != s.wanted.version {
			s.wanted.version, s.wanted.goal = version, goal
			s.cfg.Orders.Set(goal)
		}
		announceKeys(s)
	}
	return nil
}

// announceKeys tells the agents what they should have, once this server can give that to them.
func announceKeys(s *server) {
	next := forAgents(s.wanted.goal)
	if next == nil || proto.Equal(next, s.wanted.announced.Load()) {
		return
	}
	has, err := enroll.Has(s.cfg.Identity)
	if err != nil || rotation.Lacks(enroll.StateOf(next.GetWant()), has, true) != "" {
		return
	}
	s.wanted.announced.Store(next)
	if m := s.leadership.master(); m != nil {
		m.Agents.ServersChanged()
	}
}

// ringFile is a file of keys that changes.
type ringFile struct {
	path  string
	last  string
	fault bool
}

// read returns the keys if they have changed since the last call. A file that cannot be read has no
// effect.
func (r *ringFile) read(log *slog.Logger) (keys [][]byte, changed bool) {
	keys, err := member.ReadKeys(r.path)
	if err != nil {
		if !r.fault {
			log.Warn("cannot use the changed keys: the earlier ones stay in use", "file", r.path, "error", err)
		}
		r.fault = true
		return nil, false
	}
	r.fault = false
	text := string(member.EncodeKeys(keys))
	if text == r.last || len(keys) == 0 {
		return nil, false
	}
	r.last = text
	return keys, true
}
