package sets_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/internal/sets"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// peer draws a region whose coordinate a table can hold exactly.
func peer(t *rapid.T, name string) *nusav1.PeerRegion {
	p := &nusav1.PeerRegion{Name: name}
	if rapid.Bool().Draw(t, "located") {
		p.Location = &nusav1.Location{Latitude: rapid.Float64Range(-90, 90).Draw(t, "lat"), Longitude: 7.5, Name: rapid.SampledFrom([]string{"", "Jakarta"}).Draw(t, "place")}
	}
	if rapid.Bool().Draw(t, "labelled") {
		p.Labels = map[string]string{"jurisdiction": rapid.SampledFrom([]string{"eu", "id"}).Draw(t, "label"), "tier": "1"}
	}
	if rapid.Bool().Draw(t, "at") {
		p.Coordinate = &nusav1.Coordinate{Error: 0.25, Height: 1.0 / 1024, Vector: []float64{float64(rapid.IntRange(-900, 900).Draw(t, "x")) / 8192, 0.5}}
	}
	hosts := []string{"10.0.0.1", "10.0.0.2", "::1", "db.example"}
	address := func(port int) []string {
		var out []string
		for _, h := range rapid.SliceOfN(rapid.SampledFrom(hosts), 0, 3).Draw(t, "hosts") {
			if h == "::1" {
				h = "[::1]"
			}
			out = append(out, fmt.Sprintf("%s:%d", h, port))
		}
		return out
	}
	p.ProbeAddresses, p.GrpcAddresses = address(7613), address(7610)
	return p
}

// TestPeersKeepTheirContent: regions are equal after packing and unpacking, and the hashes
// of both ends are equal. The changes between two sets of peers, by bucket or by name,
// make one set of the other.
func TestPeersKeepTheirContent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func() (out []*nusav1.PeerRegion) {
			for i := range 12 {
				if rapid.Bool().Draw(t, "there") {
					out = append(out, peer(t, fmt.Sprintf("r%02d", i)))
				}
			}
			return out
		}
		a, b := draw(), draw()
		same := func(what string, got, want []*nusav1.PeerRegion) {
			if len(got) != len(want) {
				t.Fatalf("%s: %d regions, want %d", what, len(got), len(want))
			}
			for i := range got {
				if !proto.Equal(got[i], want[i]) {
					t.Fatalf("%s: %v, want %v", what, got[i], want[i])
				}
			}
			if !slices.Equal(sets.HashPeers(got), sets.HashPeers(want)) {
				t.Fatalf("%s: the hashes differ", what)
			}
		}
		got, err := sets.UnpackPeers(sets.PackPeers(a), 100)
		if err != nil {
			t.Fatal(err)
		}
		same("unpacked", got, a)

		byBucket, byName := &nusav1.PeerChanges{}, &nusav1.PeerChanges{}
		have, want := sets.HashPeers(a), sets.HashPeers(b)
		var inBuckets, changed []*nusav1.PeerRegion
		for i := range uint32(sets.Buckets) {
			if have == nil || want == nil || have[i] != want[i] {
				byBucket.Buckets = append(byBucket.Buckets, i)
			}
		}
		for _, p := range b {
			if slices.Contains(byBucket.Buckets, sets.Bucket(p.GetName())) {
				inBuckets = append(inBuckets, p)
			}
			if !slices.ContainsFunc(a, func(old *nusav1.PeerRegion) bool { return proto.Equal(old, p) }) {
				changed = append(changed, p)
			}
		}
		for _, p := range a {
			if !slices.ContainsFunc(b, func(next *nusav1.PeerRegion) bool { return next.GetName() == p.GetName() }) {
				byName.Removed = append(byName.Removed, p.GetName())
			}
		}
		byBucket.Table, byName.Table = sets.PackPeers(inBuckets), sets.PackPeers(changed)
		for what, c := range map[string]*nusav1.PeerChanges{"by bucket": byBucket, "by name": byName} {
			merged, err := sets.MergePeers("own", a, c, 100)
			if err != nil {
				t.Fatal(err)
			}
			same(what, merged, b)
		}
	})
}

