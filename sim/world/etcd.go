package world

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// etcd models the store of the global tier, as package global/store describes it: keys with
// revisions, transactions that compare revisions, and an election whose keys expire by the store's
// clock. It runs in its own process, which global servers reach through the network. What it has
// acknowledged is durable.
type etcd struct {
	w        *world
	p        *proc
	rev      int64
	keys     map[string]*etcdKey
	sequence int64
	// federation is the id of the federation. A wipe loses it.
	federation string
	// candidates are the keys of the election, sorted.
	candidates []string
	// copies are older contents that an operator may restore.
	copies      []*etcdCopy
	expireAgain func()
	// waiting are the requests that wait for a change of the election.
	waiting []func()
	// surplus is the number of entries in the log that have no revision. It is below 0 after a
	// restore, because the copy has a log of its own.
	surplus int64
	// removed is, by key, the true time at which a candidacy was removed.
	removed map[string]int64
}

type etcdKey struct {
	value       any
	create, mod int64
	// ttl and expires are set for an election key: its TTL, and when the key expires by the
	// store's clock.
	ttl, expires time.Duration
}

type etcdCopy struct {
	rev        int64
	federation string
	keys       map[string]*etcdKey
}

var (
	errCompare = errors.New("compare failed")
	errNoReply = errors.New("no quorum")
	// errLater: the store answers when the election changes.
	errLater = errors.New("later")
)

// compare is like store.Compare: it compares the revision of a key's latest write, or of its
// creation.
type compare struct {
	key    string
	create bool
	rev    int64
}

type write struct {
	key    string
	value  any
	delete bool
	ttl    time.Duration
	// compare: the key is only compared, not written.
	compare bool
	rev     int64
}

// The requests to the store. A request is a function that the store calls. The reply has the
// result of the function.
type (
	etcdCall struct {
		id int
		do func(s *etcd) (any, error)
	}
	etcdReply struct {
		id  int
		v   any
		err error
	}
)

func newEtcd(w *world) *etcd {
	s := &etcd{w: w, keys: map[string]*etcdKey{}, rev: 1, federation: federation(1), removed: map[string]int64{}}
	s.expireAgain = s.expire
	s.p = newHost(w, "g-etcd").newProc("etcd")
	s.p.onStart = func() {
		for _, k := range s.list(electionPrefix) { // a new leader of etcd extends the leases
			s.keys[k].expires = s.p.h.clock() + s.keys[k].ttl
		}
		s.expire()
	}
	s.p.onKill = func(bool) { s.waiting = nil }
	s.p.accept = func(e *end) {
		e.recv = func(m any) {
			c := m.(etcdCall)
			answer := func() {}
			answer = func() {
				if v, err := c.do(s); err != errLater {
					e.send(etcdReply{c.id, v, err})
				} else if e.open {
					s.waiting = append(s.waiting, answer)
				}
			}
			s.p.write(answer) // a read takes as long as a write, because it is linearizable too
		}
	}
	return s
}

// elections repeats the requests that wait for a change of the election.
func (s *etcd) elections() {
	waiting := s.waiting
	s.waiting = nil
	for _, answer := range waiting {
		answer()
	}
}

// expire removes the election keys whose time has passed.
func (s *etcd) expire() {
	now := s.p.h.clock()
	next := now + shortestCandidacy // no later key expires before
	for _, k := range s.list(electionPrefix) {
		kv := s.keys[k]
		if now < kv.expires {
			next = min(next, kv.expires)
		} else {
			s.rev++
			s.remove(k)
			if s.w.tracing() {
				s.w.tracef("etcd: %s expires", k)
			}
		}
	}
	const each = 200 * time.Millisecond
	s.p.after((next-now+each-1)/each*each, s.expireAgain)
}

// remove removes a key. It notes the time at which a candidacy is removed, for the watch.
func (s *etcd) remove(key string) {
	if strings.HasPrefix(key, electionPrefix) {
		s.removed[key] = s.w.now
		s.candidates = slices.DeleteFunc(s.candidates, func(k string) bool { return k == key })
		s.p.after(0, s.elections)
	}
	delete(s.keys, key)
}

