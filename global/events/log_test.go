package events

import (
	"context"
	"crypto/sha512"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/eventlog"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// roomy is the room of an almost empty transaction.
var roomy = Room{Bytes: 1 << 20, Writes: 100}

// world is a log with its store. Each commit is a transaction, as the committer of a term makes it.
type world struct {
	*testing.T
	store *store.MemoryClient
	log   *Log
	added int // events of commits
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, store: store.NewMemory().Client()}
	w.elect()
	return w
}

// elect begins a new term.
func (w *world) elect() {
	w.Helper()
	w.log = New(Config{Federation: "f", Age: DefaultAge})
	if _, err := w.log.Load(w.Context(), w.store); err != nil {
		w.Fatal(err)
	}
}

// commit makes a transaction with so many events of its own.
func (w *world) commit(n int, room Room) Sealed {
	w.Helper()
	drafts := make([]eventlog.Draft, n)
	for i := range drafts {
		w.added++
		drafts[i] = eventlog.Draft{At: time.Now(), Type: "job.submitted", Subject: fmt.Sprint("default/j", w.added), Format: "version %d, %x", Args: []any{i, sha512.Sum512(fmt.Append(nil, w.added))}}
	}
	s := w.log.Seal(drafts, room)
	w.write(s)
	w.log.Stored(s)
	return s
}

func (w *world) write(s Sealed) {
	w.Helper()
	var compares []store.Compare
	var ops []store.Op
	encode := func(m proto.Message) []byte {
		b, err := proto.MarshalOptions{}.MarshalAppend([]byte{formatProto}, m)
		if err != nil {
			w.Fatal(err)
		}
		return b
	}
	if s.Record != nil {
		compares, ops = append(compares, store.Mod(s.Key, 0)), append(ops, store.Put(s.Key, encode(s.Record)))
	}
	if s.Index != nil {
		ops = append(ops, store.Put(IndexKey, encode(s.Index)))
	}
	if s.RemoveBefore != "" {
		ops = append(ops, store.DeleteRange(Prefix, s.RemoveBefore))
	}
	if len(ops) > 0 {
		if _, err := w.store.Txn(w.Context(), compares, ops); err != nil {
			w.Fatal(err)
		}
	}
}

// after returns the numbers of the events after n, read in steps of this many. "+" and a number show
// how many events are missing.
func (w *world) after(n uint64, step int) (out []string) {
	w.Helper()
	for {
		events, missed, err := w.log.After(w.Context(), n, step)
		if err != nil {
			w.Fatal(err)
		}
		if missed > 0 {
			out = append(out, fmt.Sprint("+", missed))
			n = events[0].GetNumber() - 1
		}
		if len(events) == 0 {
			return out
		}
		if len(events) > step {
			w.Fatalf("%d events at once, want at most %d", len(events), step)
		}
		for _, e := range events {
			if n++; e.GetNumber() != n || e.GetLog() != "f" || e.GetToken() != eventlog.Token("f", n) {
				w.Fatalf("got %v, want number %d", e, n)
			}
			out = append(out, fmt.Sprint(n))
		}
	}
}

// TestConsumerSeesExactlyTheRest: whatever the sizes of the transactions and wherever elections happen,
// a consumer that resumes at any number gets each later event once, from memory or from the store.
func TestConsumerSeesExactlyTheRest(t *testing.T) {
	w, r := newWorld(t), rand.New(rand.NewPCG(5, 6))
	for w.added < eventlog.Retained+1500 {
		w.commit(1+r.IntN(40), roomy)
		if r.IntN(40) == 0 {
			w.elect()
		}
	}
	if len(w.log.index) < 2 {
		t.Fatalf("%d segments: the test needs more events", len(w.log.index))
	}
	last := uint64(w.added)
	if w.log.Last() != last {
		t.Fatalf("the last number is %d, want %d", w.log.Last(), last)
	}
	for n := uint64(0); n <= last; n += 1 + r.Uint64N(90) {
		if got := w.after(n, 1+r.IntN(600)); uint64(len(got)) != last-n {
			t.Fatalf("after %d: %d events, want %d", n, len(got), last-n)
		}
	}
	w.elect() // only the latest segment is in memory
	for n := uint64(0); n <= last; n += 1 + r.Uint64N(300) {
		if got := w.after(n, 1+r.IntN(600)); uint64(len(got)) != last-n {
			t.Fatalf("after %d in a new term: %d events, want %d", n, len(got), last-n)
		}
	}
	if _, _, err := w.log.After(t.Context(), last+1, 1); !errors.Is(err, ErrAhead) {
		t.Errorf("a cursor ahead of the log: %v", err)
	}
}

// TestLoadWithoutAnIndex: the log continues also if the store has no index, as after a transaction
// without room for it.
func TestLoadWithoutAnIndex(t *testing.T) {
	w := newWorld(t)
	for range 30 {
		if s := w.commit(3, Room{Bytes: 1 << 20, Writes: 1}); s.Index != nil {
			t.Fatal("an index although there is room for one write")
		}
	}
	w.elect()
	if got := w.after(0, 7); len(got) != 90 || w.log.Last() != 90 {
		t.Errorf("%d events, the last is %d", len(got), w.log.Last())
	}
}

