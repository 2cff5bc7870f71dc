package eventlog

import (
	"bytes"
	"compress/flate"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// someEvents returns events as servers add them, in any order of time.
func someEvents(r *rand.Rand, n int) []Event {
	types := []string{"job.submitted", "slot.offered", "region.lost", "node.cordoned", "store.filling", "slot.accepted"}
	subjects := []string{"default/api", "team/web@tokyo", "tokyo", "tokyo/n1", "store", ""}
	out := make([]Event, n)
	for i := range out {
		d := Draft{
			At: time.UnixMilli(1_700_000_000_000 + r.Int64N(5000)), Type: types[r.IntN(len(types))], Subject: subjects[r.IntN(len(subjects))],
			Format: "%s %d", Args: []any{strings.Repeat("é", r.IntN(40)), r.IntN(3)},
		}
		if r.IntN(3) == 0 {
			d.Region = "osaka"
		}
		out[i] = d.Event()
	}
	return out
}

// TestUnpackReturnsWhatPackStored: the record holds as many events as fit, and Unpack returns them
// with the numbers that follow each other.
func TestUnpackReturnsWhatPackStored(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		events, most, first := someEvents(r, r.IntN(60)), r.IntN(4000), 1+r.Uint64N(math.MaxUint64/2)
		rec, packed := Pack(events, most)
		if size := proto.Size(rec); packed > 0 && size > most {
			t.Fatalf("%d bytes, most %d", size, most)
		}
		if most > 100+len(events)*200 && packed < len(events) {
			t.Fatalf("%d of %d events fit into %d bytes", packed, len(events), most)
		}
		got, err := Unpack(first, rec)
		if err != nil {
			t.Fatal(err)
		}
		for i := range events[:packed] {
			events[i].Number = first + uint64(i)
		}
		if packed > 0 && !reflect.DeepEqual(got, events[:packed]) {
			t.Fatalf("got %v, want %v", got, events[:packed])
		}
	}
	many := make([]Event, MaxRecord+1)
	if _, packed := Pack(many, 1<<30); packed != MaxRecord {
		t.Errorf("a record of %d events", packed)
	}
}

func TestDraftBoundsItsTexts(t *testing.T) {
	for _, text := range []string{strings.Repeat("x", 5000), strings.Repeat("é", 5000), "a\xffb", strings.Repeat("\xff", 5000)} {
		d := Draft{Type: text, Subject: text, Region: text, Format: "%s", Args: []any{text}}
		e := d.Event()
		for _, got := range []string{e.Type, e.Subject, e.Message, e.Region} {
			if !utf8.ValidString(got) || len(got) > maxMessage {
				t.Errorf("%.20q became %d bytes", text, len(got))
			}
		}
		if text == "a\xffb" && e.Message != "ab" {
			t.Errorf("got %q", e.Message)
		}
	}
}

func TestPlaceOfAnEvent(t *testing.T) {
	for _, c := range []struct{ kind, subject, namespace, region string }{
		{"job.submitted", "default/api", "default", ""},
		{"job.stopped", "default/api@tokyo", "default", "tokyo"},
		{"slot.offered", "team/web", "team", ""},
		{"reservation.failed", "team/018f", "team", ""},
		{"spare.prepared", "team/018f", "team", ""},
		{"schedule.missed", "team/nightly", "team", ""},
		{"workflow.ended", "team/etl.3f9a01bc", "team", ""},
		{"rollout.paused", "team/web", "team", ""},
		{"region.lost", "tokyo", "", "tokyo"},
		{"node.cordoned", "tokyo/n1", "", "tokyo"},
		{"node.lost", "tokyo", "", "tokyo"},
		{"store.filling", "store", "", ""},
		{"job.stopped", "nonsense", "", ""},
		{"", "", "", ""},
	} {
		if namespace, region := Place(c.kind, c.subject); namespace != c.namespace || region != c.region {
			t.Errorf("%s %s: %q, %q", c.kind, c.subject, namespace, region)
		}
	}
}

