package catalog

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/topology"
)

// Distance is the median round trip from the client's region to another region.
type Distance struct {
	RTT time.Duration
	// Source is topology.None if the distance is unknown. RTT is then 0.
	Source topology.Source
}

// Query selects and orders the instances of one service.
type Query struct {
	// Tag selects the instances that have it. Empty: all.
	Tag string
	// From is the client's region. Empty: regions are sorted by name.
	From string
	// Distance returns the distance from From to another region. It may be nil.
	Distance func(region string) Distance
	// Turn rotates the instances of each region. Turns that differ by the same number each time, such as 2, begin
	// with each instance equally often, because clients ask for the A and the AAAA records in turn.
	Turn uint64
}

// RegionInstances are the selected instances of one region. It has at least one instance.
type RegionInstances struct {
	Region    string
	Distance  Distance // unset for the client's own region
	Instances []*Instance
}

// Order returns the selected instances by region. The client's own region comes first, then the
// regions with a known distance by their median round trip, then the others. Equal regions are sorted
// by name. The order of all does not matter.
func Order(all []*Instance, q Query) []RegionInstances {
	at := map[string]int{}
	var out []RegionInstances
	for _, i := range all {
		if q.Tag != "" && !slices.Contains(i.Tags, q.Tag) {
			continue
		}
		n, found := at[i.Region]
		if !found {
			n = len(out)
			at[i.Region] = n
			r := RegionInstances{Region: i.Region}
			if q.Distance != nil && q.From != "" && i.Region != q.From {
				r.Distance = q.Distance(i.Region)
			}
			out = append(out, r)
		}
		out[n].Instances = append(out[n].Instances, i)
	}
	for i := range out {
		of := out[i].Instances
		slices.SortFunc(of, Compare)
		first := firstOf(q.Turn, len(of))
		out[i].Instances = slices.Concat(of[first:], of[:first])
	}
	rank := func(r *RegionInstances) int {
		switch {
		case q.From != "" && r.Region == q.From:
			return 0
		case r.Distance.Source != topology.None:
			return 1
		}
		return 2
	}
	slices.SortFunc(out, func(a, b RegionInstances) int {
		return cmp.Or(cmp.Compare(rank(&a), rank(&b)), cmp.Compare(a.Distance.RTT, b.Distance.RTT), cmp.Compare(a.Region, b.Region))
	})
	return out
}

// firstOf returns which of n instances comes first. It is the fraction of the turn times the golden ratio, which
// spreads evenly whatever the steps of turns are.
func firstOf(turn uint64, n int) int {
	const golden = 0x9E3779B97F4A7C15 // of 2^64
	return int(turn * golden >> 32 * uint64(n) >> 32)
}

// Chosen says in words how Order chose: how many instances the first region has, and which region
// would be next.
func Chosen(regions []RegionInstances, from string) string {
	if len(regions) == 0 {
		return "no healthy instance"
	}
	first := &regions[0]
	var out strings.Builder
	switch {
	case from == "":
		fmt.Fprintf(&out, "%s in %s", counted(len(first.Instances)), first.Region)
	case first.Region == from:
		fmt.Fprintf(&out, "%s in this region", counted(len(first.Instances)))
	default:
		fmt.Fprintf(&out, "none in this region; %s in %s, %s", counted(len(first.Instances)), first.Region, first.Distance)
	}
	if len(regions) > 1 {
		fmt.Fprintf(&out, "; next %s", regions[1].Region)
		if from != "" {
			fmt.Fprintf(&out, " %s", regions[1].Distance)
		}
	}
	if from == "" {
		out.WriteString("; sorted by name, because the question names no region")
	}
	return out.String()
}

func counted(n int) string {
	if n == 1 {
		return "1 instance"
	}
	return fmt.Sprintf("%d instances", n)
}

// String returns the round trip and its source: "12 ms measured".
func (d Distance) String() string {
	if d.Source == topology.None {
		return "at an unknown distance"
	}
	ms := float64(d.RTT) / float64(time.Millisecond)
	if ms >= 10 {
		return fmt.Sprintf("%.0f ms %s", ms, d.Source)
	}
	return fmt.Sprintf("%.1f ms %s", ms, d.Source)
}
