package topology

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// knownWorld is a view whose edges the test knows.
type knownWorld struct {
	view    *View
	edges   map[[2]string]Edge // measured
	guesses guesses
}

// guesses predict some pairs, and doubt some measurements.
type guesses struct {
	rtt    map[[2]int]time.Duration
	doubts []Doubt
}

func (g guesses) Number(region string) int {
	n, err := strconv.Atoi(region[1:])
	if err != nil {
		return -1
	}
	return n
}

func (g guesses) RTT(i, j int) (time.Duration, float64, bool) {
	rtt, ok := g.rtt[[2]int{i, j}]
	return rtt, 0.5, ok
}

func (g guesses) Doubts() []Doubt { return g.doubts }

// knownWorldGen draws a view with every kind of edge: fresh, stale, unreachable,
// predicted, estimated, unknown and doubted.
func knownWorldGen(t *rapid.T, n int) knownWorld {
	w := knownWorld{edges: map[[2]string]Edge{}, guesses: guesses{rtt: map[[2]int]time.Duration{}}}
	m := NewMatrix()
	regions := regionsOf(n)
	for i := range regions {
		if rapid.Bool().Draw(t, "located") {
			regions[i].Location = []*Location{singapore, tokyo}[i%2]
		}
	}
	m.SetRegions(regions)
	for _, e := range tiesGen(t, n) {
		m.Set(e, 0)
		if rapid.IntRange(0, 5).Draw(t, "doubt") == 0 {
			e.Doubt = "odd"
			w.guesses.doubts = append(w.guesses.doubts, Doubt{e.From, e.To, "odd"})
		}
		w.edges[[2]string{e.From, e.To}] = e
	}
	for i := range n {
		for j := range n {
			if rapid.Bool().Draw(t, "predicted") {
				w.guesses.rtt[[2]int{i, j}] = time.Duration(rapid.IntRange(0, 40).Draw(t, "guess")) * msec
			}
		}
	}
	w.view = m.View(0, 0, w.guesses)
	return w
}

// effective returns the edge that a path may use: for a doubted edge, the longer value
// of measurement and prediction. Trust is 0 for a fresh measurement, 1 for a stale one,
// 2 and 3 for guesses, and 9 for an edge that cannot be used.
func (w knownWorld) effective(from, to string) (e Edge, trust int) {
	guess, trust := Edge{From: from, To: to}, 9
	if rtt, relErr, ok := w.guesses.RTT(w.guesses.Number(from), w.guesses.Number(to)); ok {
		guess, trust = guess.guess(Predicted, rtt, relErr), 2
	} else if a, b := w.location(from), w.location(to); a != nil && b != nil {
		guess, trust = guess.guess(Estimated, EstimateRTT(*a, *b), EstimateError), 3
	}
	e, measured := w.edges[[2]string{from, to}]
	switch {
	case !measured:
		return guess, trust
	case e.State == Unreachable:
		return e, 9
	case e.Doubt != "" && trust < 9 && guess.P50 > e.P50:
		guess.Doubt = e.Doubt
		return guess, trust
	case e.State == Stale && w.edges[[2]string{to, from}].State == Unreachable:
		return e, 9
	case e.State == Stale:
		return e, 1
	}
	return e, 0
}

func (w knownWorld) location(name string) *Location {
	r, _ := w.view.Region(name)
	return r.Location
}

