package world

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/workflows/semaphore"
	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/sim/world/letters"
	"github.com/nusa-scheduler/nusa/sim/world/rollout"
	"github.com/nusa-scheduler/nusa/sim/world/store"
)

// globalTerm is what a global server holds while it is the active one, in one leadership term. It
// has a copy of the records, which only its own transactions change.
type globalTerm struct {
	g     *globalServer
	w     *world
	c     *candidate
	epoch string
	// federation is the id that the store had at the beginning.
	federation string
	began      time.Duration
	rev        int64
	mods       map[string]int64 // revision of each record, by key

	leadership leadershipRecord
	pastMax    time.Duration
	formerTTL  time.Duration // TTL of the predecessor's candidacy
	jobs       map[string]*jobRecord
	slots      map[string]region.Slot // by key
	byJob      map[string][]region.Slot
	schedules  map[string]*scheduleRecord
	flows      map[string]*flowRecord
	sems       semaphoreTerm
	rollouts   map[string]*rolloutRecord
	healthy    map[string]*jobRecord    // versions that every instance has run
	rolling    map[string]*rollout.Soft // soft
	// used has, by job and group, what instances have used of their retry policies. book has the dead letters. lettersBegun:
	// the term has looked at the failures that regions reported at its beginning.
	used         map[string]*nusav1.AttemptsRecord
	book         *letters.Book
	lettersBegun bool
	regions      map[string]*globalRegion
	names        []string // names of the regions, sorted

	streams   uint64
	queue     []*request
	inFlight  bool
	placeSoon bool
	placing   bool
	massLoss  time.Duration // when the latest mass loss was seen; 0: never
	movable   map[string][]place.Movable
	// soft counts the changes of a plan's inputs that are in no record. idle are the inputs of the
	// latest plan that changed nothing.
	soft uint64
	idle planInputs
	// reported are the regions that were refused because the store is an old copy.
	reported map[string]bool
	others   int
	seconds  int
}

// regionRecord is the stored record of a region.
type regionRecord struct {
	region.Record
	cordoned, draining bool
	returning          bool    // an operator lets slots return
	lostAt             []int64 // by the wall clock of the server
}

// globalRegion is one region in the form in which the active server keeps it.
type globalRegion struct {
	rec     regionRecord
	life    region.State
	session *globalSession
	orders  *link.Outbox[slotOrder]
	report  *regionReport
	reports uint64
	refused []place.Returned
	// barred are the groups that the region does not get for a while because of their retry policies.
	barred []barredGroup
	// calls says that another cluster of this name was refused.
	calls bool
}

// request is a transaction that waits. build reads the records and returns the writes. No writes:
// there is nothing to do.
type request struct {
	build func() []store.Write
	done  func(ok bool)
}

func newGlobalTerm(c *candidate, all map[string]store.Key, rev int64, former leadershipRecord) *globalTerm {
	g := c.g
	term := all[leadershipKey].Value.(leadershipRecord).term
	t := &globalTerm{g: g, w: g.w, c: c, federation: g.w.etcd.Federation, epoch: strconv.FormatUint(term.Number, 36) + term.Nonce, began: g.h.Clock(), rev: rev, mods: map[string]int64{},
		jobs: map[string]*jobRecord{}, slots: map[string]region.Slot{}, byJob: map[string][]region.Slot{}, regions: map[string]*globalRegion{}, schedules: map[string]*scheduleRecord{}, flows: map[string]*flowRecord{}, sems: semaphoreTerm{granted: map[semaphore.Key][]semaphore.Need{}}, rollouts: map[string]*rolloutRecord{}, healthy: map[string]*jobRecord{}, rolling: map[string]*rollout.Soft{}, used: map[string]*nusav1.AttemptsRecord{}, book: letters.New(), pastMax: former.leaseMax, formerTTL: former.candidacy,
		movable: map[string][]place.Movable{}, reported: map[string]bool{}}
	for _, k := range sortedKeys(all) {
		t.store(k, all[k].Value, all[k].Mod)
	}
	if g.w.Tracing() {
		g.w.Tracef("%s: active, term %d, revision %d", g.name, t.leadership.term.Number, rev)
	}
	g.w.watch.active(t)
	children{t}.load()
	for _, name := range t.names {
		t.regions[name].life = region.Open(t.config(), t.regions[name].rec.Record, t.began)
	}
	g.p.Every(time.Second, func() bool {
		if t.ended() {
			return false
		}
		t.tick()
		if now := t.now(); now-g.notedAt >= 5*time.Second { // as leadershipTerm.noteRevision does
			g.known, g.notedAt = max(g.known, t.rev), now
		}
		return true
	})
	t.wakePlacer()
	return t
}

