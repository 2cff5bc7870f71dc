package origin

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/topology"
)

const msec = time.Millisecond

var (
	singapore = &topology.Location{Latitude: 1.283, Longitude: 103.833}
	tokyo     = &topology.Location{Latitude: 35.68, Longitude: 139.77}
	jakarta   = &topology.Location{Latitude: -6.2, Longitude: 106.8}
)

func both(a, b string, millis int, state topology.State) []topology.Edge {
	d := time.Duration(millis) * msec
	e := topology.Edge{From: a, To: b, State: state, Source: topology.Measured, P50: d, P90: d, P99: d, Samples: 20}
	f := e
	f.From, f.To = b, a
	return []topology.Edge{e, f}
}

// router returns a router over a small matrix. From the region "sgp", the region "far" is
// nearest over a relay, "shut" cannot be reached, and "new" was never measured. "new" is
// in Tokyo, as is "tyo".
func router() *topology.Router {
	var edges []topology.Edge
	for _, e := range [][]topology.Edge{
		both("sgp", "tyo", 70, topology.OK), both("sgp", "syd", 92, topology.OK), both("sgp", "far", 200, topology.OK),
		both("tyo", "far", 80, topology.OK), both("sgp", "shut", 10, topology.Unreachable), both("sgp", "old", 30, topology.Stale),
		both("sgp", "cut", 10, topology.Unreachable), both("tyo", "cut", 5, topology.OK),
	} {
		edges = append(edges, e...)
	}
	return topology.NewRouter(topology.NewView([]topology.Region{
		{Name: "sgp", Location: singapore}, {Name: "tyo", Location: tokyo}, {Name: "syd"}, {Name: "far"}, {Name: "shut"},
		{Name: "old"}, {Name: "cut"}, {Name: "new", Location: tokyo}, {Name: "void"},
	}, edges), 50)
}

