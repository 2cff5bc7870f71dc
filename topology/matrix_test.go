package topology

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"
)

// TestMatrixEqualsItsEdges: after any sequence of sets, clears, renames and views, a view
// equals a view that is built from a list of the edges. Earlier views do not change.
func TestMatrixEqualsItsEdges(t *testing.T) {
	names := []string{"a", "b", "c", "d", "e"}
	rapid.Check(t, func(t *rapid.T) {
		m := NewMatrix()
		var regions []Region
		held := map[[2]string]Edge{}
		list := func(v *View) string { return fmt.Sprint(v.Regions(), v.Matrix()) }
		var taken []*View
		var looked []string
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch name := rapid.SampledFrom(names).Draw(t, "name"); rapid.IntRange(0, 5).Draw(t, "what") {
			case 0:
				regions = nil
				for _, n := range rapid.SliceOfDistinct(rapid.SampledFrom(names), rapid.ID[string]).Draw(t, "regions") {
					regions = append(regions, Region{Name: n})
				}
				m.SetRegions(regions)
				for k := range held {
					if _, a := m.index[k[0]]; !a {
						delete(held, k)
					}
					if _, b := m.index[k[1]]; !b {
						delete(held, k)
					}
				}
			case 1:
				m.Clear(name)
				for k := range held {
					if k[0] == name {
						delete(held, k)
					}
				}
			case 2:
				v := m.View(0, 0, nil)
				taken, looked = append(taken, v), append(looked, list(v))
			default:
				e := Edge{
					From: name, To: rapid.SampledFrom(names).Draw(t, "to"), State: State(rapid.IntRange(0, 3).Draw(t, "state")), Source: Measured,
					P50: time.Duration(rapid.Int64Range(0, 1e11).Draw(t, "rtt")), Loss: 0.1, LossOut: 1.0 / 3, Samples: 7,
					Age: time.Duration(rapid.IntRange(0, 100).Draw(t, "age")), Method: "tcp", ReverseReachable: true,
				}
				m.Set(e, 0)
				_, a := m.index[e.From]
				_, b := m.index[e.To]
				if a && b && e.State != Unknown {
					held[[2]string{e.From, e.To}] = e
				}
			}
		}
		var edges []Edge
		for _, e := range held {
			edges = append(edges, e)
		}
		got, want := m.View(0, 0, nil), NewView(regions, edges)
		if list(got) != list(want) {
			t.Fatalf("got  %s\nwant %s", list(got), list(want))
		}
		for i, v := range taken {
			if list(v) != looked[i] {
				t.Fatalf("a view changed: %s, was %s", list(v), looked[i])
			}
		}
	})
}

func TestOldMeasurementsAreStale(t *testing.T) {
	m := NewMatrix()
	m.SetRegions([]Region{{Name: "a"}, {Name: "b"}})
	e := measured("a", "b", 10, OK)
	e.Loss, e.LossOut, e.LossBack = 0.1, 0.05, 0.05
	m.Set(e, 10*time.Second)
	for _, tc := range []struct {
		now   time.Duration
		state State
	}{{10 * time.Second, OK}, {17 * time.Second, OK}, {18 * time.Second, Stale}} {
		want := e
		want.State, want.Age = tc.state, tc.now-7*time.Second
		if got := m.View(tc.now, 10*time.Second, nil).Edge("a", "b"); !reflect.DeepEqual(got, want) {
			t.Errorf("at %s: %+v, want %+v", tc.now, got, want)
		}
	}
}

// seer is a predictor with a fixed prediction and fixed doubts.
type seer struct {
	rtt    time.Duration
	doubts []Doubt
}

func (o seer) Number(region string) int {
	if region == "z" {
		return -1
	}
	return int(region[0])
}
func (o seer) RTT(i, j int) (time.Duration, float64, bool) { return o.rtt, 0.5, i != j }
func (o seer) Doubts() []Doubt                             { return o.doubts }

// TestASuspectMeasurementNeverShortensADistance: a doubted measurement counts if it is
// longer than the prediction. The edge is shown as measured.
func TestASuspectMeasurementNeverShortensADistance(t *testing.T) {
	m := NewMatrix()
	m.SetRegions([]Region{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "z"}})
	for _, e := range []Edge{
		measured("a", "b", 1, OK), measured("b", "a", 1, OK), // impossibly short
		measured("a", "c", 900, OK), measured("c", "a", 900, OK), // too long
	} {
		m.Set(e, 0)
	}
	both := func(a, b, why string) []Doubt { return []Doubt{{a, b, why}, {b, a, why}} }
	v := m.View(0, 0, seer{100 * msec, append(append(both("a", "b", "too short"), both("a", "c", "too long")...), Doubt{"b", "c", "never measured"})})
	if e := v.Edge("a", "b"); e.Doubt != "too short" || e.P50 != msec || e.Source != Measured {
		t.Errorf("shown: %+v", e)
	}
	for _, tc := range []struct {
		to     string
		rtt    time.Duration
		source Source
	}{{"b", 100 * msec, Predicted}, {"c", 900 * msec, Measured}, {"z", 0, None}} {
		if d := v.Distance("a", tc.to, 50); d.RTT != tc.rtt || d.Source != tc.source {
			t.Errorf("a to %s: %v, want %s %s", tc.to, d, tc.rtt, tc.source)
		}
	}
	paths, err := NewRouter(v, 50).Paths("a", "b", PathOptions{MaxRelays: NoRelays})
	if err != nil || len(paths) != 1 || paths[0].RTT != 100*msec || paths[0].Source != Predicted || paths[0].State != Unknown {
		t.Errorf("path: %v, %v", paths, err)
	}
	r := Check(v, CheckOptions{})
	if r.Doubtful.Total != 4 || r.Empty() || r.Doubtful.List[0].String() != "a → c: 900.0ms is too long; predicted is 100.0ms" {
		t.Errorf("check: %v", r)
	}
}