// paths returns all loopless paths with at most the given number of relays, by brute
// force, with costs by the documented formula and in the documented order. It uses the
// lowest trust that gives a path.
func (w knownWorld) paths(from, to string, p Percentile, relays int, weights Weights) []Path {
	var found []Path
	for most := 0; most <= 3 && len(found) == 0; most++ {
		var walk func(path Path)
		walk = func(path Path) {
			last := path.Regions[len(path.Regions)-1]
			if last == to {
				found = append(found, path)
				return
			}
			if len(path.Regions) > relays+1 {
				return
			}
			for _, next := range w.view.Names() {
				e, trust := w.effective(last, next)
				if slices.Contains(path.Regions, next) || trust > most {
					continue
				}
				walk(path.over(e, trust, p, weights))
			}
		}
		walk(Path{Regions: []string{from}, Source: Measured, State: OK})
	}
	slices.SortFunc(found, func(a, b Path) int {
		return cmp.Or(cmp.Compare(a.Cost.Total(), b.Cost.Total()), cmp.Compare(len(a.Regions), len(b.Regions)),
			slices.Compare(a.Regions, b.Regions))
	})
	return found
}

// over returns the path with one more edge.
func (path Path) over(e Edge, trust int, p Percentile, w Weights) Path {
	path.Regions, path.Doubts = append(slices.Clone(path.Regions), e.To), slices.Clone(path.Doubts)
	path.RTT += e.RTT(p)
	path.Cost.RTT += e.RTT(p)
	path.Upper += e.RTT(p)
	if trust > 1 {
		path.Upper += e.P90 - e.RTT(p)
		path.Source, path.State = max(path.Source, e.Source), Unknown
	} else if trust == 1 && path.State == OK {
		path.State = Stale
	}
	if e.Doubt != "" {
		path.Doubts = append(path.Doubts, Doubt{e.From, e.To, e.Doubt})
	}
	for _, l := range w.Links {
		if l.From == e.From && l.To == e.To {
			path.Cost.Links += time.Duration(math.Round(float64(e.RTT(p))*l.Factor)) - e.RTT(p)
		}
	}
	load := w.Loads[e.To]
	path.Cost.CPU += time.Duration(float64(w.CPU) * load.busy())
	path.Cost.Queue += time.Duration(float64(w.Queue) * load.queue())
	return path
}

func weightsGen(t *rapid.T, n int) Weights {
	if !rapid.Bool().Draw(t, "weighed") {
		return Weights{}
	}
	w := Weights{
		CPU:   time.Duration(rapid.IntRange(0, 5).Draw(t, "cpu")) * msec,
		Queue: time.Duration(rapid.IntRange(0, 5).Draw(t, "queue")) * msec,
		Loads: map[string]Load{},
	}
	for i := range n {
		if rapid.Bool().Draw(t, "loaded") {
			w.Loads[fmt.Sprint("r", i)] = Load{
				CPUMean: rapid.Float64Range(0, 1).Draw(t, "mean"), CPUVariance: rapid.Float64Range(0, 0.25).Draw(t, "variance"),
				QueueMean: float64(rapid.IntRange(0, 4).Draw(t, "length")), QueueVariance: float64(rapid.IntRange(0, 4).Draw(t, "spread")),
			}
		}
		if rapid.Bool().Draw(t, "linked") {
			w.Links = append(w.Links, LinkWeight{fmt.Sprint("r", i), fmt.Sprint("r", (i+1)%n), rapid.SampledFrom([]float64{0, 0.5, 1, 3}).Draw(t, "factor")})
		}
	}
	return w
}

// tiesGen draws edges with many equal costs and many zero costs, which tempt a
// search into loops.
func tiesGen(t *rapid.T, n int) []Edge {
	edges := edgesGen(t, n)
	for i := range edges {
		switch e := &edges[i]; rapid.IntRange(0, 4).Draw(t, "tie") {
		case 0, 1:
			e.P50, e.P90, e.P99 = 5*msec, 10*msec, 15*msec
		case 2:
			e.P50, e.P90, e.P99 = 0, 0, 0
		}
	}
	return edges
}

