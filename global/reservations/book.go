package reservations

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/notify"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// The kinds of the keys: see state.OtherKey.
const (
	recordKind = "reservations"
	claimKind  = "reservation-claims"
)

// endedMost and endedBytes bound the records of reservations that have ended. The oldest are forgotten first. No
// limit on jobs counts these records, because their jobs are gone.
const endedMost, endedBytes = 100_000, 256 << 20

// Config configures a Book.
type Config struct {
	Term *api.Term
	// Retention is how long the record of a reservation that has ended is stored.
	Retention time.Duration
}

// Book has the reservations of one leadership term. The state's lock guards its fields.
type Book struct {
	cfg   Config
	st    *state.State
	byID  map[string]*entry
	open  map[string]*entry // processing
	held  map[string]*entry // completed
	ended []ended           // in the order in which they ended; it may have ids that are forgotten
	// bytes is about what the records of ended take in the store, and most bounds it.
	bytes, most int
	// wake is notified when a reservation became open.
	wake notify.Signal
	// looked is how long the loop has looked at the reservations last. Only the loop uses it.
	looked time.Duration
	// retries has the regions that did not answer the latest call.
	retries map[string]retry
	// ready is closed when the stored records are read.
	ready chan struct{}
}

type ended struct {
	id    string
	at    time.Time
	bytes int
}

// sizeOf returns about how many bytes a record takes in the store, with the text of its claim.
func sizeOf(rec *nusav1.ReservationRecord) int {
	n := proto.Size(rec)
	if rec.GetReservation().GetClaim() != nil {
		n += maxBy + maxText
	}
	return n
}

// entry is one reservation. Its record is never changed in place.
type entry struct {
	rec   *nusav1.Reservation
	print []byte
	// since is when this server learned of the reservation: a new active server counts the wait again.
	since time.Duration
	// stamp is the value of Job.Stamp that was last looked at.
	stamp uint64
	// wants is the region that knows the node of the instance. Empty: no region has to be asked.
	wants string
	// locating: the region is being asked.
	locating bool
}

// New returns the book of a term. It must be made before the term serves, and Run must be called.
func New(cfg Config) *Book {
	b := &Book{cfg: cfg, st: cfg.Term.State, byID: map[string]*entry{}, open: map[string]*entry{}, held: map[string]*entry{}, retries: map[string]retry{}, ready: make(chan struct{}), most: endedBytes}
	b.st.Lock()
	defer b.st.Unlock()
	if b.st.Others == nil {
		b.st.Others = map[string]func(string, proto.Message){}
	}
	b.st.Others[recordKind] = b.apply
	return b
}

func recordKey(id string) string { return state.OtherKey(recordKind, id) }
func claimKey(id string) string  { return state.OtherKey(claimKind, id) }

// apply notes a stored record. The lock is held.
func (b *Book) apply(id string, m proto.Message) {
	rec, _ := m.(*nusav1.ReservationRecord)
	e := b.byID[id]
	delete(b.open, id)
	delete(b.held, id)
	if rec == nil {
		delete(b.byID, id)
		return
	}
	if e == nil {
		e = &entry{since: b.st.Clock()}
		b.byID[id] = e
	}
	over := e.rec.GetEnded() != nil
	e.rec, e.print = rec.GetReservation(), rec.GetFingerprint()
	switch e.rec.GetState() {
	case nusav1.ReservationState_RESERVATION_STATE_PROCESSING:
		b.open[id] = e
		b.wake.Notify()
	case nusav1.ReservationState_RESERVATION_STATE_COMPLETED:
		b.held[id] = e
	default:
		if !over {
			b.ended = append(b.ended, ended{id, e.rec.GetEnded().AsTime(), sizeOf(rec)})
			b.bytes += sizeOf(rec)
		}
	}
}

// load reads the stored records. Records that were stored or removed in this term are newer than what it
// reads.
func (b *Book) load(ctx context.Context) error {
	var all []*nusav1.ReservationRecord
	_, err := b.cfg.Term.Store.List(ctx, recordKey(""), func(kv store.KV) error {
		rec := &nusav1.ReservationRecord{}
		all = append(all, rec)
		return state.Decode(kv, rec)
	})
	if err != nil {
		return fmt.Errorf("read the reservations: %w", err)
	}
	slices.SortFunc(all, func(x, y *nusav1.ReservationRecord) int {
		return x.GetReservation().GetEnded().AsTime().Compare(y.GetReservation().GetEnded().AsTime())
	})
	b.st.Lock()
	defer b.st.Unlock()
	for _, rec := range all {
		if id := rec.GetReservation().GetId(); b.byID[id] == nil {
			b.apply(id, rec)
		}
	}
	return nil
}

