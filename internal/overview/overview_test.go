package overview

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// reader applies messages as a client does.
type reader struct {
	head, counts         *Entry
	regions, nodes, jobs map[string]*Entry
	due, errors          Section
	columns              []string
	cells                map[string]Cell
}

func newReader() *reader {
	return &reader{regions: map[string]*Entry{}, nodes: map[string]*Entry{}, jobs: map[string]*Entry{}, cells: map[string]Cell{}}
}

func (r *reader) apply(m Message) {
	if m.Reset {
		*r = *newReader()
	}
	if m.Head != nil {
		r.head = m.Head
	}
	if m.Counts != nil {
		r.counts = m.Counts
	}
	for _, part := range []struct {
		has       map[string]*Entry
		set, gone []*Entry
	}{{r.regions, m.Regions, m.Gone}, {r.nodes, m.Nodes, m.NodesOff}, {r.jobs, m.Jobs, m.JobsOff}} {
		for _, e := range part.gone {
			delete(part.has, e.Key)
		}
		for _, e := range part.set {
			part.has[e.Key] = e
		}
	}
	if m.Due != nil {
		r.due = *m.Due
	}
	if m.Errors != nil {
		r.errors = *m.Errors
	}
	if m.Columns != nil {
		r.columns, r.cells = m.Columns, map[string]Cell{}
	}
	for _, row := range m.Rows {
		for n, c := range row.Cells {
			to := n
			if row.To != nil {
				to = row.To[n]
			}
			r.cells[r.columns[row.From]+" "+r.columns[to]] = c
		}
	}
}

func (r *reader) check(t *rapid.T, v View) {
	if r.head != v.Head || r.counts != v.Counts || !slices.Equal(r.due, v.Due) || !slices.Equal(r.errors, v.Errors) {
		t.Fatalf("head, counts or lists differ: %+v, want %+v", r, v)
	}
	for name, part := range map[string]struct {
		has  map[string]*Entry
		want Section
	}{"regions": {r.regions, v.Regions}, "nodes": {r.nodes, v.Nodes}, "jobs": {r.jobs, v.Jobs}} {
		if len(part.has) != len(part.want) {
			t.Fatalf("%s: %d, want %d", name, len(part.has), len(part.want))
		}
		for _, e := range part.want {
			if part.has[e.Key] != e {
				t.Fatalf("%s: %s is %v, want %v", name, e.Key, part.has[e.Key], e)
			}
		}
	}
	if v.Matrix == nil {
		return
	}
	for i, from := range v.Matrix.Names {
		for j, to := range v.Matrix.Names {
			if got, want := r.cells[from+" "+to], v.Matrix.Row(i)[j]; got != want {
				t.Fatalf("%s → %s is %v, want %v", from, to, got, want)
			}
		}
	}
}

func drawSection(t *rapid.T, label string) (out Section) {
	for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, 12), 0, 9, rapid.ID[int]).Draw(t, label) {
		out = append(out, &Entry{
			Key: fmt.Sprintf("%s-%02d", label, i), Exact: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "exact"),
			Loads: []Load{{rapid.Float64Range(0, 4).Draw(t, "load"), 1}}, Size: rapid.IntRange(1, 60).Draw(t, "size"),
		})
	}
	out.Sort()
	return out
}

// TestTheStreamLeadsToTheView: whatever changes, and whatever changes a slow reader misses, the
// reader sees the present view once it has read the messages.
func TestTheStreamLeadsToTheView(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newReader()
		var base, sent View
		first := true
		now := time.Duration(0)
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			now += rapid.SampledFrom([]time.Duration{time.Second, time.Minute}).Draw(t, "passed")
			base = drawView(t, base, now)
			if rapid.IntRange(0, 2).Draw(t, "slow") == 0 {
				continue
			}
			is := base
			if rapid.Bool().Draw(t, "no nodes") {
				is.Nodes = nil
			}
			var was *View
			if !first && rapid.IntRange(0, 5).Draw(t, "again") > 0 {
				was = &sent
			}
			messages := Updates(was, is, rapid.SampledFrom([]int{1, 50, 1 << 20}).Draw(t, "most"))
			if (first || was == nil) && (len(messages) == 0 || !messages[0].Reset) {
				t.Fatal("a snapshot does not begin with a reset")
			}
			for n, m := range messages {
				if m.Synced != (n == len(messages)-1) {
					t.Fatalf("message %d of %d: synced %t", n, len(messages), m.Synced)
				}
				r.apply(m)
			}
			sent, first = is, false
			r.check(t, is)
			if again := Updates(&sent, is, 100); len(again) > 0 {
				t.Fatalf("nothing has changed, and %d messages follow", len(again))
			}
		}
	})
}

