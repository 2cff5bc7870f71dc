package placer

import (
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestAnswersAboutOtherSpecsDoNotCount: a region of an earlier version explains
// the version that it has, and counts another ask than that of the dry run.
func TestAnswersAboutOtherSpecsDoNotCount(t *testing.T) {
	verdict := &nusav1.RegionVerdict{Region: "alpha", Fits: 3}
	for name, c := range map[string]struct {
		said *nusav1.GroupExplanation
		want bool
	}{
		"as given":          {&nusav1.GroupExplanation{Group: "web", Regions: []*nusav1.RegionVerdict{verdict}}, true},
		"wanted instances":  {&nusav1.GroupExplanation{Group: "web", Desired: 2, Regions: []*nusav1.RegionVerdict{verdict}}, false},
		"running instances": {&nusav1.GroupExplanation{Group: "web", Regions: []*nusav1.RegionVerdict{{Region: "alpha", Fits: 3, Taken: 2}}}, false},
		"each node":         {&nusav1.GroupExplanation{Group: "web", Regions: []*nusav1.RegionVerdict{verdict}, Nodes: []*nusav1.NodeVerdict{{}}}, false},
		"no region":         {&nusav1.GroupExplanation{Group: "web"}, false},
	} {
		if got := answersSpec(c.said); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
