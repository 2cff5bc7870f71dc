package store

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/sim/world/machine"
)

// Store models the store of the global tier, as package global/store describes it: keys with
// revisions, transactions that compare revisions, and an election whose keys expire by the store's
// clock. It runs in its own process, which global servers reach through the network. What it has
// acknowledged is durable.
type Store struct {
	engine   *machine.Engine
	P        *machine.Proc
	Rev      int64
	Keys     map[string]*Key
	Sequence int64
	// Federation is the id of the federation. A wipe loses it.
	Federation string
	// candidates are the keys of the election, sorted.
	candidates []string
	// Copies are older contents that an operator may restore.
	Copies      []*Copy
	expireAgain func()
	// waiting are the requests that wait for a change of the election.
	waiting []func()
	// Surplus is the number of entries in the log that have no revision. It is below 0 after a
	// restore, because the copy has a log of its own.
	Surplus int64
	// Removed is, by key, the true time at which a candidacy was removed.
	Removed map[string]int64
	// Stored is called when a write is durable, with the value before it. Committed is called after a transaction.
	Stored    func(key string, old, next any)
	Committed func(ws []Write)
}

// Key is one key with its latest value.
type Key struct {
	Value       any
	create, Mod int64
	// ttl and expires are set for an election key: its TTL, and when the key expires by the
	// store's clock.
	ttl, expires time.Duration
}

// Copy is an older content.
type Copy struct {
	Rev        int64
	federation string
	keys       map[string]*Key
}

var (
	// ErrCompare: a compare of a transaction failed.
	ErrCompare = errors.New("compare failed")
	errNoReply = errors.New("no quorum")
	// ErrLater: the store answers when the election changes.
	ErrLater = errors.New("later")
)

// ElectionPrefix is the prefix of the election keys.
const ElectionPrefix = "election/"

// ShortestCandidacy is the shortest TTL of an election key.
const ShortestCandidacy = 5 * time.Second

// Compare is like store.Compare: it compares the revision of a key's latest write, or of its
// creation.
type Compare struct {
	Key    string
	Create bool
	Rev    int64
}

// Write is one write of a transaction.
type Write struct {
	Key    string
	Value  any
	Delete bool
	TTL    time.Duration
	// Compare: the key is only compared, not written.
	Compare bool
	Rev     int64
}

// The requests to the store. A request is a function that the store calls. The reply has the
// result of the function.
type (
	call struct {
		id int
		do func(s *Store) (any, error)
	}
	reply struct {
		id  int
		v   any
		err error
	}
)

// New adds the store to the machines.
func New(e *machine.Engine) *Store {
	s := &Store{engine: e, Keys: map[string]*Key{}, Rev: 1, Federation: Federation(1), Removed: map[string]int64{}}
	s.expireAgain = s.expire
	s.P = e.NewHost("g-etcd").NewProc("etcd")
	s.P.OnStart = func() {
		for _, k := range s.List(ElectionPrefix) { // a new leader of etcd extends the leases
			s.Keys[k].expires = s.P.H.Clock() + s.Keys[k].ttl
		}
		s.expire()
	}
	s.P.OnKill = func(bool) { s.waiting = nil }
	s.P.Accept = func(e *machine.End) {
		e.Recv = func(m any) {
			c := m.(call)
			answer := func() {}
			answer = func() {
				if v, err := c.do(s); err != ErrLater {
					e.Send(reply{c.id, v, err})
				} else if e.Open {
					s.waiting = append(s.waiting, answer)
				}
			}
			s.P.Write(answer) // a read takes as long as a write, because it is linearizable too
		}
	}
	return s
}

// elections repeats the requests that wait for a change of the election.
func (s *Store) elections() {
	waiting := s.waiting
	s.waiting = nil
	for _, answer := range waiting {
		answer()
	}
}

// expire removes the election keys whose time has passed.
func (s *Store) expire() {
	now := s.P.H.Clock()
	next := now + ShortestCandidacy // no later key expires before
	for _, k := range s.List(ElectionPrefix) {
		kv := s.Keys[k]
		if now < kv.expires {
			next = min(next, kv.expires)
		} else {
			s.Rev++
			s.remove(k)
			if s.engine.Tracing() {
				s.engine.Tracef("etcd: %s expires", k)
			}
		}
	}
	const each = 200 * time.Millisecond
	s.P.After((next-now+each-1)/each*each, s.expireAgain)
}

