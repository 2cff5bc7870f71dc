package topology

import (
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestGreatCircleOfKnownDistances(t *testing.T) {
	paris := Location{Latitude: 48.8567, Longitude: 2.3508}
	london := Location{Latitude: 51.5072, Longitude: -0.1275}
	for _, tc := range []struct {
		name string
		a, b Location
		km   float64
	}{
		{"Paris to London", paris, london, 344},
		{"Singapore to Tokyo", *singapore, *tokyo, 5320},
		{"pole to pole", Location{Latitude: 90}, Location{Latitude: -90}, math.Pi * earthRadius},
		{"over the date line", Location{Longitude: 179.5}, Location{Longitude: -179.5}, earthRadius * math.Pi / 180},
		{"nowhere", paris, paris, 0},
	} {
		if got := GreatCircle(tc.a, tc.b); math.Abs(got-tc.km) > 1+tc.km*0.003 {
			t.Errorf("%s: %.1f km, want %.1f", tc.name, got, tc.km)
		}
	}
}

func TestGreatCircleIsAMetric(t *testing.T) {
	place := rapid.Custom(func(t *rapid.T) Location {
		return Location{Latitude: rapid.Float64Range(-90, 90).Draw(t, "lat"), Longitude: rapid.Float64Range(-180, 180).Draw(t, "lon")}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := place.Draw(t, "a"), place.Draw(t, "b"), place.Draw(t, "c")
		ab, bc, ac := GreatCircle(a, b), GreatCircle(b, c), GreatCircle(a, c)
		if math.Abs(ab-GreatCircle(b, a)) > 1e-6 || ab < 0 || ab > math.Pi*earthRadius+1e-6 || ac > ab+bc+1e-3 {
			t.Fatalf("ab %v bc %v ac %v", ab, bc, ac)
		}
	})
}

func TestLocationValid(t *testing.T) {
	for _, bad := range []Location{{Latitude: 90.1}, {Latitude: -91}, {Longitude: 181}, {Longitude: -180.5}, {Latitude: math.NaN()}} {
		if bad.Valid() {
			t.Errorf("%+v is valid", bad)
		}
	}
	if !(Location{Latitude: -90, Longitude: 180}).Valid() {
		t.Error("the corner of the value range is not valid")
	}
}

// plane returns round trips that coordinates can describe exactly: those of points on a
// plane with access links.
func plane(n int, rnd *rand.Rand) (names []string, rtt [][]time.Duration) {
	type point struct{ x, y, h float64 }
	points := make([]point, n)
	for i := range points {
		points[i] = point{rnd.Float64() * 0.15, rnd.Float64() * 0.15, 0.001 + rnd.Float64()*0.003}
		names = append(names, string(rune('a'+i)))
	}
	for i := range n {
		row := make([]time.Duration, n)
		for j := range n {
			d := math.Hypot(points[i].x-points[j].x, points[i].y-points[j].y) + points[i].h + points[j].h
			row[j] = time.Duration(d * float64(time.Second))
		}
		rtt = append(rtt, row)
	}
	return names, rtt
}

func learn(rounds int) ([]*Tracker, []string, [][]time.Duration) {
	rnd := rand.New(rand.NewPCG(1, 2))
	names, rtt := plane(16, rnd)
	trackers := make([]*Tracker, len(names))
	for i, name := range names {
		trackers[i] = NewTracker(name)
	}
	for range rounds {
		for i := range trackers {
			j := rnd.IntN(len(trackers))
			if i == j || (i+j)%4 == 0 { // a quarter of the pairs is never measured
				continue
			}
			if err := trackers[i].Update(names[j], trackers[j].Coordinate(), rtt[i][j]); err != nil {
				panic(err)
			}
		}
	}
	return trackers, names, rtt
}

func TestTrackersPredictUnmeasuredPairs(t *testing.T) {
	trackers, names, rtt := learn(600)
	var regions []Region
	for i, name := range names {
		c := trackers[i].Coordinate()
		regions = append(regions, Region{Name: name, Coordinate: &c})
	}
	v := NewView(regions, nil)
	var errs []float64
	for i := range names {
		for j := range names {
			if i == j || (i+j)%4 != 0 {
				continue
			}
			e := v.Edge(names[i], names[j])
			if e.Source != Predicted {
				t.Fatalf("%s to %s: %+v, want a prediction", names[i], names[j], e)
			}
			errs = append(errs, math.Abs(float64(e.P50-rtt[i][j]))/float64(rtt[i][j]))
		}
	}
	slices.Sort(errs)
	if median := errs[len(errs)/2]; median > 0.15 {
		t.Errorf("median relative error %.3f of unmeasured pairs, want at most 0.15", median)
	}
}

func TestTrackersAreDeterministic(t *testing.T) {
	one, _, _ := learn(100)
	two, _, _ := learn(100)
	for i := range one {
		if !reflect.DeepEqual(one[i].Coordinate(), two[i].Coordinate()) {
			t.Fatalf("tracker %d differs between equal runs", i)
		}
	}
}

func TestPredictIsTheLibrarysDistance(t *testing.T) {
	trackers, _, _ := learn(50)
	a, b := trackers[0].Coordinate(), trackers[1].Coordinate()
	rtt, _, ok := predict(&a, &b)
	if want := a.serf().DistanceTo(b.serf()); !ok || rtt != want {
		t.Errorf("predicted %v, %v; want %v", rtt, ok, want)
	}
}

func TestTrackerRefusesInvalidSamples(t *testing.T) {
	tracker := NewTracker("a")
	before := tracker.Coordinate()
	bad := *at(1)
	bad.Vector[3] = math.NaN()
	for name, c := range map[string]Coordinate{"not a number": bad, "two dimensions": {Vector: []float64{1, 2}}} {
		if err := tracker.Update("b", c, msec); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if err := tracker.Update("b", *at(1), -msec); err == nil {
		t.Error("a negative round trip was accepted")
	}
	if !reflect.DeepEqual(before, tracker.Coordinate()) {
		t.Error("an invalid sample moved the coordinate")
	}
}
