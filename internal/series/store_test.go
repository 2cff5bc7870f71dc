package series

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"pgregory.net/rapid"
)

var testKinds = []Kind{{Name: "node", Fields: []string{"cpu", "memory"}}}

// epoch is the start of most tests: a multiple of every segment's span.
var epoch = timeOf(floorTo(330_000_000, levels[coarsest].span()))

func openTest(t testing.TB, path string, l Limits) *Store {
	t.Helper()
	s, err := open(path, testKinds, l, nil, true)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func appendOne(t testing.TB, s *Store, now time.Time, key string, values ...float64) {
	t.Helper()
	if err := s.Append(now, []Sample{{"node", key, values}}); err != nil {
		t.Fatal(err)
	}
}

// oracle is a naive store. It holds every measured value by slot.
type oracle struct {
	cells   map[string]map[int64][2]cell
	log     []record
	durable int // length of the part of log that a crash cannot lose
	last    time.Time
	slot    int64
	newest  int64 // the greatest slot so far
}

type record struct {
	key   string
	slot  int64
	cells [2]cell
}

func (o *oracle) append(now time.Time, samples []Sample) {
	o.slot = nextSlot(now, o.last, o.slot)
	o.last, o.newest = now, max(o.newest, o.slot)
	for _, x := range samples {
		var c [2]cell
		for f, v := range x.Values {
			if q := toOrdinal(v); q != none {
				c[f] = cell{n: 1, min: q, mean: q, max: q}
			}
		}
		if c != ([2]cell{}) {
			o.note(record{x.Key, o.slot, c})
		}
	}
}

func (o *oracle) note(r record) {
	o.log = append(o.log, r)
	if o.cells[r.key] == nil {
		o.cells[r.key] = map[int64][2]cell{}
	}
	o.cells[r.key][r.slot] = r.cells
}

// crash drops the values in the open minute.
func (o *oracle) crash() {
	log := o.log
	minute := func(r record) int64 { return floorTo(r.slot, levels[0].span()) }
	for open := floorTo(o.slot, levels[0].span()); len(log) > o.durable && minute(log[len(log)-1]) == open; {
		log = log[:len(log)-1]
	}
	*o = oracle{cells: map[string]map[int64][2]cell{}, last: o.last, slot: o.slot, newest: o.newest, durable: len(log)}
	for _, r := range log {
		o.note(r)
	}
}

// window folds the measured values level by level, as the definition of a window says.
func (o *oracle) window(key string, field, level int, slot int64) cell {
	if level == 0 {
		return o.cells[key][slot][field]
	}
	var parts []cell
	for s := slot; s < slot+levels[level].step; s += levels[level-1].step {
		parts = append(parts, o.window(key, field, level-1, s))
	}
	return fold(parts)
}

func (o *oracle) check(t *rapid.T, got Series) {
	level := slices.IndexFunc(levels[:], func(l level) bool { return time.Duration(l.step)*Base == got.Resolution })
	for f := range got.Points {
		for i, p := range got.Points[f] {
			from := slotAt(got.Start) + int64(i)*int64(got.Step/Base)
			if from < levels[level].covered(o.newest) {
				continue // this value expired before the clock went back
			}
			var parts []cell
			for s := from; s < from+int64(got.Step/Base); s += levels[level].step {
				parts = append(parts, o.window(got.Key, f, level, s))
			}
			if want := fold(parts).point(); fmt.Sprint(p) != fmt.Sprint(want) {
				t.Fatalf("%s %s at %s (step %s of %s): %v, want %v", got.Key, got.Fields[f], timeOf(from), got.Step, got.Resolution, p, want)
			}
		}
	}
}

// TestStoreAgainstOracle: after any sequence of appends, writes, compactions, restarts and
// crashes, queries return the values of a store that retains everything.
func TestStoreAgainstOracle(t *testing.T) {
	dir := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		path := filepath.Join(dir, fmt.Sprintf("%d.db", n))
		must := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		s, err := open(path, testKinds, Limits{}, nil, true)
		must(err)
		defer func() { _ = s.Close(); _ = os.Remove(path) }()
		o := oracle{cells: map[string]map[int64][2]cell{}}
		now := epoch.Add(time.Duration(rapid.Int64Range(0, 1e13).Draw(t, "begin")))
		latest := now
		value := rapid.OneOf(rapid.Float64Range(0, 100), rapid.Just(math.NaN()), rapid.Just(64e9))
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"ticks", "ticks", "ticks", "gap", "back", "cycle", "restart", "crash", "query", "query"}).Draw(t, "what") {
			case "ticks":
				level := value.Draw(t, "value")
				for i := range rapid.IntRange(1, 400).Draw(t, "n") {
					samples := []Sample{{"node", "a", []float64{level, float64(i)}}}
					if i%7 < 4 {
						samples = append(samples, Sample{"node", "b", []float64{math.NaN(), level * float64(i)}})
					}
					must(s.Append(now, samples))
					o.append(now, samples)
					now = now.Add(Base)
					if len(s.waiting) == maxClosed {
						s.cycle()
					}
				}
			case "gap":
				now = now.Add(time.Duration(rapid.OneOf(rapid.Int64Range(0, 1e11), rapid.Int64Range(0, 4e13)).Draw(t, "gap")))
			case "back":
				now = now.Add(-time.Duration(rapid.Int64Range(0, 3e12).Draw(t, "back")))
				if now.Before(latest.Add(-50 * time.Minute)) {
					now = latest.Add(-50 * time.Minute)
				}
			case "cycle":
				s.cycle()
			case "restart":
				must(s.Close())
				s, err = open(path, testKinds, Limits{}, nil, true)
				must(err)
				o.durable = len(o.log)
				o.last, o.slot = s.last, s.slot
			case "crash":
				s.cycle()
				data, err := os.ReadFile(path)
				must(err)
				must(s.Close())
				must(os.WriteFile(path, data, 0o600))
				s, err = open(path, testKinds, Limits{}, nil, true)
				must(err)
				o.crash()
				o.last, o.slot = s.last, s.slot
			case "query":
				ago := time.Duration(rapid.OneOf(rapid.Int64Range(0, 4e12), rapid.Int64Range(0, 1e14)).Draw(t, "ago"))
				wide := time.Duration(rapid.Int64Range(0, int64(ago)).Draw(t, "wide"))
				step := time.Duration(rapid.Int64Range(0, 1e12).Draw(t, "step"))
				for key := range o.cells {
					got, err := s.Query("node", key, latest.Add(-ago), latest.Add(wide-ago), step)
					must(err)
					o.check(t, got)
				}
			}
			if now.After(latest) {
				latest = now
			}
		}
		for _, ago := range []time.Duration{time.Hour, 20 * time.Hour, 72 * time.Hour} {
			for key := range o.cells {
				// Values that expired before the clock went back stay removed.
				got, err := s.Query("node", key, latest.Add(-ago), latest, Base)
				must(err)
				o.check(t, got)
			}
		}
		if st := s.Stats(); st.SetAside > 0 || st.LostMinutes > 0 || st.Failing != nil {
			t.Fatalf("%+v", st)
		}
	})
}