func TestChooseExplainsEachOrigin(t *testing.T) {
	r := router()
	for _, tc := range []struct {
		name    string
		client  Client
		origins []Origin
		policy  Policy
		want    string
	}{
		{"the nearest", Client{Region: "sgp"}, []Origin{{Region: "syd"}, {Region: "tyo"}}, Policy{},
			"tyo: directly sgp → tyo 70.0ms\n  then syd: 22ms further: directly sgp → syd 92.0ms\n"},
		{"at home", Client{Region: "syd"}, []Origin{{Region: "tyo"}, {Region: "syd"}}, Policy{},
			"syd: is in the same region\n  then tyo: 162ms further: by relay, there is no direct way: syd → sgp → tyo 162.0ms\n"},
		{"weights", Client{Region: "sgp"}, []Origin{{Region: "syd", Weight: 2}, {Region: "tyo"}}, Policy{},
			"syd: directly sgp → syd 92.0ms; weight 2 makes 46ms of 92ms\n  then tyo: 24ms further: directly sgp → tyo 70.0ms\n"},
		{"a relay that pays", Client{Region: "sgp"}, []Origin{{Region: "far"}}, Policy{},
			"far: by relay sgp → tyo → far 150.0ms instead of 200ms\n"},
		{"or not enough", Client{Region: "sgp"}, []Origin{{Region: "far"}}, Policy{MinRelayGain: 0.3},
			"far: directly sgp → far 200.0ms; relays bring under 30%\n"},
		{"a relay around a cut", Client{Region: "sgp"}, []Origin{{Region: "cut"}}, Policy{},
			"cut: by relay, there is no direct way: sgp → tyo → cut 75.0ms\n"},
		{"refusals have reasons", Client{Region: "sgp"},
			[]Origin{{Region: "void"}, {Region: "shut"}, {Region: "mars"}, {Region: "tyo", Drained: true}, {Region: "syd"}, {Region: "new"}},
			Policy{MaxRTT: 80 * msec, NoGuesses: true},
			"no origin can serve\n" +
				"  not mars: is not a region of the topology\n" +
				"  not new: is only estimated: sgp → tyo → new 71.0ms (estimated, up to 71.3ms)\n" +
				"  not shut: is unreachable from sgp, and no relay helps\n" +
				"  not syd: is beyond 80ms: sgp → syd 92.0ms\n" +
				"  not tyo: is drained\n" +
				"  not void: no path from sgp is known, and none can be predicted or estimated\n"},
		{"a guess counts at its upper end", Client{Region: "sgp"}, []Origin{{Region: "new"}, {Region: "syd"}}, Policy{Paths: topology.PathOptions{MaxRelays: topology.NoRelays}},
			"syd: directly sgp → syd 92.0ms\n  then new: 17.3ms further: directly sgp → new 80.9ms (estimated, up to 109.3ms)\n"},
		{"stale says so", Client{Region: "sgp"}, []Origin{{Region: "old"}}, Policy{}, "old: directly sgp → old 30.0ms (stale)\n"},
		{"the current one is kept", Client{Region: "sgp"}, []Origin{{Region: "syd"}, {Region: "tyo"}}, Policy{Current: "syd"},
			"syd: kept: tyo would gain only 22ms; directly sgp → syd 92.0ms\n  then tyo: 22ms nearer, not worth moving: directly sgp → tyo 70.0ms\n"},
		{"unless it is far worse", Client{Region: "sgp"}, []Origin{{Region: "far"}, {Region: "tyo"}}, Policy{Current: "far"},
			"tyo: directly sgp → tyo 70.0ms\n  then far: 80ms further: by relay sgp → tyo → far 150.0ms instead of 200ms\n"},
		{"or cannot serve", Client{Region: "sgp"}, []Origin{{Region: "shut"}, {Region: "tyo"}}, Policy{Current: "shut"},
			"tyo: directly sgp → tyo 70.0ms\n  not shut: is unreachable from sgp, and no relay helps\n"},
		{"a client on the map", Client{Location: jakarta}, []Origin{{Region: "syd"}}, Policy{},
			"syd: enters at sgp, 14.4ms (estimated, up to 19.5ms) away; directly sgp → syd 92.0ms\n"},
		{"of what is too far the shortest way", Client{Location: jakarta}, []Origin{{Region: "syd"}}, Policy{MaxRTT: 100 * time.Millisecond},
			"no origin can serve\n  not syd: is beyond 100ms: enters at sgp, 14.4ms (estimated, up to 19.5ms) away; sgp → syd 92.0ms\n"},
	} {
		got, err := Choose(r, tc.client, tc.origins, tc.policy)
		if err != nil || got.String() != tc.want {
			t.Errorf("%s: %v\n%s\nwant\n%s", tc.name, err, got, tc.want)
		}
	}
}

// Origins with equal scores are ordered by cost, then by name.
func TestEqualScoresAreOrderedByCostThenName(t *testing.T) {
	var edges []topology.Edge
	for _, e := range [][]topology.Edge{both("x", "c", 50, topology.OK), both("x", "b", 50, topology.OK), both("x", "a", 100, topology.OK)} {
		edges = append(edges, e...)
	}
	r := topology.NewRouter(topology.NewView([]topology.Region{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "x"}}, edges), 50)
	got, err := Choose(r, Client{Region: "x"}, []Origin{{Region: "c"}, {Region: "a", Weight: 2}, {Region: "b"}}, Policy{Paths: topology.PathOptions{MaxRelays: topology.NoRelays}})
	if err != nil || got.Region != "b" || got.Others[0].Region != "c" || got.Others[1].Region != "a" || got.Score != got.Others[1].Score {
		t.Errorf("%v\n%s", err, got)
	}
}

func TestLoadMovesClients(t *testing.T) {
	p := Policy{Paths: topology.PathOptions{Weights: topology.Weights{Queue: 10 * msec,
		Loads: map[string]topology.Load{"tyo": {QueueMean: 3}, "syd": {}, "sgp": {}}}}}
	got, err := Choose(router(), Client{Region: "sgp"}, []Origin{{Region: "tyo"}, {Region: "syd"}}, p)
	if err != nil || got.Region != "syd" || got.Others[0].Cost != 100*msec || got.Others[0].Path.Cost.Queue != 30*msec {
		t.Errorf("%v, %v", got, err)
	}
}