// drawView returns a changed view.
func drawView(t *rapid.T, base View, now time.Duration) View {
	base.Head = KeepEntry(base.Head, &Entry{Exact: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "head")}, now)
	base.Counts = KeepEntry(base.Counts, &Entry{Exact: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "counts")}, now)
	base.Regions = drawSection(t, "regions").Keep(base.Regions, now)
	base.Nodes = drawSection(t, "nodes").Keep(base.Nodes, now)
	base.Jobs = drawSection(t, "jobs").Keep(base.Jobs, now)
	base.Due = drawSection(t, "due").Keep(base.Due, now)
	base.Errors = drawSection(t, "errors").Keep(base.Errors, now)
	names := rapid.SampledFrom([][]string{{"a", "b", "c"}, {"a", "b", "c", "d"}, {"a", "b", "c"}}).Draw(t, "names")
	base.Matrix = KeepMatrix(base.Matrix, names, func(i int, into []Cell) {
		for j := range into {
			into[j] = Cell{P50: uint16(rapid.IntRange(100, 130).Draw(t, "p50")), State: okMeasured}
		}
	})
	return base
}

// TestWhatIsNoticeable: small changes of loads, times and round trips are not sent; changes of facts
// are.
func TestWhatIsNoticeable(t *testing.T) {
	for name, c := range map[string]struct {
		was, is Entry
		after   time.Duration
		noticed bool
	}{
		"nothing":               {Entry{Exact: "a"}, Entry{Exact: "a"}, time.Hour, false},
		"a fact":                {Entry{Exact: "a"}, Entry{Exact: "b"}, 0, true},
		"a load, a little":      {Entry{Loads: []Load{{50, 1}}}, Entry{Loads: []Load{{51, 1}}}, time.Hour, false},
		"a load":                {Entry{Loads: []Load{{50, 1}}}, Entry{Loads: []Load{{51.1, 1}}}, 0, true},
		"a load that goes":      {Entry{Loads: []Load{{0.5, 1}}}, Entry{Loads: []Load{{0, 1}}}, 0, true},
		"another load":          {Entry{Loads: []Load{{5, 1}}}, Entry{Loads: []Load{{5, 1}, {0, 1}}}, 0, true},
		"numbers of a text":     {Entry{Text: "for 1s"}, Entry{Text: "for 2s"}, time.Second, false},
		"numbers of a text, 10": {Entry{Text: "for 1s"}, Entry{Text: "for 11s"}, 10 * time.Second, true},
	} {
		was := KeepEntry(nil, &c.was, time.Minute)
		if got := KeepEntry(was, &c.is, time.Minute+c.after) == &c.is; got != c.noticed {
			t.Errorf("%s: noticed %t", name, got)
		}
	}
	ok := Cell{P50: 200, P90: 300, P99: 400, State: okMeasured}
	for name, c := range map[string]struct {
		is      Cell
		noticed bool
	}{
		"0.9 ms, less than a tenth": {Cell{209, 300, 400, 0, okMeasured}, false},
		"2 ms, a tenth":             {Cell{220, 300, 400, 0, okMeasured}, true},
		"another p99":               {Cell{200, 300, 4000, 0, okMeasured}, false},
		"a relay":                   {Cell{200, 300, 400, 0, okMeasured | Relayed}, true},
		"unknown":                   {Cell{Unknown, Unknown, Unknown, 0, okMeasured}, true},
		"2 % loss":                  {Cell{200, 300, 400, 4, okMeasured}, false},
		"5 % loss":                  {Cell{200, 300, 400, 10, okMeasured}, true},
	} {
		if got := c.is.differs(ok); got != c.noticed {
			t.Errorf("%s: noticed %t", name, got)
		}
	}
}

// TestMessagesAreBounded: a snapshot of 1,000 regions with all edges has messages of about the
// allowed size, and a change of one edge has one cell.
func TestMessagesAreBounded(t *testing.T) {
	const n, most = 1000, 1 << 20
	v := View{}
	names := make([]string, n)
	for i := range n {
		names[i] = fmt.Sprintf("r%04d", i)
		v.Regions = append(v.Regions, &Entry{Key: names[i], Size: 300})
	}
	fill := func(_ int, into []Cell) {
		for j := range into {
			into[j] = Cell{P50: uint16(100 + j), State: okMeasured}
		}
	}
	v.Matrix = KeepMatrix(nil, names, fill)
	messages := Updates(nil, v, most)
	rows := 0
	for _, m := range messages {
		size := 0
		for _, r := range m.Rows {
			size += r.size()
			rows++
		}
		if size > most+n*10 {
			t.Errorf("a message of %d bytes", size)
		}
	}
	if rows != n || len(messages) < n*n*CellSize/most {
		t.Errorf("%d rows in %d messages", rows, len(messages))
	}
	next := v
	next.Matrix = KeepMatrix(v.Matrix, names, func(i int, into []Cell) {
		fill(i, into)
		if i == 7 {
			into[9].P50 = 5000
		}
	})
	again := Updates(&v, next, most)
	if len(again) != 1 || len(again[0].Rows) != 1 || !slices.Equal(again[0].Rows[0].To, []int{9}) || again[0].Rows[0].Cells[0].P50 != 5000 {
		t.Errorf("the change of one edge: %+v", again)
	}
}