// TestEventsThatNoTransactionStoresWait: they go with the next transaction, before its own events.
// Beyond the bound, they are shown without a number, and the numbers leave them out.
func TestEventsThatNoTransactionStoresWait(t *testing.T) {
	w := newWorld(t)
	watch, err := eventlog.NewWatch(t.Context(), w.log.Window, w.log, "0", 0)
	if err != nil {
		t.Fatal(err)
	}
	w.log.Add("region.connected", "alpha", "")
	w.log.AddAt("alpha", "instance.lost", "default/api", "")
	w.commit(1, roomy)
	events, _, err := watch.Next(t.Context())
	if err != nil || len(events) != 3 || events[0].GetType() != "region.connected" || events[1].GetRegion() != "alpha" || events[2].GetNumber() != 3 {
		t.Fatal(events, err)
	}
	for range maxWaiting + 5 {
		w.log.Add("region.connected", "alpha", "")
	}
	if n := w.log.Unstored(); n != 5 {
		t.Errorf("%d events beyond the bound, want 5", n)
	}
	if events, _, err = watch.Next(t.Context()); err != nil || len(events) != 5 || events[0].GetNumber() != 0 || events[0].GetToken() != "f-3" {
		t.Errorf("beyond the bound: %v, %v", events, err)
	}
	w.commit(1, roomy)
	if got := w.after(3, 10_000); len(got) != maxWaiting+2 || got[0] != "+5" || got[1] != "9" {
		t.Errorf("%d events, beginning with %v", len(got), got[:2])
	}
	w.elect()
	if got := w.after(3, 10_000); len(got) != maxWaiting+2 || got[0] != "+5" {
		t.Errorf("in a new term: %d events, beginning with %v", len(got), got[:2])
	}
}

// TestEventsOfAFullStore: while the store accepts no events, they are shown, and leave a gap. A
// transaction without room for all its events leaves the rest to the next one.
func TestEventsOfAFullStore(t *testing.T) {
	w := newWorld(t)
	w.commit(2, roomy)
	for name, room := range map[string]Room{"full": {Bytes: 1 << 20, Writes: 9, Full: true}, "held": {Bytes: 1 << 20, Writes: 9, Held: true}, "no write": {Bytes: 1 << 20}} {
		before := w.log.Unstored()
		if s := w.commit(2, room); s.Record != nil || s.Index != nil || w.log.Unstored() != before+2 {
			t.Errorf("%s: %v, %d not stored", name, s.Record, w.log.Unstored()-before)
		}
	}
	w.commit(1, roomy)
	if got := strings.Join(w.after(0, 9), " "); got != "1 2 +6 9" {
		t.Errorf("got %s", got)
	}
	w.log.Add("region.connected", "alpha", "")
	w.commit(10, Room{Bytes: 400, Writes: 9}) // room for some of its own, and not for the waiting one
	if left := len(w.log.waiting); left == 0 || left > 10 {
		t.Fatalf("%d events wait", left)
	}
	for len(w.log.waiting) > 0 {
		w.commit(0, roomy)
	}
	if got := w.after(9, 100); len(got) != 11 {
		t.Errorf("after the small transaction: %v", got)
	}
}

