package failover

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/nusa-scheduler/nusa/bench/report"
)

// Result holds the figures of all rounds. Times are in milliseconds.
type Result struct {
	Rounds int `json:"rounds"`
	// Running is disconnect.region.running: keep or stop.
	Running string `json:"running"`
	// CutToRunningMS is the time from the cut of a region until all instances of that
	// region ran in other regions.
	CutToRunningMS Spread `json:"cut_to_running_ms"`
	// TwiceMS is the longest time for which two processes of one instance ran at once.
	TwiceMS Most `json:"twice_ms"`
	// HealToOnceMS is the time from the end of the cut until each instance ran exactly
	// once and nothing changed any more.
	HealToOnceMS Spread `json:"heal_to_once_ms"`
	// Missing counts the instances that did not run at the end of a round, over all
	// rounds.
	Missing int `json:"missing"`

	AfterSeconds       float64 `json:"after_s"`
	LeaseSeconds       float64 `json:"lease_s"`
	KillTimeoutSeconds float64 `json:"kill_timeout_s"`
	Instances          int     `json:"instances"`
	Regions            int     `json:"regions"`
}

// Spread holds the median and the maximum of a figure.
type Spread struct {
	P50 float64 `json:"p50"`
	Max float64 `json:"max"`
}

// Most holds the maximum of a figure.
type Most struct {
	Max float64 `json:"max"`
}

func spreadOf(all []time.Duration) Spread {
	q := report.QuantilesOf(all)
	return Spread{P50: q.P50, Max: q.Max}
}

// Table prints the figures for people.
func (r *Result) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%d rounds, %d instances in %d regions, running: %s, after %gs, lease %gs, kill_timeout %gs\n",
		r.Rounds, r.Instances, r.Regions, r.Running, r.AfterSeconds, r.LeaseSeconds, r.KillTimeoutSeconds)
	fmt.Fprintf(t, "\tP50\tMAX\n")
	fmt.Fprintf(t, "cut → all of it runs elsewhere\t%.0f ms\t%.0f ms\n", r.CutToRunningMS.P50, r.CutToRunningMS.Max)
	fmt.Fprintf(t, "two processes of an instance\t\t%.0f ms\n", r.TwiceMS.Max)
	fmt.Fprintf(t, "heal → every instance once\t%.0f ms\t%.0f ms\n", r.HealToOnceMS.P50, r.HealToOnceMS.Max)
	fmt.Fprintf(t, "missing instances\t\t%d\n", r.Missing)
	return t.Flush()
}