func (t *globalTerm) ended() bool { return t.g.term != t }

func (t *globalTerm) now() time.Duration { return t.g.h.Clock() }

// config returns the configuration of the regions' sessions.
func (t *globalTerm) config() region.Config {
	until := t.c.proof.At(t.now()).Deadline
	c := region.Config{Lease: t.g.lease, LeaseMax: t.pastMax, PredecessorUntil: t.began + t.formerTTL, ActiveUntil: until, Federation: t.federation,
		Term: t.leadership.term, Revision: t.rev, Terms: t.leadership.terms, Conflict: t.leadership.conflict}
	if t.leadership.recovery {
		c.Unconfirmed = len(t.leadership.unconfirmed) > 0
		c.LeaseMax = max(c.LeaseMax, t.leadership.leaseMax)
		c = c.AfterRecovery(t.leadership.recoveryStop)
	}
	return c
}

// store puts a record into the copy. A nil value removes the record.
func (t *globalTerm) store(key string, value any, rev int64) {
	t.mods[key] = rev
	if value == nil {
		delete(t.mods, key)
	}
	switch kind, name, _ := strings.Cut(key, "/"); kind + "/" {
	case jobPrefix:
		if value == nil {
			delete(t.jobs, name)
			return
		}
		j := value.(*jobRecord)
		if j.run == 0 { // the revision of its submit
			j.run, j.revision = rev, cmp.Or(j.revision, rev)
		}
		t.jobs[name] = j
	case schedulePrefix:
		t.schedules[name] = value.(*scheduleRecord)
	case flowPrefix:
		t.flows[name] = value.(*flowRecord)
		t.sems.noted(t.flows[name])
	case rolloutPrefix:
		if value == nil {
			delete(t.rollouts, name)
			return
		}
		t.rollouts[name] = value.(*rolloutRecord)
	case healthyPrefix:
		if value == nil {
			delete(t.healthy, name)
			return
		}
		t.healthy[name] = value.(*jobRecord)
	case attemptsPrefix:
		if value == nil {
			delete(t.used, name)
			return
		}
		t.used[name] = value.(*nusav1.AttemptsRecord)
	case letters.Prefix, letters.SourcePrefix:
		t.book.Apply(key, value)
	case slotPrefix:
		t.storeSlot(name, value, rev)
	case regionPrefix:
		rec := value.(regionRecord)
		r := t.region(name)
		r.rec = rec
		var effects []region.Effect
		seen := r.life.LastSeen
		r.life, effects = region.Step(t.config(), r.life, t.now(), region.Stored{Record: rec.Record})
		if r.life.LastSeen > seen { // a lost region has said hello
			t.w.watch.arrived(name)
		}
		t.do(name, effects)
	default:
		if key == leadershipKey {
			t.leadership = value.(leadershipRecord)
		}
	}
}

func (t *globalTerm) region(name string) *globalRegion {
	r := t.regions[name]
	if r == nil {
		r = &globalRegion{orders: link.NewOutbox[slotOrder](t.epoch, 256)}
		r.orders.ForgetUpTo(uint64(t.rev))
		t.regions[name] = r
		t.names = sortedKeys(t.regions)
		r.life = region.Open(t.config(), region.Record{Name: name}, t.now())
	}
	return r
}

func (t *globalTerm) storeSlot(key string, value any, rev int64) {
	old, had := t.slots[key]
	delete(t.byJob, old.Job)
	if value == nil {
		delete(t.slots, key)
		if had {
			t.dropOrders(old, region.Slot{}, rev)
		}
		return
	}
	s := value.(region.Slot)
	s.Revision = rev
	if s.Generation == 0 {
		s.Generation = rev
	}
	t.slots[key] = s
	delete(t.byJob, s.Job)
	if had {
		t.dropOrders(old, s, rev)
	}
	t.putOrders(s, rev)
}

// putOrders puts the orders about a slot for its owner and for its former owners.
func (t *globalTerm) putOrders(s region.Slot, rev int64) {
	for _, o := range ordersOf(s) {
		t.region(o.Region).orders.PutAt(uint64(rev), o.WireKey(), slotOrder{slot: o, job: t.versionOf(o)})
	}
	t.wakeSessions(s)
}