// TestRunStoresWhatWaits: waiting events get a transaction of their own within a moment. If the store
// accepts none, they are shown.
func TestRunStoresWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		held, flushes := false, 0
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- w.log.Run(ctx, func(context.Context) error {
				flushes++
				if held {
					return ErrHeld
				}
				w.commit(0, roomy)
				return nil
			})
		}()
		time.Sleep(time.Hour)
		if flushes > 0 {
			t.Errorf("%d transactions without an event", flushes)
		}
		for range 100 {
			w.log.Add("region.connected", "alpha", "")
		}
		time.Sleep(pause)
		synctest.Wait()
		if w.log.Last() != 100 || flushes != 1 {
			t.Errorf("%d events are stored with %d transactions", w.log.Last(), flushes)
		}
		held = true
		w.log.Add("store.conflict", "alpha", "")
		time.Sleep(pause)
		synctest.Wait()
		if w.log.Last() != 100 || w.log.Unstored() != 1 {
			t.Errorf("the last number is %d, %d events are not stored", w.log.Last(), w.log.Unstored())
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// TestRetention: events beyond the size or the age are removed in bounded transactions, and a consumer
// learns how many it has missed.
func TestRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for range 16 * 40 {
			w.commit(50, roomy)
			time.Sleep(time.Minute)
		}
		last, most := w.log.Last(), int64(600<<10)
		before, transactions := w.log.Bytes(), 0
		for w.log.Expire(most, time.Time{}) {
			if s := w.commit(0, roomy); s.expired > maxExpired {
				t.Fatalf("%d segments in one transaction", s.expired)
			}
			transactions++
		}
		if after := w.log.Bytes(); after > most || after < most-2*segmentBytes || before < 2*most || transactions < 1 {
			t.Errorf("%d of %d bytes are left, want at most %d", after, before, most)
		}
		for range 2 { // also in a new term
			got := w.after(0, 999)
			if first := w.log.index[0].first; got[0] != fmt.Sprint("+", first-1) || uint64(len(got)) != last-first+2 {
				t.Errorf("%d events after %s, the first has number %d", len(got)-1, got[0], first)
			}
			w.elect()
		}
		n, complete, begin, err := w.log.Since(t.Context(), time.Now().Add(-time.Hour*24))
		if err != nil || complete || n != w.log.index[0].first-1 || begin.UnixMilli() != w.log.index[0].time {
			t.Errorf("since a day: after %d, complete %v, from %v on, %v", n, complete, begin, err)
		}
		if n, complete, _, err := w.log.Since(t.Context(), time.Now().Add(-10*time.Minute+time.Second)); err != nil || !complete || n != last-9*50 {
			t.Errorf("since 10 minutes: after %d, complete %v, %v", n, complete, err)
		}
		time.Sleep(DefaultAge)
		w.commit(1, roomy) // begins a segment, because the latest one is old
		if w.log.Expire(1<<40, time.Now().Add(-DefaultAge-16*time.Hour)) {
			t.Error("events are removed that are not too old")
		}
		time.Sleep(DefaultAge / 2)
		for w.log.Expire(1<<40, time.Now().Add(-DefaultAge/2)) {
			w.commit(0, roomy)
		}
		if got := w.after(last, 5); len(got) != 1 || len(w.log.index) != 1 {
			t.Errorf("%v in %d segments are left", got, len(w.log.index))
		}
		stored := 0
		if _, err := w.store.List(t.Context(), Prefix, func(store.KV) error { stored++; return nil }); err != nil || stored != 1 {
			t.Errorf("%d records are left, %v", stored, err)
		}
	})
}

// TestNumbersAfterARecovery: the numbers of lost events are not used again, and a consumer learns
// that events are lost.
func TestNumbersAfterARecovery(t *testing.T) {
	w := newWorld(t)
	w.commit(5, roomy)
	recovers := roomy
	recovers.Recovers = true
	w.commit(1, recovers)
	w.commit(1, roomy)
	w.elect()
	w.commit(1, roomy)
	const next = eventlog.Jump + 1
	if got := w.after(4, 1); fmt.Sprint(got) != fmt.Sprint([]any{5, "+1", next, next + 1, next + 2}) {
		t.Errorf("got %v", got)
	}
	// A consumer that saw events which the copy does not have.
	if got := w.after(9, 1); fmt.Sprint(got) != fmt.Sprint([]any{"+1", next, next + 1, next + 2}) {
		t.Errorf("got %v", got)
	}
	w.commit(1, recovers)
	if w.log.Last() != 2*eventlog.Jump+1 {
		t.Errorf("after the second recovery: %d", w.log.Last())
	}
}

func TestDamagedRecordsAreRefused(t *testing.T) {
	good, err := proto.Marshal(&nusav1.EventIndex{First: []uint64{1}, Time: []int64{1}, Bytes: []int64{1}})
	if err != nil {
		t.Fatal(err)
	}
	unequal, err := proto.Marshal(&nusav1.EventIndex{First: []uint64{1, 1}, Time: []int64{1, 1}, Bytes: []int64{1, 1}})
	if err != nil {
		t.Fatal(err)
	}
	for name, kv := range map[string]store.KV{
		"a newer format":    {Key: IndexKey, Value: append([]byte{2}, good...)},
		"no value":          {Key: IndexKey},
		"descending":        {Key: IndexKey, Value: append([]byte{formatProto}, unequal...)},
		"no number":         {Key: Prefix + "x", Value: []byte{formatProto}},
		"an empty record":   {Key: Key(1), Value: []byte{formatProto}},
		"a damaged message": {Key: Key(1), Value: []byte{formatProto, 0xff, 0xff}},
	} {
		c := store.NewMemory().Client()
		if _, err := c.Txn(t.Context(), nil, []store.Op{store.Put(kv.Key, kv.Value)}); err != nil {
			t.Fatal(err)
		}
		if _, err := New(Config{Federation: "f"}).Load(t.Context(), c); err == nil || !strings.Contains(err.Error(), kv.Key) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzRecord: the decoders of stored values accept any bytes without a panic.
func FuzzRecord(f *testing.F) {
	rec, _ := eventlog.Pack([]eventlog.Event{{Type: "job.submitted", Subject: "default/api"}}, 1<<20)
	b, err := proto.Marshal(rec)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(Key(1), append([]byte{formatProto}, b...))
	f.Add(Prefix, []byte{})
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		kv := store.KV{Key: key, Value: value}
		if r, err := decodeRecord(kv); err == nil && (len(r.events) == 0 || r.first == 0) {
			t.Fatalf("%q: %v", key, r)
		}
		x := new(nusav1.EventIndex)
		if decode(kv, x) == nil {
			if got, err := indexOf(x); err == nil && len(got) > 0 {
				got.expired(0, time.Now())
				got.segmentOf(1)
			}
		}
	})
}
