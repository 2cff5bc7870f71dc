package sets

import (
	"testing"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// FuzzSets: whatever a region or the global tier sends of the sets, they are read or refused, and
// what is read is bounded.
func FuzzSets(f *testing.F) {
	const most = 20
	peers := []*nusav1.PeerRegion{{Name: "a", Location: &nusav1.Location{Latitude: 1, Longitude: 2, Name: "x"}, Labels: map[string]string{"k": "v"}}, {Name: "b"}}
	changes, err := proto.Marshal(&nusav1.MatrixChanges{Full: true, Regions: []string{"a", "b"}, Values: Deflate([]byte{1, 2, 3, 4})})
	if err != nil {
		f.Fatal(err)
	}
	some, err := proto.Marshal(&nusav1.MatrixChanges{Numbers: []uint32{2}, Regions: []string{"c"}, Values: Deflate([]byte{1, 2, 3, 4})})
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range [][]byte{PackPeers(peers), PackRow([]topology.Edge{{From: "a", To: "b"}}), changes, some, Deflate(make([]byte, 1000))} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if got, err := UnpackPeers(raw, most); err == nil && len(got) > most {
			t.Errorf("%d regions", len(got))
		}
		for _, read := range []func(string, []byte, int) ([]topology.Edge, error){UnpackRow, UnpackColumn} {
			if got, err := read("a", raw, most); err == nil && len(got) > most {
				t.Errorf("%d edges", len(got))
			}
		}
		var c nusav1.MatrixChanges
		if proto.Unmarshal(raw, &c) == nil {
			have := &nusav1.CompactMatrix{Regions: []string{"a", "b"}, P50: make([]byte, 8), Fresh: make([]byte, 1)}
			if got, err := MergeMatrix(have, &c, most); err == nil && len(got.GetRegions()) > most {
				t.Errorf("%d regions", len(got.GetRegions()))
			}
		}
		var p nusav1.PeerChanges
		if proto.Unmarshal(raw, &p) == nil {
			if got, err := MergePeers("a", peers, &p, most); err == nil && len(got) > most+len(peers) {
				t.Errorf("%d regions", len(got))
			}
		}
	})
}
