package state

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/events"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/eventlog"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// txChange is one key to write. Without msg, slot and job it deletes the key.
type txChange struct {
	key   string
	msg   proto.Message
	value []byte
	// slot is the slot to store. It is nil for other records. If slot is set, msg is nil.
	// Nobody may change the slot.
	slot *region.Slot
	ttl  time.Duration
	// end, if set, makes the change remove all keys from key on and before end.
	end string
	// job is the record of a job to store. It is nil for other records. If it is set, msg is nil.
	job *Record
	// known is the revision of the key in the state. The store refuses the transaction if the key
	// has another revision, unless unchecked is set.
	known     int64
	unchecked bool
	// before is the position after that of the previous change of a slot of the same job; 0: there is
	// none. See Tx.slots.
	before int
}

// puts reports whether the change stores a record.
func (ch *txChange) puts() bool { return ch.msg != nil || ch.slot != nil || ch.job != nil }

// Tx is a transaction that is being prepared: the state with changes laid over it. Several requests
// may share a Tx. The fields whose names end in At hold where the changes of the present request
// begin, so that rollback can remove them. The caller of the methods holds the state's lock.
type Tx struct {
	State   *State
	changes []txChange
	at      map[string]int // positions in changes, by key
	// slots has, by job, the position after that of the latest change that writes or removes a slot of
	// the job. txChange.before leads to the others.
	slots  map[JobKey]int
	size   int
	undo   []txChange // previous versions of overwritten changes
	undoAt []int      // the positions of undo in changes
	// expected are records that the store compares and does not write.
	expected   []txChange
	expectedAt int
	// fresh are the submitted jobs that have no record in the store yet. room is the number of writes
	// that are reserved for the slots of these jobs.
	fresh                 []JobKey
	freshAt, room, roomAt int
	// audit has the entries for the audit trail: see Tx.Audit. by is the caller of the present
	// request.
	audit   []audit.Entry
	auditAt int
	by      audit.Call
	// ops is the greatest number of keys that the transaction may write or compare.
	ops int
	// events are stored with the transaction. See Tx.Event.
	events   []eventlog.Draft
	eventsAt int
	// raise, if above 0, makes the revision of this transaction, and all later ones, greater than
	// raise.
	raise int64
	// dry: the transaction is never stored.
	dry bool
	// Scratch is memory for AppendSlots that the requests of the transaction share. Its content is
	// valid only within a request.
	Scratch []region.Slot
	// values has the encoded slots of changes one after another.
	values []byte
}

// keptValues is the greatest number of bytes of encoded slots for which the next transaction gets the memory.
const keptValues = 512 << 10

// slotBytes is the size that is reserved for each slot that Decide will add.
const slotBytes = 1024

// NewTx returns an empty transaction.
func NewTx(st *State) *Tx {
	return &Tx{State: st, at: map[string]int{}, slots: map[JobKey]int{}, ops: commitOps}
}

// again empties a transaction that is stored, so that its memory serves the next one. The entries for
// the audit trail are not used again, because others may keep them.
func (t *Tx) again() *Tx {
	clear(t.at)
	clear(t.slots)
	clear(t.changes)
	clear(t.events)
	clear(t.Scratch)
	if cap(t.values) > keptValues {
		t.values = nil
	}
	return &Tx{
		State: t.State, at: t.at, slots: t.slots, ops: commitOps, changes: t.changes[:0], events: t.events[:0],
		audit: make([]audit.Entry, 0, len(t.audit)), Scratch: t.Scratch[:0],
		values: t.values[:0], fresh: t.fresh[:0],
	}
}

// mark notes where a request's changes begin, for rollback.
func (t *Tx) mark() int {
	t.undo, t.undoAt, t.expectedAt, t.freshAt = nil, nil, len(t.expected), len(t.fresh)
	t.roomAt, t.eventsAt, t.auditAt = t.room, len(t.events), len(t.audit)
	return len(t.changes)
}