func TestRelays(t *testing.T) {
	medium := map[string]uint16{"a b": 100, "b c": 100, "a c": 300, "c a": 205, "b a": 100, "c b": 100}
	names := []string{"a", "b", "c"}
	m := KeepMatrix(nil, names, func(i int, into []Cell) {
		for j := range into {
			into[j] = Cell{P50: medium[names[i]+" "+names[j]], State: okMeasured}
		}
	})
	r := &Relays{}
	if r.Saves(0, 2) {
		t.Error("a relay before the first look")
	}
	r.Look(m)
	if !r.Saves(0, 2) || r.Saves(2, 0) || r.Saves(0, 1) {
		t.Errorf("a → c %t, c → a %t, a → b %t", r.Saves(0, 2), r.Saves(2, 0), r.Saves(0, 1))
	}
}

// facts of a job: its labels and regions.
type testFacts struct {
	labels map[string]string
	region string
}

func (f testFacts) Labels() map[string]string { return f.labels }
func (f testFacts) In(region string) bool     { return f.region == region }

// TestSelectionsFollowTheJobs: whatever jobs come, change and go, also during a scan, a selection has
// the same jobs and counts as a search through all jobs.
func TestSelectionsFollowTheJobs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := NewIndex()
		type job struct {
			state uint8
			testFacts
		}
		jobs := map[string]job{}
		key := rapid.Custom(func(t *rapid.T) string {
			return Key(rapid.SampledFrom([]string{"a", "a-b", "b"}).Draw(t, "namespace"), fmt.Sprintf("n%d", rapid.IntRange(0, 8).Draw(t, "name")), "")
		})
		var filters []Filter
		var selections []*Selection
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0:
				f := Filter{
					Namespace: rapid.SampledFrom([]string{"", "a"}).Draw(t, "of"), Search: rapid.SampledFrom([]string{"", "1"}).Draw(t, "search"),
					States: rapid.SampledFrom([]uint64{0, 1 << 2, 1<<1 | 1<<2}).Draw(t, "states"), Region: rapid.SampledFrom([]string{"", "r1"}).Draw(t, "region"),
					Limit: rapid.IntRange(1, 4).Draw(t, "limit"), May: func(namespace string) bool { return namespace != "b" },
				}
				if rapid.Bool().Draw(t, "labels") {
					f.Labels = map[string]string{"x": "1"}
				}
				if rapid.Bool().Draw(t, "after") {
					f.After = key.Draw(t, "after")
				}
				filters, selections = append(filters, f), append(selections, x.Select(f))
			case 1:
				k := key.Draw(t, "gone")
				delete(jobs, k)
				x.Remove(k)
			default:
				k := key.Draw(t, "changed")
				j := job{uint8(rapid.IntRange(0, 3).Draw(t, "state")), testFacts{map[string]string{"x": rapid.SampledFrom([]string{"1", "2"}).Draw(t, "x")}, rapid.SampledFrom([]string{"r1", "r2"}).Draw(t, "in")}}
				jobs[k] = j
				x.Put(k, j.state, j)
			}
			for i, s := range selections {
				complete := x.Scan(s, rapid.IntRange(0, 5).Draw(t, "scan"), func(k string) Facts { return jobs[k] })
				if !complete {
					continue
				}
				var want []string
				counts, total := [MaxStates]int32{}, int32(0)
				for _, k := range slices.Sorted(maps.Keys(jobs)) {
					if !filters[i].matches(k, jobs[k].state, jobs[k]) {
						continue
					}
					counts[jobs[k].state]++
					total++
					if k > filters[i].After && len(want) < filters[i].Limit {
						want = append(want, k)
					}
				}
				gotCounts, gotTotal := s.Counts()
				if !slices.Equal(s.First(), want) || gotCounts != counts || gotTotal != total {
					t.Fatalf("filter %+v: %q, want %q; %d jobs, want %d", filters[i], s.First(), want, gotTotal, total)
				}
			}
		}
		if x.Len() != len(jobs) {
			t.Fatalf("%d jobs, want %d", x.Len(), len(jobs))
		}
	})
}

func TestKeysHaveTheirParts(t *testing.T) {
	namespace, name, region := CutKey(Key("a", "b", "c"))
	if got := strings.Join([]string{namespace, name, region}, "/"); got != "a/b/c" || Key("a", "z", "") > Key("a-b", "a", "") {
		t.Error(got)
	}
}
