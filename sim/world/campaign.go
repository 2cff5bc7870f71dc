package world

import (
	"fmt"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/internal/lease"
	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/sim/world/machine"
	"github.com/nusa-scheduler/nusa/sim/world/store"
)

// The prefixes of the keys in the store.
const (
	leadershipKey = "leadership"
	jobPrefix     = "jobs/"
	slotPrefix    = "slots/"
	regionPrefix  = "regions/"
)

// leadershipRecord is the record of the present term. See nusav1.LeadershipRecord.
type leadershipRecord struct {
	term     region.Term
	terms    []region.Beginning
	leaseMax time.Duration
	resigned bool
	// massLoss is the alarm of a mass loss; empty: none.
	massLoss string
	// candidacy is the TTL of the election key.
	candidacy time.Duration
	// conflict: a region knows the revision known, or the term knownTerm, which the store does not
	// have. recovered: an operator has raised the store above them.
	conflict, recovered bool
	known               int64
	knownTerm           uint64
	// knownStop is the longest kill_timeout that such a region knows. recovery: since the recovery
	// no server has waited long enough for instances that take recoveryStop to stop.
	knownStop, recoveryStop time.Duration
	recovery                bool
	// unconfirmed are the regions that have not confirmed what they run since the recovery, sorted.
	unconfirmed []string
	// log is the number of entries in the store's log that have no revision. logged: it is known.
	log    int64
	logged bool
}

// globalServer is one server of the global tier.
type globalServer struct {
	w    *world
	h    *machine.Host
	p    *machine.Proc
	name string
	db   *store.Client
	term *globalTerm // nil: not active
	old  bool        // runs a version of the earlier feature level
	// lease is the value of --lease. ttl is the TTL of the election key.
	lease, ttl time.Duration
	candidacy  int
	// known is the greatest revision of the store that is noted in the data directory.
	known int64
	// notedAt is when the present process last noted known.
	notedAt time.Duration
}

func newGlobalServer(w *world, i int) *globalServer {
	g := &globalServer{w: w, name: fmt.Sprintf("g-s%d", i), lease: machine.Pick[time.Duration](w.Engine, 6, 10, 15) * time.Second, ttl: store.ShortestCandidacy * machine.Pick[time.Duration](w.Engine, 1, 2)}
	g.h = w.NewHost(g.name)
	g.p = g.h.NewProc(g.name)
	g.p.OnStart = func() {
		g.db, g.notedAt = store.NewClient(g.p, w.etcd), 0 // the clock starts again with the host
		g.removeFormer()
	}
	g.p.OnKill = func(bool) { g.term = nil }
	g.p.Accept = func(e *machine.End) {
		if g.term == nil {
			e.Recv = func(any) { e.Send(refused{}); e.Close() }
			return
		}
		g.term.accept(e)
	}
	return g
}

// removeFormer removes the candidacy of the server's former process, as global/leadership.go does.
func (g *globalServer) removeFormer() {
	g.db.Call(2*time.Second, func(s *store.Store) (any, error) {
		var former []store.Write
		for _, k := range s.List(store.ElectionPrefix) {
			if s.Keys[k].Value == g.name {
				former = append(former, store.Write{Key: k, Delete: true, Rev: s.Keys[k].Mod})
			}
		}
		return former, nil
	}, func(v any, err error) {
		if err != nil {
			g.p.After(500*time.Millisecond, g.removeFormer)
			return
		}
		for _, k := range v.([]store.Write) {
			g.db.Call(2*time.Second, func(s *store.Store) (any, error) {
				return s.Txn([]store.Compare{{Key: k.Key, Rev: k.Rev}}, []store.Write{k})
			}, func(any, error) {})
		}
		g.campaign()
	})
}

// candidate is one candidacy of a server.
type candidate struct {
	g      *globalServer
	key    string
	create int64
	// proof is the lease of the candidacy. While it lasts, no other server is elected.
	proof    lease.Holder
	ended    bool
	lastSeen time.Duration
}

// campaign stands for election until the server is elected or its key expires.
func (g *globalServer) campaign() {
	g.candidacy++
	c := &candidate{g: g, lastSeen: g.h.Clock()}
	ttl := g.ttl
	g.db.Call(ttl, func(s *store.Store) (any, error) {
		s.Sequence++
		key := fmt.Sprintf("%s%016x", store.ElectionPrefix, s.Sequence)
		rev, err := s.Txn(nil, []store.Write{{Key: key, Value: g.name, TTL: ttl}})
		return [2]any{key, rev}, err
	}, func(v any, err error) {
		if err != nil {
			g.p.After(500*time.Millisecond, g.removeFormer)
			return
		}
		c.key, c.create = v.([2]any)[0].(string), v.([2]any)[1].(int64)
		c.keepAlive()
		c.await()
	})
}