// For any number of relays, paths equal those of the brute force, in its order,
// with the same sources and states.
func TestPathsAreTheKBest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 6).Draw(t, "n")
		w := knownWorldGen(t, n)
		o := PathOptions{
			K:         rapid.IntRange(0, MaxPaths).Draw(t, "k"),
			MaxRelays: rapid.IntRange(-1, MaxRelays).Draw(t, "relays"),
			Weights:   weightsGen(t, n),
		}
		p := rapid.SampledFrom([]Percentile{50, 90, 99}).Draw(t, "p")
		to := fmt.Sprint("r", rapid.IntRange(1, n-1).Draw(t, "to"))
		paths, err := NewRouter(w.view, p).Paths("r0", to, o)
		if err != nil {
			t.Fatal(err)
		}
		want := w.paths("r0", to, p, o.relays(), o.Weights)
		if len(paths) != min(o.k(), len(want)) {
			t.Fatalf("%d paths, want %d", len(paths), min(o.k(), len(want)))
		}
		for i, got := range paths {
			off := got.Cost.Total() - want[i].Cost.Total()
			got.UnknownLoad, got.Cost.CPU, got.Cost.Queue = nil, want[i].Cost.CPU, want[i].Cost.Queue // off compares their sum
			if off.Abs() > 10 || !reflect.DeepEqual(got, want[i]) {
				t.Fatalf("path %d: %+v\nwant %+v", i, got, want[i])
			}
		}
	})
}

// The scan and the search for more relays agree where both can be used.
func TestSearchesAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 12).Draw(t, "n")
		v := NewView(regionsOf(n), tiesGen(t, n))
		w, err := weightsGen(t, n).compile(v)
		if err != nil {
			t.Fatal(err)
		}
		k, relays := rapid.IntRange(1, MaxPaths).Draw(t, "k"), rapid.IntRange(0, 2).Draw(t, "relays")
		s := search{n: n, from: 0, to: 1, cost: v.roundTrips(50), w: w}
		if scan, yen := s.scan(k, relays), s.kBest(k, relays); len(scan)+len(yen) > 0 && !reflect.DeepEqual(scan, yen) {
			t.Fatalf("scan %v\nyen %v", scan, yen)
		}
	})
}

// Both searches also agree on dense worlds of small numbers. In these most of a scan is
// skipped, so that a wrong skip changes the result.
func TestSearchesAgreeOnDenseWorlds(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	const n = 20
	for range 200 {
		s := search{n: n, from: 0, to: 1, cost: make([]int64, n*n)}
		for i := range s.cost {
			s.cost[i] = int64(rnd.IntN(12)) * int64(msec)
			if i/n == i%n {
				s.cost[i] = noWay
			}
		}
		if scan, yen := s.scan(3, 2), s.kBest(3, 2); len(scan) != 3 || !reflect.DeepEqual(scan, yen) {
			t.Fatalf("scan %v\nyen %v", scan, yen)
		}
	}
}

func TestPathNamesItsLeastTrustworthySource(t *testing.T) {
	v := NewView(
		[]Region{{Name: "a"}, {Name: "b", Location: singapore}, {Name: "c", Location: tokyo}, {Name: "d"}},
		[]Edge{measured("a", "b", 10, OK), measured("c", "d", 10, Stale)})
	r := NewRouter(v, 50)
	paths, err := r.Paths("a", "d", PathOptions{K: 4})
	if err != nil || len(paths) != 1 {
		t.Fatalf("paths %v, %v", paths, err)
	}
	got, e := paths[0], v.Edge("b", "c")
	if strings.Join(got.Regions, " ") != "a b c d" || got.Source != Estimated || got.State != Unknown ||
		got.RTT != 20*msec+e.P50 || got.Upper != 20*msec+e.P90 || got.Upper <= got.RTT {
		t.Errorf("path %+v, want a b c d, estimated", got)
	}
	if paths, err := r.Paths("d", "a", PathOptions{}); err != nil || len(paths) != 0 {
		t.Errorf("a path from d, which has no outgoing edge: %v, %v", paths, err)
	}
	if _, err := r.Paths("a", "x", PathOptions{}); !errors.Is(err, ErrUnknownRegion) {
		t.Errorf("path to a region that does not exist: %v", err)
	}
	if _, err := r.Paths("x", "a", PathOptions{}); !errors.Is(err, ErrUnknownRegion) {
		t.Errorf("path from a region that does not exist: %v", err)
	}
	if paths, err := r.Paths("a", "a", PathOptions{K: 3}); err != nil || len(paths) != 1 || paths[0].RTT != 0 || paths[0].Source != Measured {
		t.Errorf("path to itself: %v, %v", paths, err)
	}
}

