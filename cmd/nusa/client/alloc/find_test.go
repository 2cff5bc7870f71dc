package alloc

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestEndedAllocationIsShownUntilReplaced: an ended allocation is shown until an allocation
// that is younger or has a later version replaces it.
func TestEndedAllocationIsShownUntilReplaced(t *testing.T) {
	alloc := func(text string) *nusav1.Allocation { // id, index, state, version, created
		a := &nusav1.Allocation{Group: "g"}
		var created int64
		if _, err := fmt.Sscan(text, &a.Id, &a.Index, &a.State, &a.JobVersion, &created); err != nil {
			t.Fatal(err)
		}
		a.Created = timestamppb.New(time.Unix(created, 0))
		return a
	}
	for _, c := range []struct {
		name, want string
		all        []string
	}{
		{"all live", "a b", []string{"a 0 3 1 10", "b 1 3 1 10"}},
		{"one failed", "a b", []string{"a 0 3 1 10", "b 1 5 2 20"}},
		{"one complete", "a b", []string{"a 0 3 1 10", "b 1 4 1 10"}},
		{"replaced", "b", []string{"a 0 5 1 10", "b 0 3 1 20"}},
		{"failed elsewhere since", "a b", []string{"a 0 3 1 10", "b 0 5 1 20"}},
		{"scaled down", "a", []string{"a 0 3 1 10", "b 1 6 1 10"}},
		{"ran again", "b", []string{"a 0 4 1 10", "b 0 4 2 20"}},
		{"stopped", "a b", []string{"a 0 6 1 10", "b 1 6 1 10"}},
		{"nothing", "", nil},
	} {
		var live, all []*nusav1.Allocation
		for _, text := range c.all {
			a := alloc(text)
			all = append(all, a)
			if a.GetState() < nusav1.AllocState_ALLOC_STATE_COMPLETE {
				live = append(live, a)
			}
		}
		var got []string
		for _, a := range withEnded(live, all) {
			got = append(got, a.GetId())
		}
		if g := strings.Join(got, " "); g != c.want {
			t.Errorf("%s: %q, want %q", c.name, g, c.want)
		}
	}
}