// TestChangeLogIsCompleteForEveryReader: one reader reads the log repeatedly, each time
// from its last sequence. Another reads everything once. Both have the same edges, and
// these are close to the matrix.
func TestChangeLogIsCompleteForEveryReader(t *testing.T) {
	const n = 5
	names := []string{"a", "b", "c", "d", "e"}
	m := NewMatrix()
	var regions []Region
	for _, name := range names {
		regions = append(regions, Region{Name: name, Location: singapore})
	}
	m.SetRegions(regions)
	r := rand.New(rand.NewPCG(1, 1))
	b := NewChangeLog(m.View(0, 0, nil))
	type reader struct {
		has map[string]Edge
		at  uint64
	}
	read := func(r *reader) {
		at := b.Sequence()
		for i := range n {
			for _, e := range b.ChangedEdges(i, r.at) {
				e.Age = 0
				r.has[e.From+e.To] = e
			}
		}
		r.at = at
	}
	now := reader{has: map[string]Edge{}}
	posts := 0
	for step := range 300 {
		m.Set(measured(names[r.IntN(n)], names[r.IntN(n)], 50+r.IntN(20), State(1+r.IntN(3))), time.Duration(step))
		before := b.Sequence()
		v := m.View(time.Duration(step), 0, nil)
		for range 2 { // the second update changes nothing
			if !b.Update(v) {
				t.Fatal("not logged")
			}
		}
		posts += int(b.Sequence() - before)
		if r.IntN(5) == 0 {
			read(&now)
		}
		all := reader{has: map[string]Edge{}}
		read(&all)
		if len(all.has) != n*(n-1) {
			t.Fatalf("%d edges", len(all.has))
		}
		for _, is := range v.Matrix() {
			logged := all.has[is.From+is.To]
			if logged.State != is.State || logged.Source != is.Source || (logged.P50-is.P50).Abs() >= max(logged.P50/10, msec) {
				t.Fatalf("logged %+v, is %+v", logged, is)
			}
		}
	}
	read(&now)
	all := reader{has: map[string]Edge{}}
	read(&all)
	if !reflect.DeepEqual(now.has, all.has) {
		t.Errorf("piece by piece %v\nat once %v", now.has, all.has)
	}
	if posts == 0 || posts >= 300 {
		t.Errorf("%d updates of 300 changes: all or none are noticeable", posts)
	}
	if later := m.View(time.Hour, 0, nil); !b.Update(later) {
		t.Error("the same regions")
	}
	m.SetRegions(regions[1:])
	if b.Update(m.View(2*time.Hour, 0, nil)) {
		t.Error("other regions were logged")
	}
}

// TestConfirm: a confirmed edge gets younger, but is not sent to the other region again
// unless it was stale. A row that is stored again unchanged changes nothing.
func TestConfirm(t *testing.T) {
	const stale = time.Minute
	m := NewMatrix()
	m.SetRegions([]Region{{Name: "a"}, {Name: "b"}, {Name: "c"}})
	row := []Edge{
		{From: "a", To: "b", State: OK, Source: Measured, P50: time.Millisecond},
		{From: "a", To: "c", State: OK, Source: Measured, P50: time.Millisecond},
	}
	m.Replace("a", row, time.Second)
	age := func(to string, now time.Duration) time.Duration { return m.View(now, stale, nil).Edge("a", to).Age }
	column := func(to string, since, now time.Duration) int { return len(m.AppendColumn(nil, to, since, now, stale)) }
	if column("b", 0, time.Second) != 1 || !m.SetSince("b", 0) {
		t.Error("a new row is not sent to the other ends")
	}
	m.Confirm("a", []string{"c"}, 5*time.Second, 31*time.Second, stale)
	if b, c := age("b", 31*time.Second), age("c", 31*time.Second); b != 5*time.Second || c != 30*time.Second {
		t.Errorf("ages %s and %s", b, c)
	}
	m.Replace("a", row, 32*time.Second)
	if column("b", time.Second, 32*time.Second) != 0 || m.SetSince("b", time.Second) {
		t.Error("what was confirmed or stored again is sent again")
	}
	if most, except, any := m.Confirmed("b", stale, 42*time.Second); most != 10*time.Second || len(except) > 0 || !any {
		t.Errorf("confirmed %s, except %v, %t", most, except, any)
	}
	if _, except, any := m.Confirmed("b", stale, 5*time.Minute); len(except) != 1 || any {
		t.Errorf("old edges are confirmed, except %v", except)
	}
	m.Confirm("a", nil, 0, 5*time.Minute, stale)
	if column("b", 4*time.Minute, 5*time.Minute) != 1 {
		t.Error("an edge that is no longer stale is not sent")
	}
	m.ConfirmColumn("b", nil, time.Second, 6*time.Minute)
	if b, c := age("b", 6*time.Minute), age("c", 6*time.Minute); b != time.Second || c != time.Minute {
		t.Errorf("ages %s and %s after the column was confirmed", b, c)
	}
	m.Replace("a", row[:1], 7*time.Minute)
	if e := m.View(7*time.Minute, stale, nil).Edge("a", "c"); e.Source == Measured {
		t.Errorf("an edge that is not in the new row is left: %+v", e)
	}
}