func (t *Tx) rollback(mark int) {
	for i := len(t.undo) - 1; i >= 0; i-- {
		t.changes[t.undoAt[i]] = t.undo[i]
	}
	for i := len(t.changes) - 1; i >= mark; i-- {
		ch := &t.changes[i]
		delete(t.at, ch.key)
		if strings.HasPrefix(ch.key, slotPrefix) {
			k := jobOfKey(ch.key, slotPrefix)
			k.Name, _, _ = strings.Cut(k.Name, "/")
			t.slots[k] = ch.before
		}
	}
	t.changes, t.expected, t.fresh = t.changes[:mark], t.expected[:t.expectedAt], t.fresh[:t.freshAt]
	t.size, t.room, t.events = 0, t.roomAt, t.events[:t.eventsAt]
	for _, ch := range t.changes {
		t.size += len(ch.key) + len(ch.value) + 64
	}
	t.audit = t.audit[:t.auditAt]
	for i := range t.audit {
		t.size += auditSize(&t.audit[i])
	}
	t.size += t.eventBytes()
}

func (t *Tx) checkSize() error {
	records := auditWrites*min(1, len(t.audit)) + events.Writes*min(1, len(t.events))
	if len(t.changes)+len(t.expected)+t.room+records > t.ops || t.size+t.room*slotBytes > commitBytes {
		return fmt.Errorf("%w: %d writes of %d bytes", errTxFull, len(t.changes), t.size)
	}
	return nil
}

// Crowded reports whether another job may not fit into the transaction, with the room that its slots need: a request
// that submits several jobs leaves the rest to the next transaction.
func (t *Tx) Crowded() bool {
	const others = 16 // writes of the job besides its slots, of its request, and of the audit and event logs
	room := t.room + t.ops/4
	return len(t.changes)+len(t.expected)+room+others > t.ops || t.size+(room+others)*slotBytes+job.MaxSize > commitBytes
}

// submitFresh notes that the transaction submits a job that the store does not have, so that its
// slots can be decided in the same transaction. It reserves writes for as many slots as the job may
// get, but for at most a quarter of a transaction, because other jobs need some, too.
func (t *Tx) submitFresh(k JobKey, rec *Record) {
	slots := 0
	for i := range rec.spec.job.Groups {
		g := &rec.spec.job.Groups[i]
		most := max(1, min(g.Count, len(t.State.Regions)))
		if g.Regions.SpreadMax > 0 {
			most = min(most, g.Regions.SpreadMax)
		}
		slots += most
	}
	t.fresh, t.room = append(t.fresh, k), t.room+min(slots, t.ops/4)
}

// Fresh returns the jobs that the transaction submits and that the store does not have.
func (t *Tx) Fresh() []JobKey { return t.fresh }

// Try makes changes if they fit into the transaction together with the present ones. It reports
// whether they did. No request may follow, because the changes take the room that submitFresh
// reserved.
func (t *Tx) Try(change func() error) bool {
	mark := t.mark()
	t.room = 0
	err := change()
	if err == nil {
		err = t.checkSize()
	}
	if err != nil {
		t.rollback(mark)
	}
	return err == nil
}

// newRegions returns how many regions the transaction adds.
func (t *Tx) newRegions() (n int) {
	for i := range t.changes {
		name, is := strings.CutPrefix(t.changes[i].key, RegionPrefix)
		if is && t.changes[i].puts() && t.State.Regions[name] == nil {
			n++
		}
	}
	return n
}

// Event adds a durable event, which is stored with the changes of the transaction, or not at all. The
// message is formatted later, so the caller must not change args afterwards.
func (t *Tx) Event(kind, subject, format string, args ...any) {
	t.EventAt("", kind, subject, format, args...)
}

// EventAt is Event for an event about a region that its subject does not name.
func (t *Tx) EventAt(region, kind, subject, format string, args ...any) {
	t.addEvent(eventlog.Draft{Type: kind, Subject: subject, Region: region, Format: format, Args: args})
}