// remove removes a key. It notes the time at which a candidacy is removed, for the watch.
func (s *Store) remove(key string) {
	if strings.HasPrefix(key, ElectionPrefix) {
		s.Removed[key] = s.engine.Now
		s.candidates = slices.DeleteFunc(s.candidates, func(k string) bool { return k == key })
		s.P.After(0, s.elections)
	}
	delete(s.Keys, key)
}

// List returns the sorted keys under a prefix.
func (s *Store) List(prefix string) []string {
	if prefix == ElectionPrefix {
		return slices.Clone(s.candidates)
	}
	var out []string
	for k := range s.Keys {
		if strings.HasPrefix(k, prefix) {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

// Value returns the present value of a key, or nil.
func (s *Store) Value(key string) any {
	if k := s.Keys[key]; k != nil {
		return k.Value
	}
	return nil
}

func (s *Store) Holds(cs []Compare) bool {
	for _, c := range cs {
		have := int64(0)
		if k := s.Keys[c.Key]; k != nil {
			have = k.Mod
			if c.Create {
				have = k.create
			}
		}
		if have != c.Rev {
			return false
		}
	}
	return true
}

// Txn applies the writes if all compares hold.
func (s *Store) Txn(cs []Compare, ws []Write) (int64, error) {
	if !s.Holds(cs) {
		return 0, ErrCompare
	}
	s.Rev++
	for _, o := range ws {
		var old any
		if k := s.Keys[o.Key]; k != nil {
			old = k.Value
		}
		if o.Delete {
			s.remove(o.Key)
			s.Stored(o.Key, old, nil)
			continue
		}
		s.Stored(o.Key, old, o.Value)
		k := &Key{Value: o.Value, create: s.Rev, Mod: s.Rev, ttl: o.TTL}
		if old := s.Keys[o.Key]; old != nil {
			k.create = old.create
		} else if strings.HasPrefix(o.Key, ElectionPrefix) {
			s.candidates = append(s.candidates, o.Key)
			slices.Sort(s.candidates)
		}
		if o.TTL > 0 {
			k.expires = s.P.H.Clock() + o.TTL
		}
		s.Keys[o.Key] = k
	}
	s.Committed(ws)
	return s.Rev, nil
}

// First returns the key of the elected candidate.
func (s *Store) First() (string, *Key) {
	var name string
	var least *Key
	for _, k := range s.List(ElectionPrefix) {
		if kv := s.Keys[k]; least == nil || kv.create < least.create {
			name, least = k, kv
		}
	}
	return name, least
}

// Keep renews the lease of a candidate's key. In etcd a lease outlives a deleted key, so a server
// that must know that it leads also checks the key.
func (s *Store) Keep(key string, create int64, ttl time.Duration) error {
	k := s.Keys[key]
	if k == nil || k.create != create {
		return ErrCompare
	}
	k.expires = s.P.H.Clock() + ttl
	return nil
}

// CopyNow copies the present contents, for a later restore.
func (s *Store) CopyNow() *Copy {
	c := &Copy{Rev: s.Rev, federation: s.Federation, keys: map[string]*Key{}}
	for _, k := range s.List("") {
		if !strings.HasPrefix(k, ElectionPrefix) {
			v := *s.Keys[k]
			c.keys[k] = &v
		}
	}
	s.Copies = append(s.Copies, c)
	return c
}

// Wipe empties the store, as new disks do. The first server then begins another federation in it.
func (s *Store) Wipe() {
	s.Restore(&Copy{Rev: 1, federation: Federation(2)})
}

// Federation returns the id of the n-th federation that was set up in the store.
func Federation(n int) string { return fmt.Sprintf("federation-%d", n) }

// Restore replaces the contents by a copy, as `etcdctl snapshot restore` does.
func (s *Store) Restore(c *Copy) {
	s.Rev, s.Federation, s.Surplus = c.Rev, c.federation, -c.Rev
	s.Keys, s.candidates = map[string]*Key{}, nil // a copy has no candidates
	for _, k := range slices.Sorted(maps.Keys(c.keys)) {
		v := *c.keys[k]
		s.Keys[k] = &v
	}
}