// The sum of two lucky guesses is no reason to leave a measured path.
func TestPathsPreferMeasuredEdges(t *testing.T) {
	r := NewRouter(NewView(
		[]Region{{Name: "a", Coordinate: at(0)}, {Name: "relay", Coordinate: at(0.01), Location: tokyo}, {Name: "b", Coordinate: at(0.02)}, {Name: "c", Location: tokyo}},
		[]Edge{measured("a", "b", 70, OK), measured("a", "c", 70, Unreachable)}), 50)
	for _, tc := range []struct {
		from, to string
		paths    int
		source   Source
	}{
		{"a", "b", 1, Measured},
		{"b", "a", 2, Predicted},
		{"relay", "c", 1, Estimated},
		{"a", "c", 2, Estimated}, // the path leads over the relay with two guesses, and not directly
	} {
		paths, err := r.Paths(tc.from, tc.to, PathOptions{K: 5})
		if err != nil || len(paths) != tc.paths || paths[0].Source != tc.source {
			t.Errorf("%s to %s: %v, %v; want %d paths, %s", tc.from, tc.to, paths, err, tc.paths, tc.source)
		}
	}
}

// A path can be used now: it avoids unreachable edges, and stale edges if there
// is any other path. It reports doubts about its edges.
func TestPathsAvoidUnreachableAndStaleEdges(t *testing.T) {
	m := NewMatrix()
	m.SetRegions(regionsOf(4))
	for _, e := range []Edge{
		measured("r0", "r1", 10, Stale), measured("r0", "r2", 90, OK), measured("r2", "r1", 90, OK),
		measured("r0", "r3", 1, Unreachable), measured("r3", "r1", 1, OK), measured("r1", "r3", 7, Stale), measured("r2", "r3", 50, Unreachable),
		measured("r2", "r0", 9, Unreachable), measured("r3", "r2", 9, Stale),
	} {
		m.Set(e, 0)
	}
	r := NewRouter(m.View(0, 0, guesses{doubts: []Doubt{{"r2", "r1", "too long"}}}), 50)
	for _, tc := range []struct{ from, to, want string }{
		{"r0", "r1", "[r0 → r2 → r1 180.0ms, r2 → r1 as measured is too long]"},
		{"r0", "r3", "[r0 → r1 → r3 17.0ms (stale) r0 → r2 → r1 → r3 187.0ms (stale), r2 → r1 as measured is too long]"},
		{"r1", "r0", "[]"},
		{"r3", "r2", "[]"}, // the region that measured this edge is disconnected, and r2 finds r3 unreachable
	} {
		paths, err := r.Paths(tc.from, tc.to, PathOptions{K: 5})
		if got := fmt.Sprint(paths); err != nil || got != tc.want {
			t.Errorf("%s to %s: %s, %v; want %s", tc.from, tc.to, got, err, tc.want)
		}
	}
}

func TestPathsSurviveAbsurdRoundTrips(t *testing.T) {
	huge := measured("a", "b", 0, OK)
	huge.P50 = math.MaxInt64
	below := measured("b", "c", -7, OK)
	paths, err := NewRouter(NewView([]Region{{Name: "a"}, {Name: "b"}, {Name: "c"}}, []Edge{huge, below}), 50).
		Paths("a", "c", PathOptions{MaxRelays: 4, Weights: Weights{Links: []LinkWeight{{"a", "b", MaxLinkFactor}}}})
	if err != nil || len(paths) != 1 || paths[0].RTT != time.Hour || paths[0].Cost.Total() != time.Hour {
		t.Errorf("%v, %v; want one hour and no negative value", paths, err)
	}
}