func TestChooseRefusesInvalidInput(t *testing.T) {
	r, good := router(), []Origin{{Region: "tyo"}}
	for _, tc := range []struct {
		client  Client
		origins []Origin
		policy  Policy
		want    error
	}{
		{Client{}, good, Policy{}, ErrClient},
		{Client{Region: "sgp", Location: tokyo}, good, Policy{}, ErrClient},
		{Client{Location: &topology.Location{Latitude: 91}}, good, Policy{}, ErrClient},
		{Client{Region: "mars"}, good, Policy{}, topology.ErrUnknownRegion},
		{Client{Region: "sgp"}, nil, Policy{}, ErrOrigin},
		{Client{Region: "sgp"}, []Origin{{}}, Policy{}, ErrOrigin},
		{Client{Region: "sgp"}, []Origin{{Region: "tyo"}, {Region: "tyo"}}, Policy{}, ErrOrigin},
		{Client{Region: "sgp"}, []Origin{{Region: "tyo", Weight: -1}}, Policy{}, ErrOrigin},
		{Client{Region: "sgp"}, []Origin{{Region: "tyo", Weight: math.NaN()}}, Policy{}, ErrOrigin},
		{Client{Region: "sgp"}, make([]Origin, MaxOrigins+1), Policy{}, ErrTooMany},
		{Client{Region: "sgp"}, good, Policy{Paths: topology.PathOptions{Weights: topology.Weights{CPU: -1}}}, topology.ErrWeights},
	} {
		if _, err := Choose(r, tc.client, tc.origins, tc.policy); !errors.Is(err, tc.want) {
			t.Errorf("%+v %+v: %v, want %v", tc.client, tc.origins, err, tc.want)
		}
	}
	if _, err := Choose(topology.NewRouter(topology.NewView(nil, nil), 50), Client{Location: tokyo}, good, Policy{}); !errors.Is(err, ErrClient) {
		t.Errorf("a world without locations: %v", err)
	}
}

// The order of the origins does not matter. Each origin is in the result once. The chosen
// origin has the lowest score of those that are not refused.
func TestChooseProperties(t *testing.T) {
	names := []string{"sgp", "tyo", "syd", "far", "shut", "old", "cut", "new", "void", "mars"}
	r := router()
	rapid.Check(t, func(t *rapid.T) {
		var origins []Origin
		for _, name := range rapid.Permutation(names).Draw(t, "names")[:rapid.IntRange(1, len(names)).Draw(t, "n")] {
			origins = append(origins, Origin{Region: name, Weight: rapid.SampledFrom([]float64{0, 1, 2, 0.5}).Draw(t, "weight"), Drained: rapid.IntRange(0, 4).Draw(t, "drained") == 0})
		}
		c := Client{Region: rapid.SampledFrom(names[:8]).Draw(t, "client")}
		if rapid.Bool().Draw(t, "on the map") {
			c = Client{Location: jakarta}
		}
		p := Policy{MaxRTT: time.Duration(rapid.IntRange(0, 200).Draw(t, "max")) * msec, NoGuesses: rapid.Bool().Draw(t, "no guesses")}
		got, err := Choose(r, c, origins, p)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Choose(r, c, rapid.Permutation(origins).Draw(t, "again"), p)
		if err != nil || !reflect.DeepEqual(got, again) {
			t.Fatalf("depends on the order:\n%s\n%s", got, again)
		}
		all := got.Others
		if got.Region != "" {
			all = append(all, got.Candidate)
		}
		if len(all) != len(origins) {
			t.Fatalf("%d origins of %d in the result", len(all), len(origins))
		}
		for _, o := range all {
			if o.Why == "" || o.Refused != (len(o.Path.Regions) == 0) {
				t.Fatalf("%+v", o)
			}
			if !o.Refused && (got.Region == "" || o.Score < got.Score) {
				t.Fatalf("%s is better:\n%s", o.Region, got)
			}
			if !o.Refused && (o.Drained || p.NoGuesses && o.Path.Source != topology.Measured || p.MaxRTT > 0 && o.Path.Upper > p.MaxRTT) {
				t.Fatalf("%s may not serve:\n%s", o.Region, got)
			}
		}
	})
}

