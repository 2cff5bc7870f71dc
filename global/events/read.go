package events

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/eventlog"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxRead is the greatest number of events that After returns.
const maxRead = 1000

// formatProto is the format byte of a value that is a protobuf message.
const formatProto = 1

// ErrFormat says that a newer version of Nusa, or a foreign program, wrote a value.
var ErrFormat = errors.New("unknown format of an event record")

// ErrAhead says that a consumer has the number of an event that this log does not have: the store was
// restored from an old copy.
var ErrAhead = errors.New("the cursor is ahead of the log: the store was restored from an old copy; read the present state, and continue with the latest number")

func decode(kv store.KV, m proto.Message) error {
	if len(kv.Value) == 0 || kv.Value[0] != formatProto {
		return fmt.Errorf("%s: %w; was it written by a newer version?", kv.Key, ErrFormat)
	}
	if err := proto.Unmarshal(kv.Value[1:], m); err != nil {
		return fmt.Errorf("%s: %w: %w", kv.Key, ErrFormat, err)
	}
	return nil
}

// numberOf returns the number in the key of a record.
func numberOf(key string) (uint64, error) {
	number, err := strconv.ParseUint(key[min(len(key), len(Prefix)):], 10, 64)
	if err != nil || number == 0 {
		return 0, fmt.Errorf("%s: %w", key, ErrFormat)
	}
	return number, nil
}

// record is a stored record.
type record struct {
	first  uint64
	time   int64
	events []eventlog.Event
}

func decodeRecord(kv store.KV) (record, error) {
	first, err := numberOf(kv.Key)
	if err != nil {
		return record{}, err
	}
	rec := new(nusav1.EventRecord)
	if err := decode(kv, rec); err != nil {
		return record{}, err
	}
	events, err := eventlog.Unpack(first, rec)
	if err == nil && len(events) == 0 {
		err = eventlog.ErrRecord
	}
	if err != nil {
		return record{}, fmt.Errorf("%s: %w", kv.Key, err)
	}
	return record{first, rec.GetTime(), events}, nil
}

// Load reads the index and the latest segment, so that the log continues. It returns the greatest
// revision of a record.
func (l *Log) Load(ctx context.Context, s store.Store) (revision int64, err error) {
	kv, ok, _, err := s.Get(ctx, IndexKey)
	if err != nil {
		return 0, err
	}
	var x index
	if ok {
		stored := new(nusav1.EventIndex)
		if err := decode(kv, stored); err != nil {
			return 0, err
		}
		if x, err = indexOf(stored); err != nil {
			return 0, fmt.Errorf("%s: %w", IndexKey, err)
		}
	}
	from := Prefix
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(x); n > 0 {
		from, x[n-1].bytes = Key(x[n-1].first), 0
		l.Begin(x[n-1].first - 1)
	}
	first := len(x) == 0
	_, err = s.Range(ctx, from, End, func(kv store.KV) error {
		r, err := decodeRecord(kv)
		if err != nil {
			return err
		}
		if first {
			l.Begin(r.first - 1)
			first = false
		}
		revision = max(revision, kv.ModRevision)
		bytes := int64(len(kv.Key) + len(kv.Value) + recordCost)
		if n := len(x); n > 0 && x[n-1].first == r.first {
			x[n-1].bytes += bytes
		} else {
			x, _ = x.add(r.first, r.time, bytes, l.cfg.Age)
		}
		l.Append(r.events...)
		return nil
	})
	l.index, l.store = x, s
	return revision, err
}