func TestUnpackRefusesDamagedRecords(t *testing.T) {
	one := []uint32{1}
	bomb := deflated(t, make([]byte, maxTexts+1))
	for name, rec := range map[string]*nusav1.EventRecord{
		"a missing list":    {Types: one, Subjects: one, Texts: []string{"x"}},
		"a longer list":     {Types: one, Subjects: one, Messages: []uint32{1, 1}, Texts: []string{"x"}},
		"no such text":      {Types: one, Subjects: one, Messages: []uint32{2}, Texts: []string{"x"}},
		"a great position":  {Types: []uint32{math.MaxUint32}, Subjects: one, Messages: one, Texts: []string{"x"}},
		"too many times":    {Types: one, Subjects: one, Messages: one, Texts: []string{"x"}, After: []uint32{1, 2}},
		"too many regions":  {Types: one, Subjects: one, Messages: one, Texts: []string{"x"}, Regions: []uint32{1, 2}},
		"a region too many": {Types: one, Subjects: one, Messages: one, Texts: []string{"x"}, Regions: []uint32{7}},
		"not compressed":    {Types: one, Subjects: one, Messages: one, Packed: []byte{0xff, 1, 2}},
		"too long a text":   {Types: one, Subjects: one, Messages: one, Packed: bomb},
		"too many events":   {Types: make([]uint32, MaxRecord+1), Subjects: make([]uint32, MaxRecord+1), Messages: make([]uint32, MaxRecord+1)},
	} {
		if _, err := Unpack(1, rec); !errors.Is(err, ErrRecord) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ok := &nusav1.EventRecord{Types: one, Subjects: one, Messages: one, Texts: []string{"x"}}
	for _, first := range []uint64{0, math.MaxUint64} {
		if _, err := Unpack(first, ok); !errors.Is(err, ErrRecord) {
			t.Errorf("from number %d on: %v", first, err)
		}
	}
}

func deflated(t *testing.T, plain []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, flate.BestSpeed)
	if err == nil {
		_, err = w.Write(plain)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// jobEvents returns the events of jobs that are submitted and offered in one transaction.
func jobEvents(jobs int) (out []Event) {
	for i := range jobs {
		job, region := fmt.Sprintf("default/bench-abcdefgh-j%07d", i), fmt.Sprint("region-", i%5)
		for _, d := range []Draft{
			{Type: "job.submitted", Subject: job, Format: "version %d", Args: []any{1}},
			{Type: "slot.offered", Subject: job, Region: region, Format: "web[0] to %s: score %d.%d (capacity 24.0), fits %d, divide best", Args: []any{region, 20 + i%7, i % 10, 98_000 - i}},
			{Type: "slot.accepted", Subject: job, Region: region, Format: "web[0] by %s", Args: []any{region}},
		} {
			out = append(out, d.Event())
		}
	}
	return out
}

// TestEventsAreSmall bounds the stored bytes of the events of a job, when many are submitted together.
func TestEventsAreSmall(t *testing.T) {
	const jobs, most = 100, 40
	rec, packed := Pack(jobEvents(jobs), 1<<20)
	each := proto.Size(rec) / jobs
	t.Logf("%d bytes a job of three events", each)
	if packed != 3*jobs || each > most {
		t.Errorf("%d bytes a job, want at most %d", each, most)
	}
}

func BenchmarkPack(b *testing.B) {
	events := jobEvents(100)
	for b.Loop() {
		Pack(events, 1<<20)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100, "ns/job")
}

// FuzzUnpack: the decoder of stored records accepts any bytes without a panic, and returns bounded
// events with ascending numbers.
func FuzzUnpack(f *testing.F) {
	rec, _ := Pack(someEvents(rand.New(rand.NewPCG(3, 4)), 20), 1<<20)
	b, err := proto.Marshal(rec)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint64(1), b)
	f.Add(uint64(math.MaxUint64), b[:len(b)/2])
	f.Fuzz(func(t *testing.T, first uint64, data []byte) {
		rec := new(nusav1.EventRecord)
		if proto.Unmarshal(data, rec) != nil {
			return
		}
		events, err := Unpack(first, rec)
		if len(events) > MaxRecord {
			t.Fatalf("%d events", len(events))
		}
		for i := range events {
			if err == nil && events[i].Number != first+uint64(i) {
				t.Fatalf("event %d has number %d", i, events[i].Number)
			}
		}
	})
}

func FuzzToken(f *testing.F) {
	for _, s := range []string{"", "a-1", "1", "-", "a-b-18446744073709551615", "-1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		log, number, ok := ParseToken(s)
		if ok && log != "" {
			if again, n, ok := ParseToken(Token(log, number)); !ok || again != log || n != number {
				t.Fatalf("%q: %q %d became %q %d", s, log, number, again, n)
			}
		}
		if ok && !IsToken(s) {
			t.Fatalf("%q is no token", s)
		}
	})
}

func TestFilter(t *testing.T) {
	events := []*nusav1.Event{
		{Type: "job.submitted", Subject: "default/api", Number: 1}, {Type: "job.stopped", Subject: "team/web", Number: 2},
		{Type: "store.filling", Subject: "store"}, {Reset_: true},
	}
	for want, req := range map[string]*nusav1.WatchEventsRequest{
		"0123": {}, "013": {Types: []string{"job."}}, "03": {Types: []string{"job.sub", "other"}}, "13 ": {SubjectPrefix: "team/"},
		"013 ": {Durable: true}, "23": {Types: []string{"store.filling"}, SubjectPrefix: "store"}, "3": {Types: []string{"store"}, Durable: true},
	} {
		filter, err := FilterOf(req)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for i, e := range events {
			if filter.Match(e) {
				got += fmt.Sprint(i)
			}
		}
		if got != strings.TrimSpace(want) {
			t.Errorf("%v selects %s", req, got)
		}
	}
	long := strings.Repeat("x", maxFilterText+1)
	for field, req := range map[string]*nusav1.WatchEventsRequest{
		"types": {Types: make([]string, MaxTypes+1)}, "types[0]": {Types: []string{""}}, "types[1]": {Types: []string{"a", long}}, "subject_prefix": {SubjectPrefix: long},
	} {
		_, err := FilterOf(req)
		var wrong *FilterError
		if !errors.As(err, &wrong) || wrong.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}
