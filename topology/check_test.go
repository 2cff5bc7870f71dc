package topology

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestViolationsMatchABruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 7).Draw(t, "n")
		v := NewView(regionsOf(n), edgesGen(t, n))
		minGain := rapid.SampledFrom([]float64{0, 0.1, 0.25, 0.5}).Draw(t, "gain")
		var want []Violation
		usable := func(e Edge) bool { return e.Source == Measured && e.State != Unreachable && e.From != e.To }
		for _, direct := range v.Matrix() {
			best := Violation{Gain: minGain}
			for _, via := range v.Regions() {
				a, b := v.Edge(direct.From, via.Name), v.Edge(via.Name, direct.To)
				if !usable(direct) || !usable(a) || !usable(b) {
					continue
				}
				if gain := 1 - float64(a.P90+b.P90)/float64(direct.P90); gain > best.Gain && float64(a.P90+b.P90) < (1-minGain)*float64(direct.P90) {
					best = Violation{From: direct.From, Via: via.Name, To: direct.To, Direct: direct.P90, Relayed: a.P90 + b.P90,
						Gain: gain, State: max(direct.State, a.State, b.State)}
				}
			}
			if best.Via != "" {
				want = append(want, best)
			}
		}
		slices.SortStableFunc(want, func(a, b Violation) int { return cmp.Compare(b.Gain, a.Gain) })
		limit := rapid.IntRange(1, 10).Draw(t, "limit")
		got := v.Violations(90, minGain, limit)
		if got.Total != len(want) || !slices.Equal(got.List, want[:min(limit, len(want))]) {
			t.Fatalf("%d: %v\nwant %d: %v", got.Total, got.List, len(want), want)
		}
	})
}

func edge(from, to string, p50 int, state State, loss float64, samples int) Edge {
	e := measured(from, to, p50, state)
	e.Loss, e.Samples = loss, samples
	return e
}

func TestAsymmetriesNeedRatioAndDelta(t *testing.T) {
	v := NewView(regionsOf(6), []Edge{
		edge("r0", "r1", 50, OK, 0, 20), edge("r1", "r0", 80, OK, 0, 20), // by 30 ms
		edge("r0", "r2", 200, OK, 0, 20), edge("r2", "r0", 230, OK, 0, 20), // the directions differ by 30 ms, but not by a quarter
		edge("r0", "r3", 1, OK, 0, 20), edge("r3", "r0", 4, OK, 0, 20), // fourfold, but by 3 ms
		edge("r0", "r4", 10, OK, 0.2, 16), edge("r4", "r0", 10, OK, 0, 20), // 4 of 20 lost
		edge("r1", "r4", 10, OK, 0.1, 18), edge("r4", "r1", 10, OK, 0, 20), // 2 of 20 lost: chance
		edge("r1", "r2", 10, OK, 0, 20), edge("r2", "r1", 90, Unreachable, 0.5, 20),
		edge("r1", "r5", 90, OK, 0, 20), // one direction only
		edge("r2", "r3", 100, Stale, 0, 20), edge("r3", "r2", 40, OK, 0, 20),
	})
	got := v.Asymmetries(1.25, 10*msec, 0.05, 10)
	var lines []string
	for _, a := range got.List {
		lines = append(lines, a.String())
	}
	want := []string{
		"r2 → r3: 100.0ms, back 40.0ms: 60.0ms more",
		"r1 → r0: 80.0ms, back 50.0ms: 30.0ms more",
		"r0 → r4 loses 20% of probes, back 0%",
	}
	if got.Total != 3 || !slices.Equal(lines, want) {
		t.Errorf("%d: %s", got.Total, strings.Join(lines, "\n"))
	}
	if one := v.Asymmetries(1.25, 10*msec, 0.05, 1); one.Total != 3 || !reflect.DeepEqual(one.List, got.List[:1]) {
		t.Errorf("bounded: %+v", one)
	}
}