// After returns durable events with numbers above n, in order, at most max. missed is how many events
// between n and the first event are lost: see eventlog.Missed. The list ends before a later gap.
// ErrAhead: the log does not have event n yet.
func (l *Log) After(ctx context.Context, n uint64, most int) (events []*nusav1.Event, missed uint64, err error) {
	most = min(most, maxRead)
	if last := l.Last(); n > last {
		return nil, 0, fmt.Errorf("%w: the cursor is %d, the latest event has number %d", ErrAhead, n, last)
	}
	if events, missed, ok := l.Window.After(n, most); ok || most <= 0 {
		return events, missed, nil
	}
	l.mu.Lock()
	from := n + 1
	if len(l.index) > 0 {
		from = max(from, l.index[0].first) // retention has removed the events before
	}
	segment, s := l.index.segmentOf(from), l.store
	r, cached := l.records.find(from)
	l.mu.Unlock()
	if s == nil {
		return nil, 0, nil // not loaded
	}
	if !cached {
		r, err = l.readRecord(ctx, s, from, segment)
		if err != nil || len(r.events) == 0 {
			return nil, 0, err
		}
	}
	all := make([]eventlog.Event, 0, most)
	for _, e := range r.events {
		if e.Number > n {
			all = append(all, e)
		}
	}
	if len(all) == 0 {
		return nil, 0, nil
	}
	if len(all) < most {
		all, r, err = l.readMore(ctx, s, all, r, most)
	}
	l.mu.Lock()
	l.records.put(r)
	l.mu.Unlock()
	for i := range all[:min(len(all), most)] {
		events = append(events, all[i].Proto(l.Log(), eventlog.Token(l.Log(), all[i].Number)))
	}
	return events, eventlog.Missed(n, all[0].Number), err
}

// readMore adds the events of the next records, until there are as many as most, or until a gap. It
// returns the last record, too.
func (l *Log) readMore(ctx context.Context, s store.Store, all []eventlog.Event, last record, most int) ([]eventlog.Event, record, error) {
	next := all[len(all)-1].Number + 1
	_, err := s.Range(ctx, Key(next), Key(next+uint64(most-len(all))), func(kv store.KV) error {
		r, err := decodeRecord(kv)
		if err != nil {
			return err
		}
		if r.first != next || len(all) >= most {
			return errEnough
		}
		all, last, next = append(all, r.events...), r, r.first+uint64(len(r.events))
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return all, last, err
}

// errEnough ends a list.
var errEnough = errors.New("enough")

// readRecord returns the record that has an event, or the next one if no record has it. segment is
// the number of the first event of a record that is not later. The zero record: there is none.
func (l *Log) readRecord(ctx context.Context, s store.Store, number, segment uint64) (record, error) {
	kv, ok, _, err := s.Get(ctx, Key(number))
	if err != nil {
		return record{}, err
	}
	if ok {
		return decodeRecord(kv)
	}
	// The latest record that begins before the number may have the event.
	var earlier store.KV
	_, err = s.Range(ctx, Key(segment), Key(number), func(kv store.KV) error {
		earlier = kv
		return nil
	})
	if err != nil {
		return record{}, err
	}
	if earlier.Key != "" {
		if r, err := decodeRecord(earlier); err != nil || r.events[len(r.events)-1].Number >= number {
			return r, err
		}
	}
	var next store.KV
	_, err = s.Range(ctx, Key(number), End, func(kv store.KV) error {
		next = kv
		return errEnough
	})
	if next.Key == "" || err != nil && !errors.Is(err, errEnough) {
		return record{}, err
	}
	return decodeRecord(next)
}

// Since implements eventlog.Source.
func (l *Log) Since(ctx context.Context, from time.Time) (n uint64, complete bool, begin time.Time, err error) {
	if n, ok := l.Window.Since(from); ok {
		return n, true, from, nil
	}
	l.mu.Lock()
	first, ok := l.index.reaching(from)
	var oldest segment
	if len(l.index) > 0 {
		oldest = l.index[0]
	}
	l.mu.Unlock()
	if !ok {
		return max(oldest.first, 1) - 1, oldest.first <= 1, time.UnixMilli(oldest.time), nil
	}
	for n = first - 1; ; {
		events, _, err := l.After(ctx, n, maxRead)
		if err != nil || len(events) == 0 {
			return n, true, from, err
		}
		for _, e := range events {
			if !e.GetTime().AsTime().Before(from) {
				return n, true, from, nil
			}
			n = e.GetNumber()
		}
	}
}

// recent has the records that were read last, so that a consumer that takes a record in several steps
// does not read it from the store each time.
type recent struct {
	records [8]record
	next    int
}

func (r *recent) find(number uint64) (record, bool) {
	for i := range r.records {
		if n := len(r.records[i].events); n > 0 && r.records[i].first <= number && number <= r.records[i].events[n-1].Number {
			return r.records[i], true
		}
	}
	return record{}, false
}

func (r *recent) put(rec record) {
	r.records[r.next%len(r.records)] = rec
	r.next++
}