// TestCellsAreSmall: a cell is small, and a stored edge differs little from the measured one. Durations with
// three digits are exact. A longer duration is never stored as a shorter one.
func TestCellsAreSmall(t *testing.T) {
	if size := unsafe.Sizeof(trips{}); size != 10 {
		t.Errorf("the round trips of an edge take %d bytes", size)
	}
	if got := SpanOf(time.Minute*150 - 1).Duration(); got < 2*time.Hour {
		t.Errorf("the longest duration is %s", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(math.Exp(rapid.Float64Range(0, math.Log(float64(2*time.Hour))).Draw(t, "log")))
		got := SpanOf(d).Duration()
		if (got-d).Abs() > max(50*time.Nanosecond, time.Duration(float64(d)*0.000611)) || SpanOf(got) != SpanOf(d) || SpanOf(-d) != 0 {
			t.Fatalf("%s is stored as %s", d, got)
		}
		if longer := SpanOf(d + time.Duration(rapid.Int64Range(0, int64(d/1000)).Draw(t, "more"))); longer.Duration() < got {
			t.Fatalf("%s is stored as %s, and a longer duration as %s", d, got, longer.Duration())
		}
		exact := time.Duration(rapid.IntRange(0, 818).Draw(t, "digits")) * units[rapid.IntRange(0, len(units)-1).Draw(t, "unit")]
		if got := SpanOf(exact).Duration(); got != exact {
			t.Fatalf("%s is stored as %s", exact, got)
		}
		loss := rapid.Float64Range(-1, 2).Draw(t, "loss")
		if got := share(lossOf(loss)); math.Abs(got-min(1, max(0, loss))) > lossUnit {
			t.Fatalf("a loss of %v is stored as %v", loss, got)
		}
	})
}

// TestConfirmCopiesOnlyTimes: a confirmed row shares its measurements with earlier views.
func TestConfirmCopiesOnlyTimes(t *testing.T) {
	m := NewMatrix()
	m.SetRegions([]Region{{Name: "a"}, {Name: "b"}})
	m.Set(measured("a", "b", 10, OK), time.Second)
	v := m.View(time.Second, 0, nil)
	m.Confirm("a", nil, 0, time.Minute, time.Hour)
	if &m.rows[0].trips[0] != &v.rows[0].trips[0] || &m.rows[0].facts.at[0] != &v.rows[0].facts.at[0] || v.Edge("a", "b").Age != 3*time.Second || m.View(time.Minute, 0, nil).Edge("a", "b").Age != 0 {
		t.Errorf("the view has %v, the matrix %v", v.rows[0], m.rows[0])
	}
	if m.Set(measured("a", "b", 20, OK), time.Minute); v.Edge("a", "b").P50 != 10*msec {
		t.Errorf("the view has changed: %v", v.Edge("a", "b"))
	}
}

// TestPresentCopiesNothing: a present view equals the other one, and a later change copies no row.
func TestPresentCopiesNothing(t *testing.T) {
	m := NewMatrix()
	m.SetRegions([]Region{{Name: "a"}, {Name: "b"}})
	m.Set(measured("a", "b", 10, OK), time.Second)
	v := m.Present(time.Second, 0, nil)
	trips := &m.rows[0].trips[0]
	if v.Edge("a", "b") != m.Present(time.Second, 0, nil).Edge("a", "b") || v.Edge("a", "b").P50 != 10*msec {
		t.Errorf("the present view has %v", v.Edge("a", "b"))
	}
	m.Set(measured("a", "b", 20, OK), time.Minute)
	m.Confirm("a", nil, 0, time.Minute, time.Hour)
	if &m.rows[0].trips[0] != trips {
		t.Error("the row was copied")
	}
	kept := m.View(time.Minute, 0, nil)
	m.Present(time.Minute, 0, nil)
	if m.Set(measured("a", "b", 30, OK), time.Minute); kept.Edge("a", "b").P50 != 20*msec || m.Present(time.Minute, 0, nil).Edge("a", "b").P50 != 30*msec {
		t.Errorf("a view has changed: %v", kept.Edge("a", "b"))
	}
}
