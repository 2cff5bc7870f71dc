package catalog_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/internal/catalog"
	"github.com/nusa-scheduler/nusa/topology"
)

func instance(region string, index int32, tags ...string) *catalog.Instance {
	return &catalog.Instance{
		Namespace: "default", Service: "web", Tags: tags, Region: region, Node: "n", Address: "10.0.0.1", Port: 8080,
		Alloc: fmt.Sprintf("%s-%d", region, index), Job: "api", Group: "web", Index: index,
	}
}

var far = map[string]catalog.Distance{
	"jakarta": {RTT: 12 * time.Millisecond, Source: topology.Measured},
	"oslo":    {RTT: 160 * time.Millisecond, Source: topology.Predicted},
	"tokyo":   {RTT: 2500 * time.Microsecond, Source: topology.Estimated},
}

func show(of []catalog.RegionInstances) string {
	var out []string
	for _, r := range of {
		for _, i := range r.Instances {
			out = append(out, i.Alloc)
		}
	}
	return strings.Join(out, " ")
}

func TestNearestRegionFirst(t *testing.T) {
	all := []*catalog.Instance{
		instance("oslo", 0), instance("perth", 0), instance("singapore", 1, "blue"), instance("singapore", 0), instance("jakarta", 0, "blue"), instance("aden", 0),
	}
	distance := func(r string) catalog.Distance { return far[r] }
	for _, c := range []struct {
		name, want, chosen string
		all                []*catalog.Instance
		q                  catalog.Query
	}{
		{"own first, then known by round trip, then by name", "singapore-0 singapore-1 jakarta-0 oslo-0 aden-0 perth-0", "2 instances in this region; next jakarta 12 ms measured", all, catalog.Query{From: "singapore", Distance: distance}},
		{"turn", "singapore-1 singapore-0 jakarta-0 oslo-0 aden-0 perth-0", "2 instances in this region; next jakarta 12 ms measured", all, catalog.Query{From: "singapore", Distance: distance, Turn: 3}},
		{"tag", "singapore-1 jakarta-0", "1 instance in this region; next jakarta 12 ms measured", all, catalog.Query{From: "singapore", Tag: "blue", Distance: distance}},
		{"none here", "jakarta-0 oslo-0", "none in this region; 1 instance in jakarta, 12 ms measured; next oslo 160 ms predicted", []*catalog.Instance{all[0], all[4]}, catalog.Query{From: "singapore", Distance: distance}},
		{"short", "tokyo-0", "none in this region; 1 instance in tokyo, 2.5 ms estimated", []*catalog.Instance{instance("tokyo", 0)}, catalog.Query{From: "singapore", Distance: distance}},
		{"unknown distance", "oslo-0", "none in this region; 1 instance in oslo, at an unknown distance", all[:1], catalog.Query{From: "singapore"}},
		{"no region named", "jakarta-0 oslo-0", "1 instance in jakarta; next oslo; sorted by name, because the question names no region", []*catalog.Instance{all[0], all[4]}, catalog.Query{Distance: distance}},
		{"unknown tag", "", "no healthy instance", all, catalog.Query{From: "singapore", Tag: "green"}},
	} {
		got := catalog.Order(c.all, c.q)
		if show(got) != c.want {
			t.Errorf("%s: got %s, want %s", c.name, show(got), c.want)
		}
		if text := catalog.Chosen(got, c.q.From); text != c.chosen {
			t.Errorf("%s: got %q, want %q", c.name, text, c.chosen)
		}
	}
}

