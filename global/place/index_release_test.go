package place

import (
	"reflect"
	"testing"
)

// TestIndexAfterAReleaseWithoutRoom: a region has given an instance up, and no other region takes
// the instance. The plan then places it as an ordinary one: in the region with the greatest score,
// with an Index as without one. An earlier look at the regions must not choose another region.
func TestIndexAfterAReleaseWithoutRoom(t *testing.T) {
	s := equalRegions(3, 1000)
	full := *s.Regions[0]
	full.Bins, full.Free = nil, Resources{}
	s.Regions[0] = &full
	s.Jobs = []Job{oneInstance("job", "")}
	g, from := &s.Jobs[0].Groups[0], s.Regions[1].Name
	g.Regions.Allow = []Selector{{Name: full.Name}, {Name: from}}
	g.Released = []Released{{Region: from, From: 0, To: 1}}
	want := MakePlan(s)
	if len(want.Actions) != 1 || want.Actions[0].Region != from {
		t.Fatalf("without an index:\n%s", want)
	}
	s.Index = NewIndex()
	if got := MakePlan(s); !reflect.DeepEqual(got, want) {
		t.Errorf("with an index:\n%s\nwithout:\n%s", got, want)
	}
}
