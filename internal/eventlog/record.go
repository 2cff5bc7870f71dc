package eventlog

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// MaxRecord is the greatest number of events in a record.
const MaxRecord = 8192

// ErrRecord says that a stored record of events is damaged.
var ErrRecord = errors.New("the record of events is damaged")

// positions are maps for packers, which are used again, because one for many events takes much memory.
var positions = sync.Pool{New: func() any { return map[string]uint32{} }}

// packer builds a record.
type packer struct {
	rec   *nusav1.EventRecord
	known map[string]uint32
	bytes int
}

// text returns the position of a text.
func (p *packer) text(s string) uint32 {
	if s == "" {
		return 0
	}
	at, ok := p.known[s]
	if !ok {
		p.rec.Texts = append(p.rec.Texts, s)
		at = uint32(len(p.rec.Texts))
		p.known[s] = at
		p.bytes += len(s) + 1 + varint(uint64(len(s)))
	}
	return at
}

// varint returns the length of a number in the encoding of protobuf.
func varint(n uint64) (length int) {
	for length = 1; n >= 1<<7; n >>= 7 {
		length++
	}
	return length
}

// perEvent bounds the bytes of an event besides its texts: four positions of at most 3 bytes, and
// at most 5 bytes of time.
const perEvent = 4*3 + 5

// Pack returns the record of the first events that fit into this many bytes, and their number. A
// record has at most MaxRecord events. Pack keeps milliseconds of the times.
func Pack(events []Event, most int) (rec *nusav1.EventRecord, packed int) {
	known := positions.Get().(map[string]uint32)
	defer func() {
		clear(known)
		positions.Put(known)
	}()
	p := packer{rec: &nusav1.EventRecord{}, known: known, bytes: 64}
	at, regions, later := int64(math.MaxInt64), false, false
	for i := range events {
		at = min(at, events[i].At.UnixMilli())
	}
	rec = p.rec
	rec.Texts = make([]string, 0, len(events)+8)
	lists := make([]uint32, 5*len(events))
	for i, list := range []*[]uint32{&rec.Types, &rec.Subjects, &rec.Messages, &rec.Regions, &rec.After} {
		*list = lists[i*len(events):][:0:len(events)]
	}
	for i := range events {
		e := &events[i]
		if packed == MaxRecord || p.bytes+e.Size() > most {
			break
		}
		rec.Types, rec.Subjects, rec.Messages = append(rec.Types, p.text(e.Type)), append(rec.Subjects, p.text(e.Subject)), append(rec.Messages, p.text(e.Message))
		region := uint32(0)
		if _, follows := Place(e.Type, e.Subject); e.Region != follows {
			region = p.text(e.Region)
		}
		after := uint32(min(e.At.UnixMilli()-at, math.MaxUint32))
		rec.Regions, rec.After = append(rec.Regions, region), append(rec.After, after)
		regions, later = regions || region > 0, later || after > 0
		p.bytes += perEvent
		packed++
	}
	rec.Time = at
	if !regions {
		rec.Regions = nil
	}
	if !later {
		rec.After = nil
	}
	packTexts(rec, p.bytes-packed*perEvent)
	return rec, packed
}

// Unpack returns the events of a record. The first event has this number.
func Unpack(first uint64, rec *nusav1.EventRecord) ([]Event, error) {
	n := len(rec.GetTypes())
	switch {
	case n > MaxRecord:
		return nil, fmt.Errorf("%w: %d events, at most %d", ErrRecord, n, MaxRecord)
	case first == 0 || first > math.MaxUint64-uint64(n):
		return nil, fmt.Errorf("%w: %d events from number %d on", ErrRecord, n, first)
	case len(rec.GetSubjects()) != n || len(rec.GetMessages()) != n || some(rec.GetRegions()) && len(rec.GetRegions()) != n || some(rec.GetAfter()) && len(rec.GetAfter()) != n:
		return nil, fmt.Errorf("%w: its lists have different lengths", ErrRecord)
	}
	texts, wrong := textsOf(rec)
	if wrong != nil {
		return nil, wrong
	}
	text := func(at uint32) string {
		switch {
		case at == 0:
			return ""
		case uint64(at) > uint64(len(texts)):
			wrong = fmt.Errorf("%w: text %d of %d", ErrRecord, at, len(texts))
			return ""
		}
		return texts[at-1]
	}
	out := make([]Event, n)
	for i := range out {
		e := &out[i]
		*e = Event{
			Number: first + uint64(i), At: time.UnixMilli(rec.GetTime()),
			Type: text(rec.GetTypes()[i]), Subject: text(rec.GetSubjects()[i]), Message: text(rec.GetMessages()[i]),
		}
		e.Namespace, e.Region = Place(e.Type, e.Subject)
		if some(rec.GetRegions()) && rec.GetRegions()[i] > 0 {
			e.Region = text(rec.GetRegions()[i])
		}
		if some(rec.GetAfter()) {
			e.At = e.At.Add(time.Duration(rec.GetAfter()[i]) * time.Millisecond)
		}
	}
	return out, wrong
}

func some(list []uint32) bool { return len(list) > 0 }