// TestDemandOfPeers: the probe demand stays when peers change, until a new demand replaces
// all of it.
func TestDemandOfPeers(t *testing.T) {
	table := func(names ...string) []byte {
		var out []*nusav1.PeerRegion
		for _, n := range names {
			out = append(out, &nusav1.PeerRegion{Name: n})
		}
		return sets.PackPeers(out)
	}
	var peers []*nusav1.PeerRegion
	for _, step := range []struct {
		c    *nusav1.PeerChanges
		want string
	}{
		{&nusav1.PeerChanges{Table: table("a", "own", "b"), Demand: &nusav1.ProbeDemand{Regions: []string{"b"}, Values: []float64{0.5}}}, "a 0, b 0.5"},
		{&nusav1.PeerChanges{Table: table("b", "c")}, "a 0, b 0.5, c 0"},
		{&nusav1.PeerChanges{Demand: &nusav1.ProbeDemand{Regions: []string{"c"}, Values: []float64{1}}, Removed: []string{"a"}}, "b 0, c 1"},
	} {
		var err error
		if peers, err = sets.MergePeers("own", peers, step.c, 100); err != nil {
			t.Fatal(err)
		}
		got := ""
		for i, p := range peers {
			if i > 0 {
				got += ", "
			}
			got += fmt.Sprint(p.GetName(), " ", p.GetProbeDemand())
		}
		if got != step.want {
			t.Errorf("%s, want %s", got, step.want)
		}
	}
}

// TestMalformedTables: a table that no correct sender makes is refused.
func TestMalformedTables(t *testing.T) {
	pack := func(m proto.Message) []byte {
		raw, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return sets.Deflate(raw)
	}
	for name, data := range map[string][]byte{
		"no compression": []byte("x"), "no table": sets.Deflate([]byte{0xff}), "too long": sets.Deflate(make([]byte, 17<<20)),
		"lists": pack(&nusav1.PeerTable{Names: []string{"a"}}), "too many": sets.PackPeers([]*nusav1.PeerRegion{{Name: "a"}, {Name: "b"}}),
		"addresses": pack(&nusav1.PeerTable{Names: []string{"a"}, Latitudes: []float64{0}, Longitudes: []float64{0}, Places: []string{""}, Counts: []uint32{1 << 31}}),
	} {
		if _, err := sets.UnpackPeers(data, 1); err == nil {
			t.Errorf("peers, %s: no error", name)
		}
		if _, err := sets.UnpackRow("a", data, 1); err == nil {
			t.Errorf("edges, %s: no error", name)
		}
	}
}

// TestEdgesKeepTheirContent: after packing and unpacking, round trips differ by at most
// 0.1 %. A second packing changes nothing.
func TestEdgesKeepTheirContent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rtt := rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(rapid.Int64Range(0, int64(time.Minute)/1000).Draw(t, "µs")) * time.Microsecond
		})
		var edges []topology.Edge
		for i := range rapid.IntRange(0, 5).Draw(t, "edges") {
			edges = append(edges, topology.Edge{
				From: "own", To: fmt.Sprint("r", i), State: topology.State(rapid.IntRange(0, int(topology.Unreachable)).Draw(t, "state")),
				Source: topology.Measured, P50: rtt.Draw(t, "p50"), P90: rtt.Draw(t, "p90"), P99: rtt.Draw(t, "p99"), Min: rtt.Draw(t, "min"),
				Jitter: rtt.Draw(t, "jitter"), Loss: float64(rapid.IntRange(0, 100).Draw(t, "loss")) / 100, Samples: rapid.IntRange(0, 50).Draw(t, "samples"),
				Age: time.Duration(rapid.IntRange(0, 300).Draw(t, "age")) * time.Second, Method: "tcp", ReverseReachable: rapid.Bool().Draw(t, "reverse"),
			})
		}
		packed := sets.PackRow(edges)
		got, err := sets.UnpackRow("own", packed, 10)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != len(edges) {
			t.Fatalf("%d edges, want %d", len(got), len(edges))
		}
		for i, e := range got {
			want := edges[i]
			for _, pair := range [][2]*time.Duration{{&e.P50, &want.P50}, {&e.P90, &want.P90}, {&e.P99, &want.P99}, {&e.Min, &want.Min}, {&e.Jitter, &want.Jitter}} {
				if off := (*pair[0] - *pair[1]).Abs(); off > *pair[1]/1000 {
					t.Fatalf("%v came back as %v", *pair[1], *pair[0])
				}
				*pair[0] = *pair[1]
			}
			if e != want {
				t.Fatalf("%+v, want %+v", e, want)
			}
		}
		if again := sets.PackRow(got); !bytes.Equal(again, packed) {
			t.Fatal("another packing differs")
		}
	})
}
