package replay

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// Result holds the figures of a replay.
type Result struct {
	Regions   int     `json:"regions"`
	Nodes     int     `json:"nodes"`
	Jobs      int     `json:"jobs"`
	Instances int     `json:"instances"`
	Load      float64 `json:"load"`
	// WorstDemand is the greatest demand that a region ever had, as a share of its
	// capacity. WorstRegion is that region.
	WorstDemand float64 `json:"worst_demand_over_supply"`
	WorstRegion string  `json:"worst_region"`
	// NearBroken counts instances that were offered to a region beyond their required
	// bound.
	NearBroken int `json:"near_bounds_broken"`
	// Moves counts running instances that a plan moved out of their region.
	Moves int `json:"moves"`
	// Returned counts offered instances that fitted on no node of the region.
	Returned int `json:"returned"`
	// Waited counts placed instances that had to wait. Unplaced counts instances that were
	// not placed until the end.
	Waited   int     `json:"waited"`
	Unplaced int     `json:"unplaced"`
	WaitS    Waiting `json:"wait_s"`
	// MissedS is the longest time for which a job waited although a region had room for
	// it.
	MissedS float64 `json:"fitted_but_waited_s"`
	// Least and Most are the demands of the emptiest and of the fullest region, as shares
	// of their capacities, when the demand of all regions together was greatest.
	Least float64 `json:"least_demand_at_peak"`
	Most  float64 `json:"most_demand_at_peak"`
	// Decided counts placed and returned instances, and Plans counts the plans.
	// DecidedPerS is Decided divided by the seconds that planning took.
	Decided     int     `json:"decided"`
	Plans       int     `json:"plans"`
	DecidedPerS float64 `json:"decided_per_s"`

	peak float64
}

// Waiting holds quantiles of the time that placed instances waited, in seconds.
type Waiting struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Worst notes the demand of a region if it is the greatest so far.
func (r *Result) Worst(c *cell) {
	if d := c.demand(); d > r.WorstDemand {
		r.WorstDemand, r.WorstRegion = d, c.region.Name
	}
}

// peak notes the least and the greatest demand of a region if the demand of all regions
// together is the greatest so far.
func (f *federation) peak() {
	sum, least, most := 0.0, -1.0, 0.0
	for _, c := range f.cells {
		d := c.demand()
		sum += d * float64(len(c.nodes))
		if least < 0 || d < least {
			least = d
		}
		most = max(most, d)
	}
	if sum > f.result.peak {
		f.result.peak, f.result.Least, f.result.Most = sum, least, most
	}
}

func (f *federation) finish() *Result {
	r := &f.result
	for _, j := range f.waiting {
		r.Unplaced += len(j.lasts) - j.placed
	}
	slices.Sort(f.waits)
	for _, w := range f.waits {
		if w > 0 {
			r.Waited++
		}
	}
	if n := len(f.waits); n > 0 {
		r.WaitS = Waiting{f.waits[n/2].Seconds(), f.waits[n*99/100].Seconds(), f.waits[n-1].Seconds()}
	}
	r.DecidedPerS = float64(r.Decided) / max(f.planning, time.Microsecond).Seconds()
	return r
}

// Table writes the figures for people.
func (r *Result) Table(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	for _, row := range [][2]string{
		{"federation", fmt.Sprintf("%d regions with %d nodes; the trace needs %.0f %% of them", r.Regions, r.Nodes, 100*r.Load)},
		{"trace", fmt.Sprintf("%d jobs, %d instances", r.Jobs, r.Instances)},
		{"greatest demand", fmt.Sprintf("%.3f of the capacity of %s", r.WorstDemand, r.WorstRegion)},
		{"at the peak", fmt.Sprintf("%.3f to %.3f of the capacity of each region", r.Least, r.Most)},
		{"near", fmt.Sprintf("%d instances beyond a required bound", r.NearBroken)},
		{"moves", fmt.Sprintf("%d; %d offered instances fitted on no node", r.Moves, r.Returned)},
		{"waited", fmt.Sprintf("%d instances; p50 %.0f s, p99 %.0f s, at most %.0f s; %d are not placed", r.Waited, r.WaitS.P50, r.WaitS.P99, r.WaitS.Max, r.Unplaced)},
		{"fitted but waited", fmt.Sprintf("at most %.0f s", r.MissedS)},
		{"planning", fmt.Sprintf("%d plans, %.0f instances a second", r.Plans, r.DecidedPerS)},
	} {
		fmt.Fprintf(w, "%s\t%s\n", row[0], row[1])
	}
	return w.Flush()
}
