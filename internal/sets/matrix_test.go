package sets_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/internal/sets"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestMatrixKeepsItsContent: a receiver of the whole matrix, or of the changes since a
// version, has all medians, except for changes that are not noticeable.
func TestMatrixKeepsItsContent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &sets.Matrix{}
		var have []*nusav1.CompactMatrix // by version
		value := rapid.OneOf(rapid.Just[uint16](sets.Unmeasured), rapid.Uint16Range(0, 3000))
		for range rapid.IntRange(1, 5).Draw(t, "updates") {
			var names []string
			for i := range 6 {
				if rapid.Bool().Draw(t, "present") {
					names = append(names, fmt.Sprint("r", i))
				}
			}
			want := map[[2]string]uint16{}
			m.Update(names, func(i, j int) (uint16, bool) {
				v := value.Draw(t, "median")
				want[[2]string{names[i], names[j]}] = v
				return v, v != sets.Unmeasured && v%2 == 0
			})
			whole, err := sets.MergeMatrix(nil, m.Whole(), 10)
			if err != nil {
				t.Fatal(err)
			}
			all := []*nusav1.CompactMatrix{whole}
			for version, old := range have {
				if old == nil {
					continue
				}
				got, err := sets.MergeMatrix(old, m.Since(uint64(version)), 10)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, got)
			}
			for _, got := range all {
				if !slices.Equal(got.GetRegions(), whole.GetRegions()) || !slices.Equal(got.GetP50(), whole.GetP50()) || !slices.Equal(got.GetFresh(), whole.GetFresh()) {
					t.Fatalf("%v, want %v", got, whole)
				}
			}
			n := len(whole.GetRegions())
			for pair, v := range want {
				i, j := slices.Index(whole.GetRegions(), pair[0]), slices.Index(whole.GetRegions(), pair[1])
				got := binary.LittleEndian.Uint16(whole.GetP50()[2*(i*n+j):])
				if d := int(got) - int(v); (got == sets.Unmeasured) != (v == sets.Unmeasured) || max(d, -d) > 10 && max(d, -d) > int(got)/10 {
					t.Fatalf("%v is %d, want %d", pair, got, v)
				}
			}
			for len(have) <= int(m.Version) {
				have = append(have, nil)
			}
			have[m.Version] = whole
		}
	})
}

// TestManyVersions: the changes since each of the latest versions are only those, and the changes since an
// older version are complete.
func TestManyVersions(t *testing.T) {
	m, names := &sets.Matrix{}, []string{"a", "b", "c"}
	var have []*nusav1.CompactMatrix // by version - 1
	for version := range 600 {
		m.Update(names, func(i, j int) (uint16, bool) {
			if i == version%3 {
				return uint16(100 * version), version%2 == 0
			}
			return 100, true
		})
		whole, err := sets.MergeMatrix(nil, m.Whole(), 3)
		if err != nil || m.Version != uint64(version+1) {
			t.Fatalf("version %d: %v", m.Version, err)
		}
		have = append(have, whole)
		for old := max(0, version-300); old <= version; old++ {
			changes := m.Since(uint64(old + 1))
			got, err := sets.MergeMatrix(have[old], changes, 3)
			if err != nil || !proto.Equal(got, whole) || changes.GetFull() && old > version-100 {
				t.Fatalf("from version %d to %d: %v, %v, want %v", old+1, version+1, err, got, whole)
			}
		}
	}
}

func BenchmarkMatrix(b *testing.B) {
	names := make([]string, 1000)
	for i := range names {
		names[i] = fmt.Sprint("region-", i)
	}
	b.ReportAllocs()
	for b.Loop() {
		m := &sets.Matrix{}
		m.Update(names, func(i, j int) (uint16, bool) { return uint16(i + j), true })
	}
}

// TestMalformedMatrix: changes that no correct sender makes are refused.
func TestMalformedMatrix(t *testing.T) {
	m := &sets.Matrix{}
	m.Update([]string{"a", "b"}, func(int, int) (uint16, bool) { return 100, true })
	good := m.Whole()
	have, err := sets.MergeMatrix(nil, good, 2)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*nusav1.MatrixChanges{
		"too many": {Full: true, Regions: []string{"a", "b", "c"}, Values: good.GetValues()}, "too short": {Full: true, Regions: []string{"a", "b"}},
		"number": {Regions: []string{"c"}, Numbers: []uint32{7}}, "names": {Numbers: []uint32{1}}, "no compression": {Values: []byte("x")},
		"column": {Values: sets.Deflate([]byte{0, 1, 9, 1, 1})}, "cut": {Values: sets.Deflate([]byte{0, 1, 1})}, "row": {Values: sets.Deflate([]byte{5, 1, 1, 1, 1})},
	} {
		if _, err := sets.MergeMatrix(have, c, 2); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := sets.MergeMatrix(nil, &nusav1.MatrixChanges{}, 2); err == nil {
		t.Error("changes of no matrix: no error")
	}
}
