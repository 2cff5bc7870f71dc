package global

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestRulesThatMatchNoRegion: plan and submit warn about labels and domains that no region has.
func TestRulesThatMatchNoRegion(t *testing.T) {
	s := newFederation().start(t, "g1")
	for name, labels := range map[string]map[string]string{"alpha": {"tier": "gold"}, "beta": {"zone": "a"}} {
		def := &nusav1.RegionDefinition{Name: name, Labels: labels, Location: &nusav1.Location{Latitude: 1, Longitude: 103}}
		if _, err := nusav1.NewRegionsClient(s.conn).Define(t.Context(), &nusav1.DefineRegionRequest{Definition: def}); err != nil {
			t.Fatal(err)
		}
	}
	drained := originRec("old.example", "alpha")
	drained.Origins[0].Drained = true
	if _, err := nusav1.NewOriginsClient(s.conn).Set(t.Context(), &nusav1.SetOriginsRequest{Record: drained}); err != nil {
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
				Prefer: []*nusav1.Preference{{Selector: &nusav1.RegionSelector{Labels: map[string]string{"rack": "1"}}, Weight: 10}, {Selector: &nusav1.RegionSelector{Name: "alpha", Labels: map[string]string{"tier": "tin"}}, Weight: 10}},
				Near:   []*nusav1.Near{{Domain: "cdn.example"}, {Domain: "old.example"}, {Selector: &nusav1.RegionSelector{Labels: map[string]string{"tier": "gold", "zone": "a"}}}},
			},
			want: []string{
				"regions.allow[1]: no region has tier=lead; known values of tier: gold",
				"regions.prefer[0]: no region has the label rack",
				"regions.prefer[1]: region alpha does not have tier=tin; known values of tier: gold",
				"regions.near[0]: no region serves the domain cdn.example: `nusa origin list` shows the domains",
				"regions.near[1]: every origin of the domain old.example is drained",
				"regions.near[2]: no region has tier=gold, zone=a",
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

// TestRulesOfAScheduleThatMatchNoRegion: a submit warns, although it places nothing.
func TestRulesOfAScheduleThatMatchNoRegion(t *testing.T) {
	s := newFederation().start(t, "g1")
	spec := testJob("api", 1, func(j *nusav1.JobSpec) {
		j.Type = nusav1.JobType_JOB_TYPE_BATCH
		j.Schedule = &nusav1.Schedule{Cron: []string{"0 3 * * *"}}
		j.Groups["web"].Regions = &nusav1.RegionsSpec{Allow: []*nusav1.RegionSelector{{Labels: map[string]string{"tier": "lead"}}}}
	})
	got, err := s.jobs().Submit(t.Context(), &nusav1.SubmitRequest{Spec: spec})
	if err != nil || len(got.GetWarnings()) != 1 || !strings.HasPrefix(got.GetWarnings()[0], "groups.web.regions.allow[0]: no region has the label tier") {
		t.Errorf("warnings %q: %v", got.GetWarnings(), err)
	}
}

// TestManyRulesThatMatchNoRegion: the warnings of a submit are few and short, however many rules match no region.
func TestManyRulesThatMatchNoRegion(t *testing.T) {
	s := newFederation().start(t, "g1")
	spec := testJob("api", 2, func(j *nusav1.JobSpec) {
		j.Regions = &nusav1.RegionsSpec{}
		for i := range 20 {
			many := map[string]string{}
			for l := range 60 {
				many[fmt.Sprintf("label%d", l)] = strconv.Itoa(i)
			}
			j.Regions.Allow = append(j.Regions.Allow, &nusav1.RegionSelector{Labels: many})
		}
	})
	got, err := s.jobs().Submit(t.Context(), &nusav1.SubmitRequest{Spec: spec, IdempotencyKey: "once"})
	if w := got.GetWarnings(); err != nil || len(w) != 9 || w[8] != "12 further rules match no region" || len(w[0]) > 400 {
		t.Errorf("warnings %q: %v", w, err)
	}
}