// present returns the record of a reservation as a transaction leaves it, or nil.
func (b *Book) present(t *state.Tx, id string) *nusav1.ReservationRecord {
	if m, changed := state.OtherOf(t, recordKey(id)); changed {
		rec, _ := m.(*nusav1.ReservationRecord)
		return rec
	}
	if e := b.byID[id]; e != nil {
		return &nusav1.ReservationRecord{Reservation: e.rec, Fingerprint: e.print}
	}
	return nil
}

// Exists reports whether a transaction leaves a reservation, which may have ended.
func (b *Book) Exists(t *state.Tx, id string) bool { return b.present(t, id) != nil }

// edit changes a record in a transaction, if it exists. change returns false if the record stays.
func (b *Book) edit(t *state.Tx, id string, change func(*nusav1.Reservation) bool) error {
	rec := b.present(t, id)
	if rec == nil {
		return nil
	}
	next := proto.CloneOf(rec)
	if !change(next.GetReservation()) {
		return nil
	}
	return state.PutOther(t, recordKey(id), next)
}

// end ends a reservation in a transaction, and stops its job and lets it be forgotten.
func (b *Book) end(t *state.Tx, id string, to nusav1.ReservationState, reason nusav1.Reason, message string) error {
	var job state.JobKey
	err := b.edit(t, id, func(r *nusav1.Reservation) bool {
		if r.GetEnded() != nil {
			return false
		}
		job = keyOf(r)
		r.State, r.Reason, r.Message, r.Ended = to, reason, message, timestamppb.Now()
		if to == nusav1.ReservationState_RESERVATION_STATE_FAILED {
			t.Event("reservation.failed", job.Namespace+"/"+id, "%s", message)
		}
		return true
	})
	if err != nil || job.Name == "" {
		return err
	}
	return stopJob(t, job)
}

// stopJob stops a job and lets it be forgotten. A job in the history stays there.
func stopJob(t *state.Tx, k state.JobKey) error {
	old, rev := t.Job(k)
	switch {
	case old == nil || old.Stopped() && old.Purge():
		return nil
	case len(t.Slots(k, "")) == 0:
		return t.DeleteJob(k)
	}
	next := old.Full()
	next.Job.Stopped, next.Job.Run, next.Purge = true, old.Run(rev), true
	return t.PutJob(k, next)
}

func keyOf(r *nusav1.Reservation) state.JobKey {
	return state.JobKey{Namespace: r.GetRequest().GetNamespace(), Name: r.GetJob()}
}

// find returns a reservation. The lock is not held.
func (b *Book) find(id string) *nusav1.Reservation {
	b.st.Lock()
	defer b.st.Unlock()
	if e := b.byID[strings.ToLower(id)]; e != nil {
		return e.rec
	}
	return nil
}

// Find returns reservations by their ids, nil for each that there is not. ok is false until the stored
// records are read.
func (b *Book) Find(ids []string) (all []*nusav1.Reservation, ok bool) {
	select {
	case <-b.ready:
	default:
		return nil, false
	}
	b.st.Lock()
	defer b.st.Unlock()
	for _, id := range ids {
		if e := b.byID[id]; e != nil {
			all = append(all, e.rec)
			continue
		}
		all = append(all, nil)
	}
	return all, true
}

// filter returns the first reservations after an id for which wanted returns true.
func (b *Book) filter(after string, most int, wanted func(*nusav1.Reservation) bool) (out []*nusav1.Reservation, more bool) {
	b.st.Lock()
	ids := make([]string, 0, len(b.byID))
	for id := range b.byID {
		if id > after {
			ids = append(ids, id)
		}
	}
	b.st.Unlock()
	slices.Sort(ids)
	for _, id := range ids {
		r := b.find(id)
		if r == nil || !wanted(r) {
			continue
		}
		if len(out) == most {
			return out, true
		}
		out = append(out, r)
	}
	return out, false
}
