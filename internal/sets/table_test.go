package sets

import (
	"testing"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestTableIsDecodedAsByTheLibrary: a table that is used again has what the library decodes, and nothing of earlier tables.
func TestTableIsDecodedAsByTheLibrary(t *testing.T) {
	encode := func(e *nusav1.EdgeTable) []byte {
		raw, err := proto.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	names := encode(&nusav1.EdgeTable{Regions: []string{"a", "b", "a"}})
	values := encode(&nusav1.EdgeTable{States: []byte{1}, P50: []uint32{2}, P90: []int32{3}, Loss: []uint32{4}, Ages: []uint32{5, 6}})
	longer := encode(&nusav1.EdgeTable{Regions: []string{"c"}, States: []byte{1, 2, 3}, LossOut: []uint32{7}})
	unknown := []byte{15 << 3, 1}
	used := &table{edges: &nusav1.EdgeTable{}, names: map[string]string{}}
	for k, raw := range [][]byte{
		{}, names, append(names, values...), append(values, names...), append(append(names, values...), longer...), longer, append(unknown, names...),
		{regionsField<<3 | 2, 5, 'a'}, {regionsField<<3 | 2, 1, 0xff}, {regionsField << 3, 1}, {0xff},
	} {
		want := &nusav1.EdgeTable{}
		wantErr, err := proto.Unmarshal(raw, want), used.decode(raw)
		if (err != nil) != (wantErr != nil) {
			t.Errorf("table %d: error %v, the library's %v", k, err, wantErr)
		}
		if err == nil && !proto.Equal(used.edges, want) {
			t.Errorf("table %d: %v, want %v", k, used.edges, want)
		}
		used.put()
	}
}

// TestLargeListsAreNotKept: the memory of a table is not used again if any of its lists is large.
func TestLargeListsAreNotKept(t *testing.T) {
	numbers, differences := make([]uint32, keptEdges+1), make([]int32, keptEdges+1)
	for name, c := range map[string]struct {
		edges *nusav1.EdgeTable
		small bool
	}{
		"no list":   {&nusav1.EdgeTable{}, true},
		"regions":   {&nusav1.EdgeTable{Regions: make([]string, keptEdges+1)}, false},
		"states":    {&nusav1.EdgeTable{States: make([]byte, keptEdges+1)}, false},
		"p50":       {&nusav1.EdgeTable{P50: numbers}, false},
		"p90":       {&nusav1.EdgeTable{P90: differences}, false},
		"p99":       {&nusav1.EdgeTable{P99: differences}, false},
		"min":       {&nusav1.EdgeTable{Min: differences}, false},
		"jitter":    {&nusav1.EdgeTable{Jitter: differences}, false},
		"samples":   {&nusav1.EdgeTable{Samples: numbers}, false},
		"set aside": {&nusav1.EdgeTable{SetAside: numbers}, false},
		"loss":      {&nusav1.EdgeTable{Loss: numbers}, false},
		"loss out":  {&nusav1.EdgeTable{LossOut: numbers}, false},
		"loss back": {&nusav1.EdgeTable{LossBack: numbers}, false},
		"ages":      {&nusav1.EdgeTable{Ages: numbers}, false},
	} {
		raw, err := proto.Marshal(c.edges)
		if err != nil {
			t.Fatal(err)
		}
		used := &table{edges: &nusav1.EdgeTable{}, names: map[string]string{}}
		if err := used.decode(raw); err != nil || used.isSmall() != c.small {
			t.Errorf("%s: small = %t, %v", name, used.isSmall(), err)
		}
	}
}
