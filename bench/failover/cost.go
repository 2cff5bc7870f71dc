package failover

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/nusa-scheduler/nusa/bench/emulate"
	"github.com/nusa-scheduler/nusa/bench/report"
)

// Cost holds what the server uses while all regions are connected, and while a third of the
// regions is silent.
type Cost struct {
	Connected Usage `json:"connected"`
	Silent    Usage `json:"silent"`
	// MoreCores and MoreMB are what the silence adds. They are negative if it adds nothing.
	MoreCores float64 `json:"more_cores"`
	MoreMB    float64 `json:"more_mb"`

	Instances     int     `json:"instances"`
	Regions       int     `json:"regions"`
	SilentRegions int     `json:"silent_regions"`
	LeaseSeconds  float64 `json:"lease_s"`
	Seconds       float64 `json:"seconds"`
}

// Usage is what the process of a server uses in one phase.
type Usage struct {
	// Cores is the mean number of busy cores. WorstCores is the number of busy cores in the
	// busiest second.
	Cores      float64 `json:"cores"`
	WorstCores float64 `json:"worst_cores"`
	// RSSMB is the mean resident memory, PeakRSSMB the greatest of those seen once a second.
	RSSMB     float64 `json:"rss_mb"`
	PeakRSSMB float64 `json:"peak_rss_mb"`
}

// Table prints the figures for people.
func (r *Cost) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%d emulated regions with %d instances, lease %gs, %gs each\n", r.Regions, r.Instances, r.LeaseSeconds, r.Seconds)
	fmt.Fprintf(t, "\tCORES\tBUSIEST SECOND\tMEMORY\tMOST\n")
	for _, p := range []struct {
		name string
		u    Usage
	}{{"all connected", r.Connected}, {fmt.Sprintf("%d silent", r.SilentRegions), r.Silent}} {
		fmt.Fprintf(t, "%s\t%.3f\t%.3f\t%.0f MB\t%.0f MB\n", p.name, p.u.Cores, p.u.WorstCores, p.u.RSSMB, p.u.PeakRSSMB)
	}
	fmt.Fprintf(t, "more\t%.3f\t\t%.0f MB\n", r.MoreCores, r.MoreMB)
	return t.Flush()
}

// MeasureCost measures what the server uses in two phases of equal length. In the first phase
// all regions are connected. The second phase begins when a third of the regions is cut off. A
// third is no mass loss, and Scale.After is so long that nothing moves.
func MeasureCost(ctx context.Context, o Scale, phase time.Duration) (_ *Cost, err error) {
	f, err := startFederation(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closed := f.close(); err == nil {
			err = closed
		}
	}()
	silent := o.Regions / 3
	var accepted count
	nodes := o.Instances/o.Regions/perNode*4 + 1
	for prefix, part := range map[string]struct {
		addr    string
		regions int
	}{"cut-": {f.proxy.addr(), silent}, "on-": {f.addr, o.Regions - silent}} {
		cfg := emulate.Config{Addr: part.addr, Regions: part.regions, Prefix: prefix, Nodes: nodes, Accepted: accepted.note}
		if err := f.join(ctx, cfg); err != nil {
			return nil, err
		}
	}
	if err := f.submit(ctx); err != nil {
		return nil, err
	}
	if err := f.all(ctx, "accepted", &accepted); err != nil {
		return nil, err
	}
	if err := report.Pause(ctx, rest); err != nil {
		return nil, err
	}
	r := &Cost{Instances: o.Instances, Regions: o.Regions, SilentRegions: silent, LeaseSeconds: o.Lease.Seconds(), Seconds: phase.Seconds()}
	o.progress("measuring %s while all regions are connected", phase)
	if r.Connected, err = f.usage(ctx, phase); err != nil {
		return nil, err
	}
	f.proxy.cut()
	o.progress("measuring %s while %d regions are silent", phase, silent)
	if r.Silent, err = f.usage(ctx, phase); err != nil {
		return nil, err
	}
	r.MoreCores = report.Round(r.Silent.Cores-r.Connected.Cores, 4)
	r.MoreMB = report.Round(r.Silent.RSSMB-r.Connected.RSSMB, 1)
	return r, nil
}

// rest is the pause before the first phase. In this time the lists of regions and the round
// trips arrive everywhere.
const rest = 40 * time.Second

// usage reads what the server uses once a second.
func (f *federation) usage(ctx context.Context, phase time.Duration) (Usage, error) {
	var out Usage
	n := 0
	start := time.Now()
	first, err := report.CPUTime(f.server.PID())
	if err != nil {
		return out, err
	}
	last, at := first, start
	for time.Since(start) < phase {
		if err := report.Pause(ctx, time.Second); err != nil {
			return out, err
		}
		cpu, err := report.CPUTime(f.server.PID())
		if err != nil {
			return out, err
		}
		rss, err := report.Memory(f.server.PID(), "status", "VmRSS:")
		if err != nil {
			return out, err
		}
		now := time.Now()
		out.WorstCores = max(out.WorstCores, report.Round((cpu-last).Seconds()/now.Sub(at).Seconds(), 4))
		last, at = cpu, now
		out.RSSMB, out.PeakRSSMB, n = out.RSSMB+rss, max(out.PeakRSSMB, rss), n+1
	}
	out.Cores = report.Round((last-first).Seconds()/at.Sub(start).Seconds(), 4)
	out.RSSMB = report.Round(out.RSSMB/float64(n), 1)
	return out, nil
}