// EventText is EventAt with a message that text returns.
func (t *Tx) EventText(region, kind, subject string, text fmt.Stringer) {
	t.addEvent(eventlog.Draft{Type: kind, Subject: subject, Region: region, Text: text})
}

func (t *Tx) addEvent(d eventlog.Draft) {
	d.At = time.Now()
	t.events = append(t.events, d)
	t.size += d.Size()
}

func (t *Tx) eventBytes() (bytes int) {
	for i := range t.events {
		bytes += t.events[i].Size()
	}
	return bytes
}

// sealEvents puts the record of the events, and of those that wait in the log. The committer calls it
// when no further request joins the transaction.
func (t *Tx) sealEvents() (events.Sealed, error) {
	t.State.Lock()
	room := events.Room{
		Bytes: commitBytes - t.size + t.eventBytes(), Writes: t.ops - len(t.changes) - len(t.expected),
		Held: t.State.Leadership.GetConflict() != nil && t.raise == 0, Full: t.State.Room.Usage().NoSpace, Recovers: t.raise > 0,
	}
	t.State.Unlock()
	sealed := t.State.Events.Seal(t.events, room) // without the lock, because it formats every event
	changes := make([]txChange, 0, 3)
	if sealed.Record != nil {
		changes = append(changes, txChange{key: sealed.Key, msg: sealed.Record})
	}
	if sealed.Index != nil {
		changes = append(changes, txChange{key: events.IndexKey, msg: sealed.Index, unchecked: true})
	}
	if sealed.RemoveBefore != "" {
		changes = append(changes, txChange{key: events.Prefix, end: sealed.RemoveBefore, unchecked: true})
	}
	for _, ch := range changes {
		if err := t.set(ch); err != nil {
			return sealed, err
		}
	}
	return sealed, nil
}

// checkConflict refuses changes while the store must be recovered, except those of the recovery and
// their audit. mark is where the request's changes begin.
func (t *Tx) checkConflict(mark int) error {
	if t.State.Leadership.GetConflict() == nil {
		return nil
	}
	recovers := false
	for _, ch := range t.changes[mark:] {
		record := ch.puts() && strings.HasPrefix(ch.key, AuditPrefix)
		if ch.key != leadershipKey && !record {
			return ErrConflict
		}
		recovers = recovers || ch.key == leadershipKey
	}
	if len(t.audit) > t.auditAt && !recovers {
		return ErrConflict
	}
	return nil
}

// trace makes sure that some stored record outside the history has the transaction's revision, so
// that a later term knows which revisions the earlier terms wrote. For that, a transaction that only
// deletes, or only puts records of the history, also writes the leadership record.
//
// The first transaction of a term also writes that record, with the last revision of the earlier
// terms, because from now on the other records do not show that revision.
//
// A store without space accepts only deletions. shown is then false, and the revision must not
// become known to any region. The lock is held.
func (t *Tx) trace() (shown bool, err error) {
	shows := func(ch txChange) bool {
		return ch.puts() && slices.ContainsFunc(loaded[:], func(prefix string) bool { return strings.HasPrefix(ch.key, prefix) })
	}
	rec, terms := t.State.Leadership, t.State.Sessions.Terms
	first := len(terms) > 0 && !terms[len(terms)-1].Wrote
	if rec == nil || len(t.changes) == 0 || !first && slices.ContainsFunc(t.changes, shows) {
		return true, nil
	}
	puts := func(ch txChange) bool { return ch.puts() }
	if t.State.Room.Usage().NoSpace && !slices.ContainsFunc(t.changes, puts) {
		return false, nil
	}
	if !first {
		return true, t.putUnchecked(leadershipKey, rec)
	}
	ch, has := t.find(leadershipKey)
	if put, ok := ch.msg.(*nusav1.LeadershipRecord); ok {
		rec = put
	}
	rec = proto.CloneOf(rec)
	rec.Terms, rec.HistoryTracedTerm = beginningsToProto(region.Written(terms)), rec.GetTerm().GetNumber()
	return true, t.set(txChange{key: leadershipKey, msg: rec, unchecked: !has})
}

