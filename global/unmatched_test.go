package global

import (
	"slices"
	"strconv"
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestRulesThatMatchNoRegion: plan and submit warn about labels and domains that no region has.
func TestRulesThatMatchNoRegion(t *testing.T) {
	s := newFederation().start(t, "g1")
	def := &nusav1.RegionDefinition{Name: "alpha", Labels: map[string]string{"tier": "gold"}, Location: &nusav1.Location{Latitude: 1, Longitude: 103}}
	if _, err := nusav1.NewRegionsClient(s.conn).Define(t.Context(), &nusav1.DefineRegionRequest{Definition: def}); err != nil {
		t.Fatal(err)
	}
	with := func(tier string) *nusav1.RegionSelector {
		return &nusav1.RegionSelector{Labels: map[string]string{"tier": tier}}
	}
	for name, c := range map[string]struct {
		rules *nusav1.RegionsSpec
		want  []string
	}{
		"all match": {rules: &nusav1.RegionsSpec{Allow: []*nusav1.RegionSelector{with("gold")}, Near: []*nusav1.Near{{Selector: with("gold")}}}},
		"none matches": {
			rules: &nusav1.RegionsSpec{
				Allow:  []*nusav1.RegionSelector{with("gold"), with("lead")},
				Prefer: []*nusav1.Preference{{Selector: with("lead"), Weight: 10}, {Selector: &nusav1.RegionSelector{Name: "alpha", Labels: map[string]string{"tier": "tin"}}, Weight: 10}},
				Near:   []*nusav1.Near{{Domain: "cdn.example"}},
			},
			want: []string{
				"no region matches alpha,tier=tin (prefer of web): `nusa region list -o yaml` shows the labels of the regions",
				"no region matches tier=lead (allow of web, prefer of web): `nusa region list -o yaml` shows the labels of the regions",
				"no region serves the domain cdn.example (near of web): `nusa origin list` shows the domains",
			},
		},
	} {
		spec := testJob("api", 2, func(j *nusav1.JobSpec) { j.Regions = c.rules })
		planned, err := s.jobs().Plan(t.Context(), &nusav1.PlanRequest{Spec: spec})
		if err != nil || !slices.Equal(planned.GetWarnings(), c.want) {
			t.Errorf("%s: a plan warns %q, want %q: %v", name, planned.GetWarnings(), c.want, err)
		}
		submitted, err := s.jobs().Submit(t.Context(), &nusav1.SubmitRequest{Spec: spec})
		if err != nil || !slices.Equal(submitted.GetWarnings(), c.want) {
			t.Errorf("%s: a submit warns %q, want %q: %v", name, submitted.GetWarnings(), c.want, err)
		}
	}
}

// TestManyRulesThatMatchNoRegion: the warnings of a submit are few, however many rules match no region.
func TestManyRulesThatMatchNoRegion(t *testing.T) {
	s := newFederation().start(t, "g1")
	spec := testJob("api", 2, func(j *nusav1.JobSpec) {
		j.Regions = &nusav1.RegionsSpec{}
		for i := range 20 {
			j.Regions.Allow = append(j.Regions.Allow, &nusav1.RegionSelector{Labels: map[string]string{"tier": strconv.Itoa(i)}})
		}
	})
	planned, err := s.jobs().Plan(t.Context(), &nusav1.PlanRequest{Spec: spec})
	if err != nil || len(planned.GetWarnings()) != 8 {
		t.Errorf("%d warnings, want 8: %v", len(planned.GetWarnings()), err)
	}
}