// keepAlive renews the key at each third of its TTL.
func (c *candidate) keepAlive() {
	g := c.g
	if c.ended {
		return
	}
	at := g.h.Clock()
	id := c.proof.Request(at)
	g.db.Call(g.ttl, func(s *store.Store) (any, error) {
		err := s.Keep(c.key, c.create, g.ttl)
		if plant.Is(plant.RenewWithoutKey) && err != nil {
			err = nil
		}
		return nil, err
	}, func(_ any, err error) {
		switch {
		case c.ended:
		case err == store.ErrCompare:
			c.end("its key is gone")
		case err == nil:
			c.lastSeen = at
			t := g.term
			uncertain := t != nil && t.c == c && !t.config().Serving(g.h.Clock())
			c.proof.Granted(id, lease.Sure(g.ttl))
			if uncertain {
				t.resumed()
			}
		case g.h.Clock()-c.lastSeen > g.ttl:
			c.end("no renewal for the length of the candidacy")
		}
	})
	g.p.After(g.ttl/3, c.keepAlive)
}

// await begins a term once the candidate is the first one.
func (c *candidate) await() {
	if c.ended {
		return
	}
	c.g.db.Call(time.Second, func(s *store.Store) (any, error) {
		name, _ := s.First()
		return [2]any{name == c.key, s.Rev}, nil
	}, func(v any, err error) {
		if now := c.g.h.Clock(); err == nil && !c.ended && now-c.g.notedAt >= 5*time.Second {
			c.g.known, c.g.notedAt = max(c.g.known, v.([2]any)[1].(int64)), now
		}
		switch {
		case c.ended:
		case err == nil && v.([2]any)[0].(bool):
			c.load()
		case err == nil:
			c.stand()
		default:
			c.g.p.After(250*time.Millisecond, c.await)
		}
	})
}

// stand waits until the candidate's key is the first one. The store answers only then. After a
// time-out, await asks again.
func (c *candidate) stand() {
	c.g.db.Call(5*time.Second, func(s *store.Store) (any, error) {
		if name, _ := s.First(); name != c.key {
			return nil, store.ErrLater
		}
		return nil, nil
	}, func(_ any, err error) {
		switch {
		case c.ended:
		case err == nil:
			c.load()
		default:
			c.await()
		}
	})
}

// end ends the candidacy and the term. Then the server campaigns again.
func (c *candidate) end(why string) {
	if c.ended {
		return
	}
	c.ended = true
	g := c.g
	if g.w.Tracing() {
		g.w.Tracef("%s: not active: %s", g.name, why)
	}
	if t := g.term; t != nil && t.c == c {
		g.known = max(g.known, t.rev)
		g.term = nil
		for _, name := range sortedKeys(t.regions) {
			if s := t.regions[name].session; s != nil {
				s.e.Close()
			}
		}
	}
	key, create := c.key, c.create
	g.db.Call(2*time.Second, func(s *store.Store) (any, error) {
		return s.Txn([]store.Compare{{Key: key, Create: true, Rev: create}}, []store.Write{{Key: key, Delete: true}})
	},
		func(any, error) { g.p.After(500*time.Millisecond, g.campaign) })
}

// load reads everything, and writes the term's record before the server does anything else.
func (c *candidate) load() {
	g := c.g
	g.db.Call(3*time.Second, func(s *store.Store) (any, error) {
		all := map[string]store.Key{}
		for k, v := range s.Keys {
			if !strings.HasPrefix(k, store.ElectionPrefix) {
				all[k] = *v
			}
		}
		return [3]any{all, s.Rev, s.Surplus}, nil
	}, func(v any, err error) {
		if err != nil || c.ended {
			c.end("the store could not be read")
			return
		}
		all, rev, surplus := v.([3]any)[0].(map[string]store.Key), v.([3]any)[1].(int64), v.([3]any)[2].(int64)
		old, _ := all[leadershipKey].Value.(leadershipRecord)
		next := old
		next.term = region.Term{Number: old.term.Number + 1, Nonce: fmt.Sprintf("%08x", g.w.Rng.Uint32())}
		next.leaseMax = max(old.leaseMax, g.lease)
		if old.candidacy == 0 {
			old.candidacy = g.ttl
		}
		next.candidacy = g.ttl
		if old.recovered {
			next.terms = nil
			next.conflict, next.recovered, next.known, next.knownTerm, next.knownStop = false, false, 0, 0, 0
			next.logged = false
		}
		switch { // as recovery.NoteLog
		case next.logged && surplus < next.log && !plant.Is(plant.OldStore):
			next.conflict = true
		case !next.logged || surplus > next.log:
			next.log, next.logged = surplus, true
		}
		next.terms = region.Begin(next.terms, next.term, all[leadershipKey].Mod)
		if g.known > rev && !plant.Is(plant.OldStore) {
			next.conflict, next.known = true, max(next.known, g.known)
		}
		if plant.Is(plant.LeaseForgotten) {
			old.leaseMax, next.leaseMax = g.lease, g.lease
		}
		g.db.Call(3*time.Second, func(s *store.Store) (any, error) {
			return s.Txn([]store.Compare{{Key: c.key, Create: true, Rev: c.create}, {Key: leadershipKey, Rev: all[leadershipKey].Mod}}, []store.Write{{Key: leadershipKey, Value: next}})
		}, func(v any, err error) {
			if err != nil || c.ended {
				c.end("the term could not be written")
				return
			}
			written := int64(0)
			for key, kv := range all {
				if key != leadershipKey {
					written = max(written, kv.Mod)
				}
			}
			next.terms = region.Loaded(next.terms, written)
			all[leadershipKey] = store.Key{Value: next, Mod: v.(int64)}
			g.term = newGlobalTerm(c, all, v.(int64), old)
		})
	})
}