func (t *Tx) find(key string) (txChange, bool) {
	if i, ok := t.at[key]; ok {
		return t.changes[i], true
	}
	return txChange{}, false
}

// findOf is find for the key of a record of a job. It makes no string.
func (t *Tx) findOf(prefix string, k JobKey) (txChange, bool) {
	var most [keyLength]byte
	key := append(append(append(append(most[:0], prefix...), k.Namespace...), '/'), k.Name...)
	if i, ok := t.at[string(key)]; ok {
		return t.changes[i], true
	}
	return txChange{}, false
}

// changesSlot reports whether the transaction writes or removes a slot. It makes no string.
func (t *Tx) changesSlot(s *region.Slot) bool {
	var most [keyLength]byte
	_, ok := t.at[string(appendSlotKey(most[:0], s))]
	return ok
}

func (t *Tx) set(ch txChange) error {
	var err error
	switch {
	case ch.slot != nil:
		at := len(t.values)
		t.values, err = appendSlot(t.values, ch.slot)
		ch.value = t.values[at:len(t.values):len(t.values)]
	case ch.job != nil:
		ch.value = ch.job.stored()
	case ch.msg != nil:
		ch.value, err = Encode(ch.msg)
	}
	if err != nil {
		return err
	}
	t.size += len(ch.key) + len(ch.value) + 64
	if i, ok := t.at[ch.key]; ok {
		ch.known, ch.before = t.changes[i].known, t.changes[i].before
		t.undo, t.undoAt = append(t.undo, t.changes[i]), append(t.undoAt, i)
		t.changes[i] = ch
		return nil
	}
	t.at[ch.key] = len(t.changes)
	t.changes = append(t.changes, ch)
	return nil
}

// putUnchecked writes a record without a compare, because only one kind of request writes such
// records.
func (t *Tx) putUnchecked(key string, m proto.Message) error {
	return t.set(txChange{key: key, msg: m, unchecked: true})
}

// deleteUnchecked removes a record that putUnchecked wrote.
func (t *Tx) deleteUnchecked(key string) error { return t.set(txChange{key: key, unchecked: true}) }

// putNew writes a record under a key that must not exist.
func (t *Tx) putNew(key string, m proto.Message, ttl time.Duration) error {
	return t.set(txChange{key: key, msg: m, ttl: ttl})
}

// batch holds the requests of one transaction.
type batch struct {
	tx       *Tx
	members  []commitRequest
	refused  []commitRequest
	refusals []error // one for each refused request
	// carry is the first request that did not fit. It goes into the next batch.
	carry *commitRequest
	// stored is what Decide returned.
	stored func()
	// unsealed is the reason why the audit trail cannot be written. While it is set,
	// nothing is written.
	unsealed error
	// decideMost is the number of groups of new jobs at which the batch is full.
	decideMost int
}

func (b *batch) full() bool {
	return b.carry != nil || len(b.members)+len(b.refused) >= commitRequests || b.tx.room >= b.decideMost
}

// add prepares a request in the transaction. The lock is held.
func (b *batch) add(req commitRequest) {
	mark := b.tx.mark()
	b.tx.by = req.by
	err := req.prepare(b.tx)
	if err == nil {
		err = b.tx.checkConflict(mark)
	}
	if err == nil {
		err = b.tx.checkSize()
	}
	if err == nil {
		b.members = append(b.members, req)
		return
	}
	b.tx.rollback(mark)
	if errors.Is(err, errTxFull) {
		if len(b.members) > 0 {
			b.carry = &req
			return
		}
		err = fmt.Errorf("%w: %w", store.ErrTooLarge, err)
	}
	b.refused, b.refusals = append(b.refused, req), append(b.refusals, err)
}