// list returns the sorted keys under a prefix.
func (s *etcd) list(prefix string) []string {
	if prefix == electionPrefix {
		return slices.Clone(s.candidates)
	}
	var out []string
	for k := range s.keys {
		if strings.HasPrefix(k, prefix) {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

// value returns the present value of a key, or nil.
func (s *etcd) value(key string) any {
	if k := s.keys[key]; k != nil {
		return k.value
	}
	return nil
}

func (s *etcd) holds(cs []compare) bool {
	for _, c := range cs {
		have := int64(0)
		if k := s.keys[c.key]; k != nil {
			have = k.mod
			if c.create {
				have = k.create
			}
		}
		if have != c.rev {
			return false
		}
	}
	return true
}

// txn applies the writes if all compares hold.
func (s *etcd) txn(cs []compare, ws []write) (int64, error) {
	if !s.holds(cs) {
		return 0, errCompare
	}
	s.rev++
	for _, o := range ws {
		var old any
		if k := s.keys[o.key]; k != nil {
			old = k.value
		}
		if o.delete {
			s.remove(o.key)
			s.w.watch.stored(o.key, old, nil)
			continue
		}
		s.w.watch.stored(o.key, old, o.value)
		k := &etcdKey{value: o.value, create: s.rev, mod: s.rev, ttl: o.ttl}
		if old := s.keys[o.key]; old != nil {
			k.create = old.create
		} else if strings.HasPrefix(o.key, electionPrefix) {
			s.candidates = append(s.candidates, o.key)
			slices.Sort(s.candidates)
		}
		if o.ttl > 0 {
			k.expires = s.p.h.clock() + o.ttl
		}
		s.keys[o.key] = k
	}
	s.w.watch.movedOn()
	s.w.watch.divided(ws)
	return s.rev, nil
}

// first returns the key of the elected candidate.
func (s *etcd) first() (string, *etcdKey) {
	var name string
	var least *etcdKey
	for _, k := range s.list(electionPrefix) {
		if kv := s.keys[k]; least == nil || kv.create < least.create {
			name, least = k, kv
		}
	}
	return name, least
}

// keep renews the lease of a candidate's key. In etcd a lease outlives a deleted key, so a server
// that must know that it leads also checks the key.
func (s *etcd) keep(key string, create int64, ttl time.Duration) error {
	k := s.keys[key]
	if k == nil || k.create != create {
		return errCompare
	}
	k.expires = s.p.h.clock() + ttl
	return nil
}

// copyNow copies the present contents, for a later restore.
func (s *etcd) copyNow() *etcdCopy {
	c := &etcdCopy{rev: s.rev, federation: s.federation, keys: map[string]*etcdKey{}}
	for _, k := range s.list("") {
		if !strings.HasPrefix(k, electionPrefix) {
			v := *s.keys[k]
			c.keys[k] = &v
		}
	}
	s.copies = append(s.copies, c)
	return c
}

// wipe empties the store, as new disks do. The first server then begins another federation in it.
func (s *etcd) wipe() {
	s.restore(&etcdCopy{rev: 1, federation: federation(2)})
}

// federation returns the id of the n-th federation that was set up in the store.
func federation(n int) string { return fmt.Sprintf("federation-%d", n) }

// restore replaces the contents by a copy, as `etcdctl snapshot restore` does.
func (s *etcd) restore(c *etcdCopy) {
	s.rev, s.federation, s.surplus = c.rev, c.federation, -c.rev
	s.keys, s.candidates = map[string]*etcdKey{}, nil // a copy has no candidates
	for _, k := range sortedKeys(c.keys) {
		v := *c.keys[k]
		s.keys[k] = &v
	}
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// etcdClient is one global server's connection to the store.
type etcdClient struct {
	p     *proc
	s     *etcd
	e     *end
	next  int
	waits map[int]func(v any, err error)
}

func newEtcdClient(p *proc, s *etcd) *etcdClient {
	return &etcdClient{p: p, s: s, waits: map[int]func(any, error){}}
}

// call sends a request to the store. If no reply arrives in time, the error is errNoReply, and the
// outcome is unknown.
func (c *etcdClient) call(timeout time.Duration, do func(s *etcd) (any, error), done func(v any, err error)) {
	if c.e == nil || !c.e.open {
		e := c.p.h.w.net.dial(c.p, c.s.p)
		e.recv = func(m any) {
			r := m.(etcdReply)
			if f := c.waits[r.id]; f != nil {
				delete(c.waits, r.id)
				f(r.v, r.err)
			}
		}
		c.e = e
	}
	c.next++
	id := c.next
	c.waits[id] = done
	c.e.send(etcdCall{id, do})
	c.p.after(timeout, func() {
		if f := c.waits[id]; f != nil {
			delete(c.waits, id)
			f(nil, errNoReply)
		}
	})
}
