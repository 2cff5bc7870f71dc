package wan

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/topology"
)

func TestAzureDataIsComplete(t *testing.T) {
	regions, table := AzureRegions(), AzurePublished()
	if len(regions) != 51 || len(table.Regions()) != 51 {
		t.Fatalf("%d regions, table of %d, want 51", len(regions), len(table.Regions()))
	}
	if n := len(table.Edges()); n != 51*50-108 {
		t.Errorf("%d published pairs, want %d", n, 51*50-108)
	}
	filled := Azure()
	if n := len(filled.Edges()); n != 51*50 {
		t.Errorf("%d pairs after filling, want all", n)
	}
	for _, r := range regions {
		if !table.Has(r.Name) || !r.Location.Valid() || r.Location.Name == "" {
			t.Errorf("region %+v", r)
		}
		for _, key := range []string{"provider", "continent", "geography", "country", "jurisdiction"} {
			if r.Labels[key] == "" {
				t.Errorf("%s has no label %s", r.Name, key)
			}
		}
	}
	for _, tc := range []struct {
		from, to string
		ms       int
	}{
		{"southeastasia", "japaneast", 73}, {"westeurope", "southeastasia", 161},
		{"southeastasia", "westeurope", 160}, {"eastus", "brazilsouth", 117},
	} {
		if got, ok := table.RTT(tc.from, tc.to); !ok || got != time.Duration(tc.ms)*time.Millisecond {
			t.Errorf("%s to %s: %v, %v; published are %d ms", tc.from, tc.to, got, ok, tc.ms)
		}
	}
	for name, want := range map[string]string{"westeurope": "eu", "northeurope": "eu", "swedencentral": "eu", "uksouth": "gb",
		"norwayeast": "no", "switzerlandnorth": "ch", "southeastasia": "sg", "eastus": "us"} {
		if r, ok := AzureRegion(name); !ok || r.Labels["jurisdiction"] != want {
			t.Errorf("%s: %v, want jurisdiction %s", name, r.Labels, want)
		}
	}
	if _, ok := AzureRegion("atlantis"); ok {
		t.Error("atlantis was found")
	}
	r, _ := AzureRegion("eastus")
	r.Labels["country"] = "changed"
	if again, _ := AzureRegion("eastus"); again.Labels["country"] != "us" {
		t.Error("a caller can change the embedded data")
	}
}

// The stated error of the estimate holds on real distances.
func TestEstimateErrorHoldsOnAzure(t *testing.T) {
	regions := map[string]topology.Region{}
	for _, r := range AzureRegions() {
		regions[r.Name] = r
	}
	var errs, signed []float64
	for _, e := range AzurePublished().Edges() {
		rtt := topology.EstimateRTT(*regions[e.From].Location, *regions[e.To].Location)
		rel := float64(rtt-e.P50) / float64(e.P50)
		errs, signed = append(errs, math.Abs(rel)), append(signed, rel)
	}
	slices.Sort(errs)
	slices.Sort(signed)
	within, _ := slices.BinarySearch(errs, topology.EstimateError)
	share := float64(within) / float64(len(errs))
	median, bias := errs[len(errs)/2], signed[len(signed)/2]
	t.Logf("relative error of the estimate: median %.3f, p90 %.3f, bias %.3f, %.3f within the stated error",
		median, errs[len(errs)*9/10], bias, share)
	if share < 0.8 || median > topology.EstimateError/2 || math.Abs(bias) > 0.15 {
		t.Errorf("the estimate is worse than stated")
	}
}

// Relays with a gain exist in the real table: by brute force 75 of its 2,442
// pairs, 3.1 %, gain over 10 % by one relay.
func TestRelaysOfTheAzureTable(t *testing.T) {
	table := AzurePublished()
	v := topology.NewView(AzureRegions(), table.Edges())
	router := topology.NewRouter(v, 50)
	best := map[[2]string]time.Duration{}
	for _, e := range table.Edges() {
		relayed := time.Duration(math.MaxInt64)
		for _, relay := range table.Regions() {
			there, ok1 := table.RTT(e.From, relay)
			on, ok2 := table.RTT(relay, e.To)
			if ok1 && ok2 && relay != e.From && relay != e.To {
				relayed = min(relayed, there+on)
			}
		}
		if float64(relayed) >= 0.9*float64(e.P50) {
			continue
		}
		best[[2]string{e.From, e.To}] = relayed
		paths, err := router.Paths(e.From, e.To, topology.PathOptions{})
		if err != nil || paths[0].RTT > relayed || paths[0].Source != topology.Measured {
			t.Errorf("%s to %s: %v, %v; a relay gives %v", e.From, e.To, paths, err, relayed)
		}
	}
	found := v.Violations(50, 0.1, topology.MaxFindings)
	if found.Total != 75 || len(found.List) != 75 || len(best) != 75 || len(table.Edges()) != 2442 {
		t.Errorf("%d pairs of %d gain over 10 %%, listed %d, by brute force %d; want 75 of 2442",
			found.Total, len(table.Edges()), len(found.List), len(best))
	}
	for _, x := range found.List {
		if want := best[[2]string{x.From, x.To}]; x.Relayed != want || x.Gain != 1-float64(want)/float64(x.Direct) {
			t.Errorf("%v: by brute force %v", x, want)
		}
	}
}

// A check of the real table finds its anomalies.
func TestCheckOfTheAzureTable(t *testing.T) {
	r := topology.Check(topology.NewView(AzureRegions(), AzurePublished().Edges()), topology.CheckOptions{Limit: 3})
	t.Logf("\n%s", r)
	if r.Pairs.Measured != 2442 || r.Pairs.Estimated != 108 || r.Violations.Total != 75 || len(r.Violations.List) != 3 || r.Impossible.Total != 0 {
		t.Errorf("%+v", r)
	}
}
