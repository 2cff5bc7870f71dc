package compact

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/global/region"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestSlotsAreAMap: whatever is put and removed, Slots has what a map by keys has, in order.
func TestSlotsAreAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names, texts := rapid.SampledFrom([]string{"a", "b", "c"}), rapid.SampledFrom([]string{"", "", "x"})
		system := rapid.Bool().Draw(t, "system")
		var s Slots
		want := map[string]region.Slot{}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			v := region.Slot{
				Namespace: "default", Job: "api", Group: names.Draw(t, "group"), From: rapid.IntRange(0, 12).Draw(t, "from"), Region: names.Draw(t, "region"),
				System: system, State: region.Accepted, Desired: rapid.SampledFrom([]region.Desired{"", region.DesiredRun, region.DesiredHold}).Draw(t, "desired"),
				Generation: rapid.Int64().Draw(t, "generation"), Revision: 2, JobVersion: 3, Run: -1, Hold: time.Duration(rapid.IntRange(0, 1).Draw(t, "hold")),
				UnlessConnected: rapid.Bool().Draw(t, "unless"), Reason: texts.Draw(t, "reason"), Message: texts.Draw(t, "message"), PlacedBecause: texts.Draw(t, "because"),
				ReturnTo: texts.Draw(t, "return"), Home: texts.Draw(t, "home"), Bound: rapid.Bool().Draw(t, "bound"), StopTime: time.Duration(rapid.IntRange(0, 1).Draw(t, "stop")),
				Unbound: rapid.Bool().Draw(t, "unbound"), Vacant: rapid.Bool().Draw(t, "vacant"),
			}
			if system {
				v.From = 0
			}
			v.To = v.From + 1
			if rapid.Bool().Draw(t, "former") {
				v.Former = []region.FormerOwner{{Region: "d", Generation: 7}}
			}
			if rapid.Bool().Draw(t, "put") {
				s.Put(&v)
				want[v.Key()] = v
			} else {
				s.Delete(v.Key())
				delete(want, v.Key())
			}
		}
		var list []region.Slot
		for key, v := range want {
			list = append(list, v)
			if got, ok := s.Get(key); !ok || !reflect.DeepEqual(got, v) {
				t.Fatalf("%s is %+v, want %+v", key, got, v)
			}
		}
		slices.SortFunc(list, func(a, b region.Slot) int {
			if a.Group != b.Group {
				return slices.Compare([]string{a.Group}, []string{b.Group})
			}
			if a.From != b.From {
				return a.From - b.From
			}
			return slices.Compare([]string{a.Region}, []string{b.Region})
		})
		if got := s.Sorted(); s.Len() != len(list) || len(list) > 0 && !reflect.DeepEqual(got, list) || !reflect.DeepEqual(slices.Collect(s.All()), list) {
			t.Fatalf("%v, want %v", got, list)
		}
		for _, key := range []string{"", "default/api", "default/apis/a/0", "other/api/a/0", "default/api/a/x", "default/api/z/0"} {
			if got, ok := s.Get(key); ok {
				t.Fatalf("%q is %v", key, got)
			}
			s.Delete(key)
		}
	})
}

func TestSummariesByRegion(t *testing.T) {
	var s Summaries
	sum := &nusav1.JobSummary{Namespace: "default", Job: "api", Index: 7}
	for _, at := range []string{"b", "a", "c", "a"} {
		s.Put(at, sum)
	}
	s.Delete("c")
	s.Delete("d")
	if sum.GetJob() != "api" || !slices.Equal(s.Regions(), []string{"a", "b"}) || s.Get("c") != nil {
		t.Errorf("%v, %v", sum, s.Regions())
	}
	want := &nusav1.JobSummary{Index: 7}
	if all := s.Decoded(); len(all) != 2 || !proto.Equal(all["a"], want) || !proto.Equal(s.Get("b"), want) {
		t.Errorf("%v", all)
	}
}

func TestEqualValuesAreShared(t *testing.T) {
	var s Shared[[]int]
	one := []int{1}
	if &s.Of(1, one)[0] != &one[0] || &s.Of(1, []int{1})[0] != &one[0] {
		t.Error("equal values are not shared")
	}
	if got := s.Of(1, []int{2}); got[0] != 2 {
		t.Error("another value with the same hash is replaced")
	}
	for i := range sharedMost * 2 {
		s.Of(uint64(i), []int{i})
	}
	if len(s.known) > sharedMost {
		t.Errorf("%d values are remembered", len(s.known))
	}
}