func TestMonthOfHistory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "series.db")
	s := openTest(t, path, Limits{})
	// A sample every other minute is enough to test the retention of every level.
	const days = 34
	now := epoch
	for i := range days * 720 {
		appendOne(t, s, now, "a", float64(i%720), 1)
		s.cycle()
		now = now.Add(2 * time.Minute)
	}
	counts := map[int]int{}
	oldest := map[int]int64{}
	err := s.file.view(func(tx *bolt.Tx) error {
		return tx.Bucket(bucketData).ForEach(func(b, _ []byte) error {
			k, _ := parseSegmentKey(b)
			if counts[k.level]++; counts[k.level] == 1 {
				oldest[k.level] = k.start
			}
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, l := range levels {
		whole := int(l.keep/l.span()) + 3
		if i == 0 {
			whole /= 2 // every other minute has no value
		}
		if counts[i] > whole+shards || counts[i] < whole-3 {
			t.Errorf("level %d has %d segments, about %d are its age", i, counts[i], whole)
		}
		if want := l.covered(s.slot); oldest[i]+l.span() <= want-levels[0].span() || oldest[i] > want+l.span() {
			t.Errorf("level %d begins at %d, want about %d", i, oldest[i], want)
		}
	}
	got, err := s.Query("node", "a", now.Add(-31*24*time.Hour), now, 24*time.Hour)
	if err != nil || len(got.Points[0]) < 31 {
		t.Fatal(err, len(got.Points[0]))
	}
	for i, p := range got.Points[0][1:31] {
		if p.Count != 720 || p.Min != 0 || p.Max != 719 || math.Abs(p.Mean-359.5) > 0.15 {
			t.Errorf("day %d: %+v", i, p)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestNumberOfSeriesIsBounded(t *testing.T) {
	s := openTest(t, filepath.Join(t.TempDir(), "series.db"), Limits{Series: 3})
	defer s.Close()
	batch := func(keys ...string) (out []Sample) {
		for _, k := range keys {
			out = append(out, Sample{"node", k, []float64{1, 2}})
		}
		return out
	}
	if err := s.Append(epoch, batch("a", "b", "c")); err != nil {
		t.Fatal(err)
	}
	err := s.Append(epoch.Add(Base), batch("d", "a", "e"))
	if !errors.Is(err, ErrTooManySeries) || !strings.Contains(err.Error(), "2 new ones") {
		t.Errorf("%v", err)
	}
	if got := s.Stats(); got.Refused != 2 || got.Series != 3 {
		t.Errorf("%+v", got)
	}
	if got, _ := s.Query("node", "a", epoch, epoch.Add(2*Base), 0); len(got.Points) != 2 || got.Points[0][1].Count != 1 {
		t.Errorf("the others were not taken: %+v", got)
	}
	// After a day of silence c is replaced, then b. The series a, seen last, stays.
	for i := range 25 {
		if err := s.Append(epoch.Add(time.Duration(i)*time.Hour), batch("a")); err != nil {
			t.Fatal(err)
		}
		s.cycle()
	}
	later := epoch.Add(25 * time.Hour)
	if err := s.Append(later, batch("d", "e", "f")); !errors.Is(err, ErrTooManySeries) {
		t.Errorf("%v", err)
	}
	if got := s.Keys("node", ""); !slices.Equal(got, []string{"a", "d", "e"}) {
		t.Errorf("%v", got)
	}
	s.Forget("node", "a")
	if err := s.Append(later, batch("f")); err != nil {
		t.Error(err)
	}
	if _, err := s.Query("node", "a", epoch, later, 0); !errors.Is(err, ErrUnknown) {
		t.Errorf("forgotten: %v", err)
	}
	for _, x := range []Sample{{"pod", "x", []float64{1, 2}}, {"node", "", []float64{1, 2}}, {"node", "a", []float64{1}}, {"node", strings.Repeat("x", 257), []float64{1, 2}}} {
		if err := s.Append(later, []Sample{x}); !errors.Is(err, ErrSample) {
			t.Errorf("%+v: %v", x, err)
		}
	}
}

// TestForgottenSeriesDoNotComeBack: a forgotten series does not come back after a restart.
// A new series of the same name does not have the old values.
func TestForgottenSeriesDoNotComeBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "series.db")
	s := openTest(t, path, Limits{})
	for i := range 30 {
		appendOne(t, s, epoch.Add(time.Duration(i)*Base), "a", 1, 1)
		s.cycle()
	}
	s.Forget("node", "a")
	appendOne(t, s, epoch.Add(30*Base), "b", 1, 1)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, path, Limits{})
	defer s.Close()
	if got := s.Keys("node", ""); !slices.Equal(got, []string{"b"}) {
		t.Fatal(got)
	}
	appendOne(t, s, epoch.Add(31*Base), "a", 5, 5)
	got, err := s.Query("node", "a", epoch, epoch.Add(40*Base), Base)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range got.Points[0] {
		if (p.Count > 0) != (i == 31) {
			t.Errorf("%d: %+v", i, p)
		}
	}
}

// TestFieldsAreIdentifiedByName: a version with other fields reads the file of an older
// version.
func TestFieldsAreIdentifiedByName(t *testing.T) {
	path := filepath.Join(t.TempDir(), "series.db")
	for i, fields := range [][]string{{"cpu", "memory"}, {"memory", "disk", "cpu"}, {"disk"}} {
		s, err := open(path, []Kind{{"node", fields}}, Limits{}, nil, true)
		if err != nil {
			t.Fatal(err)
		}
		x := Sample{Kind: "node", Key: "a"}
		for _, f := range fields {
			x.Values = append(x.Values, float64(10*i+len(f)))
		}
		if err := s.Append(epoch.Add(time.Duration(i)*Base), []Sample{x}); err != nil {
			t.Fatal(err)
		}
		got, err := s.Query("node", "a", epoch, epoch.Add(3*Base), Base)
		if err != nil {
			t.Fatal(err)
		}
		means := func(f string) string {
			var all []float64
			for _, p := range got.Field(f) {
				all = append(all, p.Mean)
			}
			return fmt.Sprint(all)
		}
		want := []map[string]string{
			{"cpu": "[3]", "memory": "[6]", "disk": "[]"},
			{"cpu": "[3 13]", "memory": "[6 16]", "disk": "[NaN 14]"},
			{"cpu": "[]", "memory": "[]", "disk": "[NaN 14 24]"},
		}[i]
		for f, w := range want {
			if means(f) != w {
				t.Errorf("version %d, %s: %s, want %s", i, f, means(f), w)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// The file retains the series of a kind that the program no longer has.
	s, err := open(path, nil, Limits{}, nil, true)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got, err := s.Query("node", "a", epoch, epoch.Add(3*Base), Base); err != nil || !reflect.DeepEqual(got.Fields, []string{"cpu", "memory", "disk"}) {
		t.Errorf("%v, %v", got.Fields, err)
	}
}

func TestKindsAreChecked(t *testing.T) {
	for _, kinds := range [][]Kind{
		{{"", []string{"a"}}}, {{"x", nil}}, {{"x", []string{"a", "a"}}}, {{"x", []string{""}}},
		{{"x", []string{"a"}}, {"x", []string{"a"}}}, {{"x", make([]string, 33)}}, {{"x\x00", []string{"a"}}},
	} {
		if s, err := open(filepath.Join(t.TempDir(), "s.db"), kinds, Limits{}, nil, true); err == nil {
			s.Close()
			t.Errorf("%q is taken", kinds)
		}
	}
}

// TestStoreWithItsGoroutine runs the store with its goroutine, as servers do.
func TestStoreWithItsGoroutine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "folder", "series.db")
	s, err := Open(path, testKinds, Limits{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		appendOne(t, s, epoch.Add(time.Duration(i)*Base), "a", float64(i), 1)
		if _, err := s.Query("node", "a", epoch, epoch.Add(time.Hour), 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(path, testKinds, Limits{}, nil); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("opened twice: %v", err)
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	if err := s.Append(epoch, nil); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if _, err := s.Query("node", "a", epoch, epoch, 0); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	again := openTest(t, path, Limits{})
	defer again.Close()
	got, err := again.Query("node", "a", epoch, epoch.Add(40*Base), Base)
	if err != nil || len(got.Points[0]) != 40 {
		t.Fatal(err, len(got.Points[0]))
	}
	for i, p := range got.Points[0] {
		if p.Count != 1 || p.Mean != float64(i) {
			t.Errorf("%d: %+v", i, p)
		}
	}
	var nothing *Store
	if _, err := nothing.Query("node", "a", epoch, epoch, 0); !errors.Is(err, ErrUnknown) || nothing.Append(epoch, nil) != nil || nothing.Close() != nil {
		t.Error("a nil store does something")
	}
}

// logged returns a logger and the text that it wrote.
func logged() (*slog.Logger, *bytes.Buffer) {
	var b bytes.Buffer
	return slog.New(slog.NewTextHandler(&b, nil)), &b
}