func TestWeightsChooseAndShowTheirParts(t *testing.T) {
	r := NewRouter(NewView([]Region{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "d"}}, []Edge{
		measured("a", "b", 10, OK), measured("b", "d", 10, OK), measured("a", "c", 12, OK), measured("c", "d", 12, OK),
	}), 50)
	for _, tc := range []struct {
		name string
		w    Weights
		want string
		idle string
	}{
		{"pure latency", Weights{}, "a → b → d 20.0ms", ""},
		{"loads without a weight", Weights{Loads: map[string]Load{"b": {CPUMean: 0.99}}}, "a → b → d 20.0ms", ""},
		// ρ/(1−ρ)/2 = 2 at 0.8
		{"a busy relay", Weights{CPU: 3 * msec, Loads: map[string]Load{"b": {CPUMean: 0.8}, "d": {CPUMean: 0.8}}},
			"a → c → d 24.0ms, cost 30.0ms = rtt 24.0ms + cpu 6.0ms", "c"},
		// ρ/(1−ρ) · (1+C²)/2 = 0.5/0.5 · (1 + 0.25/0.25)/2 = 1
		{"an uneven end", Weights{CPU: 3 * msec, Loads: map[string]Load{"b": {}, "d": {CPUMean: 0.5, CPUVariance: 0.25}}},
			"a → b → d 20.0ms, cost 23.0ms = rtt 20.0ms + cpu 3.0ms", ""},
		{"a long queue", Weights{Queue: 2 * msec, Loads: map[string]Load{"b": {QueueMean: 2, QueueVariance: 9}, "c": {}, "d": {QueueMean: 1}}},
			"a → c → d 24.0ms, cost 26.0ms = rtt 24.0ms + queue 2.0ms", ""},
		{"an avoided link", Weights{Links: []LinkWeight{{"a", "b", 1.5}, {"x", "b", 9}}}, "a → c → d 24.0ms", ""},
		{"a preferred link", Weights{Links: []LinkWeight{{"c", "d", 7}, {"c", "d", 0.5}}}, "a → c → d 24.0ms, cost 18.0ms = rtt 24.0ms - links 6.0ms", ""},
	} {
		paths, err := r.Paths("a", "d", PathOptions{Weights: tc.w})
		if err != nil || len(paths) != 1 || paths[0].String() != tc.want || strings.Join(paths[0].UnknownLoad, " ") != tc.idle {
			t.Errorf("%s: %v, %v; want %s, %s idle", tc.name, paths, err, tc.want, tc.idle)
		}
	}
}

func TestWeightsOutOfBoundsAreRefused(t *testing.T) {
	r := NewRouter(NewView(regionsOf(2), nil), 50)
	for name, w := range map[string]Weights{
		"cpu -1ns":        {CPU: -1},
		"1m0.000000001s":  {Queue: MaxWeight + 1},
		"factor NaN":      {Links: []LinkWeight{{"r0", "r1", math.NaN()}}},
		"factor -1":       {Links: []LinkWeight{{"r0", "r1", -1}}},
		"4097 links":      {Links: make([]LinkWeight, MaxLinks+1)},
		"load of r1: cpu": {CPU: 1, Loads: map[string]Load{"r1": {CPUMean: 1.1}}},
		"cpu variance":    {CPU: 1, Loads: map[string]Load{"r1": {CPUVariance: 0.3}}},
		"queue mean NaN":  {Queue: 1, Loads: map[string]Load{"r1": {QueueMean: math.NaN()}}},
		"queue variance":  {Queue: 1, Loads: map[string]Load{"r1": {QueueVariance: math.Inf(1)}}},
	} {
		if _, err := r.Paths("r0", "r1", PathOptions{Weights: w}); !errors.Is(err, ErrWeights) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