func TestTableMatchesTheMostSpecificRecord(t *testing.T) {
	at := []Origin{{Region: "tyo"}}
	table, err := NewTable([]Record{
		{"example.com", at}, {"*.example.com", at}, {"*.A.Example.com.", at}, {"b.a.example.com", at}, {"*.org", at},
	})
	if err != nil {
		t.Fatal(err)
	}
	for domain, want := range map[string]string{
		"example.com": "example.com", "EXAMPLE.com.": "example.com", "x.example.com": "*.example.com",
		"x.y.example.com": "*.example.com", "a.example.com": "*.example.com", "x.a.example.com": "*.a.example.com",
		"B.a.example.com": "b.a.example.com", "c.b.a.example.com": "*.a.example.com", "x.org": "*.org",
	} {
		if got, err := table.Match(domain); err != nil || got.Pattern != want {
			t.Errorf("%s: %v, %v; want %s", domain, got, err, want)
		}
	}
	for domain, want := range map[string]error{
		"org": ErrNoRecord, "example.net": ErrNoRecord, "xexample.com": ErrNoRecord, "": ErrDomainLength, "*.example.com": ErrLabel,
	} {
		if _, err := table.Match(domain); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", domain, err, want)
		}
	}
	for _, tc := range []struct {
		records []Record
		want    error
	}{
		{[]Record{{"a.com", at}, {"A.com.", at}}, ErrDuplicate},
		{[]Record{{"a.com", nil}}, ErrOrigin},
		{[]Record{{"a..com", at}}, ErrLabelLength},
		{make([]Record, MaxRecords+1), ErrTooMany},
	} {
		if _, err := NewTable(tc.records); !errors.Is(err, tc.want) {
			t.Errorf("%v, want %v", err, tc.want)
		}
	}
}

func TestParsePattern(t *testing.T) {
	label := strings.Repeat("a", MaxLabel)
	long := label + "." + label + "." + label + "." + strings.Repeat("a", 61) // 253
	for _, tc := range []struct {
		in, want string
		err      error
	}{
		{"Example.COM.", "example.com", nil}, {"*.Example.com", "*.example.com", nil}, {"localhost", "localhost", nil},
		{"1.example2.com", "1.example2.com", nil}, {"xn--bcher-kva.example", "xn--bcher-kva.example", nil},
		{long, long, nil}, {long + ".", long, nil},
		{"", "", ErrDomainLength}, {".", "", ErrDomainLength}, {long + "a", "", ErrDomainLength}, {"*." + long, "", ErrDomainLength},
		{label + "a.com", "", ErrLabelLength}, {"a..b", "", ErrLabelLength}, {".a", "", ErrLabelLength}, {"a.b..", "", ErrLabelLength},
		{"-a.com", "", ErrLabel}, {"a-.com", "", ErrLabel}, {"a_b.com", "", ErrLabel}, {"bücher.example", "", ErrLabel}, {"a b.com", "", ErrLabel},
		{"*", "", ErrWildcard}, {"*.", "", ErrWildcard}, {"a.*.com", "", ErrWildcard}, {"*a.com", "", ErrWildcard}, {"*.*.com", "", ErrWildcard},
		{"10.0.0.1", "", ErrAddress}, {"*.0.0.1", "", ErrAddress}, {"::1", "", ErrLabel},
	} {
		got, err := ParsePattern(tc.in)
		if got != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("%.40q: %q, %v; want %q, %v", tc.in, got, err, tc.want, tc.err)
		}
		if err != nil && len(err.Error()) > 300 {
			t.Errorf("%.40q: a long error of %d", tc.in, len(err.Error()))
		}
	}
}