// dropOrders removes the orders that were needed for old and are not needed for next.
func (t *globalTerm) dropOrders(old, next region.Slot, rev int64) {
	keep := map[string]bool{}
	if next.Job != "" {
		for _, o := range ordersOf(next) {
			keep[o.Region+"/"+o.WireKey()] = true
		}
	}
	for _, o := range ordersOf(old) {
		if !keep[o.Region+"/"+o.WireKey()] {
			t.region(o.Region).orders.DeleteAt(uint64(rev), o.WireKey())
		}
	}
	t.wakeSessions(old)
}

func (t *globalTerm) wakeSessions(s region.Slot) {
	for _, o := range ordersOf(s) {
		if r := t.region(o.Region); r.session != nil {
			r.session.wake()
		}
	}
}

// versionOf returns the version of the job that a slot has.
func (t *globalTerm) versionOf(s region.Slot) *jobVersion {
	if j := t.jobs[s.Job]; j != nil && j.version == s.JobVersion {
		return j.jobVersion
	}
	return t.w.versions[versionKey{s.Job, s.JobVersion}]
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

type versionKey struct {
	job     string
	version int64
}

// commit queues a transaction. Every transaction compares the election key, and all records that it
// writes. After a failed write it is unknown what is stored, so the term ends.
func (t *globalTerm) commit(build func() []store.Write, done func(ok bool)) {
	t.queue = append(t.queue, &request{build, done})
	t.commitNext()
}

func (t *globalTerm) commitNext() {
	if t.inFlight || len(t.queue) == 0 || t.ended() {
		return
	}
	r := t.queue[0]
	t.queue = t.queue[1:]
	ws := r.build()
	compares := []store.Compare{{Key: t.c.key, Create: true, Rev: t.c.create}}
	for _, o := range ws {
		compares = append(compares, store.Compare{Key: o.Key, Rev: t.mods[o.Key]})
	}
	ws = slices.DeleteFunc(ws, func(o store.Write) bool { return o.Compare })
	ws = t.trace(ws)
	if len(ws) == 0 {
		if r.done != nil {
			r.done(false)
		}
		t.commitNext()
		return
	}
	t.inFlight = true
	t.g.db.Call(2*time.Second, func(s *store.Store) (any, error) { return s.Txn(compares, ws) }, func(v any, err error) {
		t.inFlight = false
		switch {
		case t.ended():
			return
		case err != nil:
			t.c.end("a write failed: " + err.Error())
			return
		}
		t.rev = v.(int64)
		for _, o := range ws {
			t.store(o.Key, o.Value, t.rev)
		}
		t.w.watch.wrote(t, ws)
		if r.done != nil {
			r.done(true)
		}
		t.wakePlacer()
		t.commitNext()
	})
}

// trace adds the write that global/state/tx.go adds, so that a later term knows which revisions the
// earlier terms wrote.
func (t *globalTerm) trace(ws []store.Write) []store.Write {
	terms := t.leadership.terms
	first := !terms[len(terms)-1].Wrote
	if len(ws) == 0 || !first && slices.ContainsFunc(ws, func(o store.Write) bool { return !o.Delete }) {
		return ws
	}
	rec := t.leadership
	ws = slices.DeleteFunc(ws, func(o store.Write) bool {
		if o.Key == leadershipKey {
			rec = o.Value.(leadershipRecord)
		}
		return o.Key == leadershipKey
	})
	if first {
		rec.terms = region.Written(terms)
	}
	return append(ws, store.Write{Key: leadershipKey, Value: rec})
}

// putSlots turns the changes of a core into writes.
func putSlots(changes []region.Change) []store.Write {
	var out []store.Write
	for _, c := range changes {
		key := slotPrefix + c.Slot.Key()
		if c.Delete {
			out = append(out, store.Write{Key: key, Delete: true})
		} else {
			out = append(out, store.Write{Key: key, Value: c.Slot})
		}
	}
	// One transaction writes a key only once. If the changes delete a slot and also put it, the
	// slot is put.
	slices.SortStableFunc(out, func(a, b store.Write) int { return cmp.Compare(a.Key, b.Key) })
	return slices.CompactFunc(out, func(a, b store.Write) bool { return a.Key == b.Key && !a.Delete })
}

// slotsOf returns the slots of a job, sorted as package place needs them.
func (t *globalTerm) slotsOf(job string) []region.Slot {
	out, known := t.byJob[job]
	if known {
		return out
	}
	for _, s := range t.slots {
		if s.Job == job {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, compareSlots)
	t.byJob[job] = out
	return out
}

func compareSlots(a, b region.Slot) int {
	return cmp.Or(cmp.Compare(a.Job, b.Job), cmp.Compare(a.Group, b.Group), cmp.Compare(a.From, b.From), cmp.Compare(a.Region, b.Region))
}
