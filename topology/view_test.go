package topology

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const msec = time.Millisecond

func measured(from, to string, p50 int, state State) Edge {
	d := time.Duration(p50) * msec
	return Edge{From: from, To: to, State: state, Source: Measured, P50: d, P90: d + 10*msec, P99: d + 20*msec,
		Samples: 5, Age: 3 * time.Second, Method: "udp"}
}

func at(x float64) *Coordinate {
	c := &Coordinate{Vector: make([]float64, Dimensions), Error: 0.2, Height: 0.001}
	c.Vector[0] = x
	return c
}

var (
	singapore = &Location{Latitude: 1.283, Longitude: 103.833}
	tokyo     = &Location{Latitude: 35.68, Longitude: 139.77}
)

func sample() *View {
	return NewView(
		[]Region{
			{Name: "a", Location: singapore, Coordinate: at(0)},
			{Name: "b", Location: tokyo, Coordinate: at(0.060)},
			{Name: "c", Location: tokyo},
			{Name: "d"},
		},
		[]Edge{
			measured("a", "b", 70, OK), measured("b", "a", 90, Stale),
			measured("a", "d", 30, OK),
			measured("d", "b", 40, Unreachable), measured("b", "d", 40, OK),
			measured("a", "nowhere", 1, OK),
			{From: "c", To: "d", P50: msec}, // never measured
		})
}

func TestEdgeTakesTheBestKnowledge(t *testing.T) {
	v := sample()
	estimate := EstimateRTT(*singapore, *tokyo)
	for _, tc := range []struct {
		from, to string
		source   Source
		state    State
		p50, p99 time.Duration
	}{
		{"a", "b", Measured, OK, 70 * msec, 90 * msec},
		{"b", "a", Measured, Stale, 90 * msec, 110 * msec},
		{"a", "c", Estimated, Unknown, estimate, time.Duration(float64(estimate) * (1 + EstimateError))},
		{"c", "d", None, Unknown, 0, 0},
		{"d", "b", Measured, Unreachable, 40 * msec, 60 * msec},
		{"a", "a", Measured, OK, 0, 0},
		{"a", "nowhere", None, Unknown, 0, 0},
	} {
		e := v.Edge(tc.from, tc.to)
		if e.From != tc.from || e.To != tc.to || e.Source != tc.source || e.State != tc.state || e.P50 != tc.p50 || e.P99 != tc.p99 {
			t.Errorf("Edge(%s, %s) = %+v, want %+v", tc.from, tc.to, e, tc)
		}
	}
	predicted := NewView(v.Regions(), nil).Edge("a", "b")
	if predicted.Source != Predicted || predicted.P50 != 62*msec || predicted.Error != 0.2 || predicted.P99 <= predicted.P50 {
		t.Errorf("predicted edge = %+v, want 62ms ± 0.2 with a higher p99", predicted)
	}
}

func TestInvalidCoordinatesAreDropped(t *testing.T) {
	fresh := at(0)
	fresh.Error = 1.5
	short := &Coordinate{Vector: []float64{1}, Error: 0.1}
	for name, c := range map[string]*Coordinate{"fresh": fresh, "short": short, "nil": nil} {
		v := NewView([]Region{{Name: "a", Coordinate: at(0)}, {Name: "b", Coordinate: c}}, nil)
		if e := v.Edge("a", "b"); e.Source != None {
			t.Errorf("%s coordinate gives %+v, want source none", name, e)
		}
	}
}

func TestDistanceIsTheWorseDirection(t *testing.T) {
	v := sample()
	for _, tc := range []struct {
		a, b string
		p    Percentile
		want string
	}{
		{"a", "b", 50, "90.0ms (stale, 3s old)"},
		{"b", "a", 99, "110.0ms (stale, 3s old)"},
		{"b", "a", 0, "90.0ms (stale, 3s old)"},
		{"a", "d", 90, "40.0ms"}, // only one direction was measured: its value counts
		{"d", "a", 50, "30.0ms"},
		{"b", "d", 50, "unreachable"}, // although b → d works
		{"c", "d", 50, "unknown"},
		{"a", "nowhere", 50, "unknown"},
		{"a", "a", 99, "0.0ms"},
	} {
		if got := v.Distance(tc.a, tc.b, tc.p).String(); got != tc.want {
			t.Errorf("Distance(%s, %s, p%d) = %s, want %s", tc.a, tc.b, tc.p, got, tc.want)
		}
	}
	if d := v.Distance("b", "d", 50); d.Known() {
		t.Error("an unreachable region has a known distance")
	}
	if d := v.Distance("a", "c", 50); !d.Known() || d.Source != Estimated {
		t.Errorf("Distance(a, c) = %+v, want a known estimate", d)
	}
}

func TestNearestRanksKnownBeforeUnknownBeforeUnreachable(t *testing.T) {
	v := sample()
	names := func(all []Neighbour) string {
		var s []string
		for _, n := range all {
			s = append(s, n.Region)
		}
		return strings.Join(s, " ")
	}
	if got := names(v.Nearest("a", 0, 50)); got != "d c b" {
		t.Errorf("nearest of a: %s, want d (30) c (estimated) b (90)", got)
	}
	if got := names(v.Nearest("d", 0, 50)); got != "a c b" {
		t.Errorf("nearest of d: %s, want a (30), c (unknown), b (unreachable)", got)
	}
	if got := names(v.Nearest("a", 1, 50)); got != "d" {
		t.Errorf("nearest of a, 1: %s", got)
	}
	if got := names(v.NearestToLocation(*tokyo, 0, 50)); got != "b c a d" {
		t.Errorf("nearest to Tokyo: %s, want b c a and then d, which has no location", got)
	}
	if got := v.Nearest("nowhere", 0, 50); got != nil {
		t.Errorf("nearest of an unknown region: %v", got)
	}
	if d := v.DistanceToLocation("b", *tokyo, 50); d.RTT != estimateFloor || d.Source != Estimated {
		t.Errorf("distance to the own place: %v", d)
	}
}