// A small world with one of each anomaly.
func TestCheckFindsEachAnomaly(t *testing.T) {
	paris, london := &Location{Latitude: 48.86, Longitude: 2.35}, &Location{Latitude: 51.51, Longitude: -0.13}
	old := edge("sgp", "tyo", 70, Stale, 0, 20)
	old.Age = 5 * time.Minute
	never := Edge{From: "lon", To: "tyo", Source: Measured, State: Unreachable}
	v := NewView([]Region{
		{Name: "lon", Location: london}, {Name: "par", Location: paris}, {Name: "sgp", Location: singapore},
		{Name: "tyo", Location: tokyo}, {Name: "wrong", Location: tokyo}, {Name: "void"},
	}, []Edge{
		edge("par", "sgp", 300, OK, 0, 20), edge("sgp", "par", 160, OK, 0, 20),
		edge("par", "lon", 8, OK, 0, 20), edge("lon", "par", 8, OK, 0, 20),
		edge("lon", "sgp", 170, OK, 0, 20),
		old, never, edge("tyo", "lon", 210, OK, 0, 20), edge("tyo", "sgp", 70, OK, 0, 20),
		edge("par", "wrong", 5, OK, 0, 20), edge("lon", "wrong", 9, OK, 0, 20),
		edge("sgp", "void", 0, Unreachable, 1, 0),
	})
	got := Check(v, CheckOptions{}).String()
	want := `6 regions; ordered pairs: 9 measured, 1 stale, 2 unreachable, 0 predicted, 9 estimated, 9 unknown
pairs that gain more than 10% by one relay: 1
  par → sgp: 300.0ms, by lon 178.0ms: 41% less
pairs that differ by direction: 1
  par → sgp: 300.0ms, back 160.0ms: 140.0ms more
pairs cut one way: 1
  lon cannot reach tyo, which reaches it in 210.0ms: does it let probes in?
regions out of reach for others: 2
  tyo is reached by no region; lon tried
  void is reached by no region; sgp tried
stale measurements: 1
  sgp → tyo: 70.0ms, 5m0s old
measurements faster than light in fibre: 2
`
	if !strings.HasPrefix(got, want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, part := range []string{"par → wrong: 5.0ms over 97", "lon → wrong: 9.0ms over 95", "the location of wrong would explain 2 of them"} {
		if !strings.Contains(got, part) {
			t.Errorf("no %q in\n%s", part, got)
		}
	}
	if quiet := Check(NewView(regionsOf(3), nil), CheckOptions{}); !quiet.Empty() || !strings.Contains(quiet.String(), "nothing odd") {
		t.Errorf("an empty view: %s", quiet)
	}
}

func TestUnreachedIsBoundedAndRanked(t *testing.T) {
	var edges []Edge
	for i := 1; i < 12; i++ {
		edges = append(edges, measured(fmt.Sprint("r", i), "r0", 10, Unreachable), measured("r0", fmt.Sprint("r", i), 10, OK))
	}
	edges = append(edges, measured("r2", "r1", 10, Unreachable))
	r := Check(NewView(regionsOf(12), edges), CheckOptions{Limit: 1})
	if r.Unreached.Total != 2 || len(r.Unreached.List) != 1 || r.Cuts.Total != 11 || len(r.Cuts.List) != 1 {
		t.Fatalf("%+v", r)
	}
	u := r.Unreached.List[0]
	if u.Region != "r0" || u.ByCount != 11 || len(u.By) != maxNamed || !strings.Contains(u.String(), "and 3 more") {
		t.Errorf("%+v: %s", u, u)
	}
}

func TestCheckIsIndependentOfTheOrderOfInput(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 6).Draw(t, "n")
		regions, edges := regionsOf(n), edgesGen(t, n)
		o := CheckOptions{Limit: rapid.IntRange(1, 4).Draw(t, "limit")}
		a := Check(NewView(regions, edges), o)
		b := Check(NewView(rapid.Permutation(regions).Draw(t, "r"), rapid.Permutation(edges).Draw(t, "e")), o)
		if !reflect.DeepEqual(a, b) {
			t.Fatalf("%v\n%v", a, b)
		}
	})
}

func TestFibreRTTOfAQuarterOfTheEquator(t *testing.T) {
	// A quarter of the equator, 10,007.6 km, at 204,218 km/s, in both
	// directions.
	if got := FibreRTT(Location{}, Location{Longitude: 90}); got.Round(msec/10) != 98*msec {
		t.Errorf("%v, want 98ms", got)
	}
}