// TestOrderAsBruteForce compares Order with the definition: of two instances, the one in the nearer
// region comes first, whatever the order of the input, and none is lost.
func TestOrderAsBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"a", "b", "c", "d", "e"}
		known := map[string]catalog.Distance{}
		for _, n := range names {
			if rapid.Bool().Draw(t, "known") {
				known[n] = catalog.Distance{RTT: time.Duration(rapid.IntRange(0, 3).Draw(t, "rtt")) * time.Millisecond, Source: topology.Measured}
			}
		}
		var all []*catalog.Instance
		for n := range rapid.IntRange(0, 12).Draw(t, "instances") {
			i := instance(rapid.SampledFrom(names).Draw(t, "region"), int32(n))
			if rapid.Bool().Draw(t, "tagged") {
				i.Tags = []string{"blue"}
			}
			all = append(all, i)
		}
		q := catalog.Query{From: rapid.SampledFrom(names).Draw(t, "from"), Distance: func(r string) catalog.Distance { return known[r] }, Turn: rapid.Uint64().Draw(t, "turn")}
		q.Tag = rapid.SampledFrom([]string{"", "blue"}).Draw(t, "tag")
		nearer := func(a, b string) bool { // strictly
			if a == q.From || b == q.From {
				return a == q.From && b != q.From
			}
			da, okA := known[a]
			db, okB := known[b]
			if okA != okB {
				return okA
			}
			if da.RTT != db.RTT {
				return da.RTT < db.RTT
			}
			return a < b
		}
		got := catalog.Order(all, q)
		var flat []*catalog.Instance
		for n, r := range got {
			if len(r.Instances) == 0 || n > 0 && !nearer(got[n-1].Region, r.Region) {
				t.Fatalf("region %d of %v", n, got)
			}
			flat = append(flat, r.Instances...)
			for _, i := range r.Instances {
				if i.Region != r.Region {
					t.Fatalf("%v is listed in %s", i, r.Region)
				}
			}
		}
		want := slices.DeleteFunc(slices.Clone(all), func(i *catalog.Instance) bool { return q.Tag != "" && !slices.Contains(i.Tags, q.Tag) })
		if len(flat) != len(want) {
			t.Fatalf("%d instances, want %d", len(flat), len(want))
		}
		for _, i := range want {
			if !slices.Contains(flat, i) {
				t.Fatalf("%v is missing", i)
			}
		}
		shuffled := rapid.Permutation(all).Draw(t, "shuffled")
		if again := catalog.Order(shuffled, q); show(again) != show(got) {
			t.Fatalf("the order of the input matters: %s, %s", show(got), show(again))
		}
	})
}

func TestNames(t *testing.T) {
	for name, want := range map[string]string{
		"web.default.service.nusa.":      "{web default  invalid IP}",
		"WEB.Default.Service.NUSA":       "{web default  invalid IP}",
		"blue.web.default.service.nusa.": "{web default blue invalid IP}",
		"0a000001.addr.service.nusa.":    "{   10.0.0.1}",
		"nusa.":                          "{   invalid IP}",
		"service.nusa.":                  "{   invalid IP}",
		"default.service.nusa.":          "{   invalid IP}",
		"web.addr.service.nusa.":         "{web addr  invalid IP}",
		"a.b.c.d.service.nusa.":          "error",
		"web.default.node.nusa.":         "error",
		"-web.default.service.nusa.":     "error",
		"web.default.service.nusantara.": "error",
		"":                               "error",
		"..service.nusa.":                "error",
	} {
		got, err := catalog.ParseName(name)
		if err != nil {
			if want != "error" || !errors.Is(err, catalog.ErrInvalid) {
				t.Errorf("%q: %v, want %s", name, err, want)
			}
		} else if fmt.Sprint(got) != want {
			t.Errorf("%q: %v, want %s", name, got, want)
		}
	}
	for _, a := range []string{"10.1.2.3", "fd00::1"} {
		addr := netip.MustParseAddr(a)
		if got, err := catalog.ParseName(catalog.AddressName(addr)); err != nil || got.Address != addr {
			t.Errorf("%s: %v, %v", a, got, err)
		}
	}
}

func TestCheckOfReceivedInstances(t *testing.T) {
	good := instance("oslo", 1, "blue")
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*catalog.Instance){
		"service":   func(i *catalog.Instance) { i.Service = "Web" },
		"namespace": func(i *catalog.Instance) { i.Namespace = "" },
		"tag":       func(i *catalog.Instance) { i.Tags = []string{"a.b"} },
		"tags":      func(i *catalog.Instance) { i.Tags = make([]string, catalog.MaxTags+1) },
		"address":   func(i *catalog.Instance) { i.Address = "host" },
		"port":      func(i *catalog.Instance) { i.Port = 0 },
		"alloc":     func(i *catalog.Instance) { i.Alloc = strings.Repeat("a", 256) },
	} {
		bad := *good
		change(&bad)
		if err := bad.Check(); !errors.Is(err, catalog.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if bad.Equal(good) {
			t.Errorf("%s: equal to the good one", name)
		}
	}
}

// TestEachInstanceIsFirstEquallyOften: also if a client uses each second answer only.
func TestEachInstanceIsFirstEquallyOften(t *testing.T) {
	for n := 1; n <= 9; n++ {
		var all []*catalog.Instance
		for i := range n {
			all = append(all, &catalog.Instance{Service: "web", Region: "a", Alloc: fmt.Sprint(i), Index: int32(i)})
		}
		for step := uint64(1); step <= 6; step++ {
			const answers = 500
			first := map[string]int{}
			for turn := range uint64(answers) {
				first[catalog.Order(all, catalog.Query{Turn: 7 + turn*step})[0].Instances[0].Alloc]++
			}
			for i := range n {
				if got := first[fmt.Sprint(i)]; got < answers/n*8/10 || got > answers/n*12/10+1 {
					t.Errorf("instance %d of %d is first in %d of %d answers, each of turn %d later", i, n, got, answers, step)
				}
			}
		}
	}
}