// Nearest returns every other region once, sorted by distance and name, and a
// limit only cuts the list.
func TestNearestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 8).Draw(t, "n")
		v := NewView(regionsOf(n), edgesGen(t, n))
		all := v.Nearest("r0", 0, 90)
		if len(all) != n-1 {
			t.Fatalf("%d regions near r0 of %d", len(all), n-1)
		}
		class := func(d Distance) int {
			if d.State == Unreachable {
				return 2
			}
			if d.Source == None {
				return 1
			}
			return 0
		}
		for i, x := range all {
			if x.Distance != v.Distance("r0", x.Region, 90) {
				t.Fatalf("%v, its distance is %v", x, v.Distance("r0", x.Region, 90))
			}
			if i == 0 {
				continue
			}
			before := all[i-1]
			if cmp.Or(cmp.Compare(class(before.Distance), class(x.Distance)), cmp.Compare(before.Distance.RTT, x.Distance.RTT),
				cmp.Compare(before.Region, x.Region)) >= 0 {
				t.Fatalf("%v before %v", before, x)
			}
		}
		if limit := rapid.IntRange(1, n).Draw(t, "limit"); !slices.Equal(v.Nearest("r0", limit, 90), all[:min(limit, n-1)]) {
			t.Fatal("a limit changes the order")
		}
	})
}

// edgesGen draws edges among n regions r0..rn-1, each at most once.
func edgesGen(t *rapid.T, n int) []Edge {
	var edges []Edge
	for i := range n {
		for j := range n {
			if i == j || !rapid.Bool().Draw(t, "present") {
				continue
			}
			state := rapid.SampledFrom([]State{OK, OK, OK, Stale, Unreachable}).Draw(t, "state")
			edges = append(edges, measured(fmt.Sprint("r", i), fmt.Sprint("r", j), rapid.IntRange(1, 40).Draw(t, "ms"), state))
		}
	}
	return edges
}

func regionsOf(n int) []Region {
	var all []Region
	for i := range n {
		all = append(all, Region{Name: fmt.Sprint("r", i)})
	}
	return all
}

func TestDistanceProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 6).Draw(t, "n")
		edges := edgesGen(t, n)
		v := NewView(regionsOf(n), edges)
		byPair := map[[2]string]Edge{}
		for _, e := range edges {
			byPair[[2]string{e.From, e.To}] = e
		}
		for i := range n {
			for j := range n {
				a, b := fmt.Sprint("r", i), fmt.Sprint("r", j)
				p := rapid.SampledFrom([]Percentile{50, 90, 99}).Draw(t, "p")
				d := v.Distance(a, b, p)
				if d != v.Distance(b, a, p) {
					t.Fatalf("distance of %s and %s depends on the order", a, b)
				}
				for _, e := range []Edge{byPair[[2]string{a, b}], byPair[[2]string{b, a}]} {
					if e.Source == None || i == j {
						continue
					}
					if e.State == Unreachable && d.Known() {
						t.Fatalf("%s–%s is known although %s → %s is unreachable", a, b, e.From, e.To)
					}
					if d.Known() && d.RTT < e.RTT(p) {
						t.Fatalf("%s–%s is %v, better than %s → %s with %v", a, b, d.RTT, e.From, e.To, e.RTT(p))
					}
				}
			}
		}
		shuffled := NewView(rapid.Permutation(regionsOf(n)).Draw(t, "regions"), rapid.Permutation(edges).Draw(t, "edges"))
		if !reflect.DeepEqual(v.Matrix(), shuffled.Matrix()) {
			t.Fatal("the matrix depends on the order of the input")
		}
	})
}

func TestMatrixIsCompleteAndSorted(t *testing.T) {
	m := sample().Matrix()
	if len(m) != 4*3 {
		t.Fatalf("%d edges, want one for each of 12 ordered pairs", len(m))
	}
	if !slices.IsSortedFunc(m, func(a, b Edge) int { return strings.Compare(a.From+"\x00"+a.To, b.From+"\x00"+b.To) }) {
		t.Error("not sorted")
	}
}

func TestViewKeepsNothingOfItsInput(t *testing.T) {
	labels := map[string]string{"k": "v"}
	place, coordinate := *singapore, at(1)
	v := NewView([]Region{{Name: "a", Labels: labels, Location: &place, Coordinate: coordinate}, {Name: "b", Location: tokyo}}, nil)
	before := v.Edge("a", "b")
	labels["k"], place.Latitude, coordinate.Vector[0] = "changed", 80, 9
	r, _ := v.Region("a")
	if r.Labels["k"] != "v" || r.Location.Latitude != singapore.Latitude || r.Coordinate.Vector[0] != 1 || v.Edge("a", "b") != before {
		t.Error("a change of the input changes the view")
	}
}

func TestViewIsSafeForConcurrentUse(t *testing.T) {
	v := sample()
	r := NewRouter(v, 50)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				v.Distance("a", "b", 99)
				v.Nearest("a", 0, 50)
				if _, err := r.Paths("a", "b", PathOptions{K: 3}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
