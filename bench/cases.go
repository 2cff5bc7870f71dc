package main

import (
	"fmt"

	"github.com/nusa-scheduler/nusa/bench/region"
)

// scenario is one run of `nusa bench region`.
type scenario struct {
	args string
	// goal is the goal in words. met reports whether a result reaches the goal; nil = no
	// goal.
	goal string
	met  func(*region.Result) bool
	// asked is the goal in placements a second; 0 = the goal has none. callers is the
	// number of callers of the ceiling with which the goal is compared; 0 = no comparison.
	asked, callers int
	// nomad is Nomad's figure for the same load; "" = not measured.
	nomad string
}

// Texts of the tables. nomadNote says how Nomad's figures were measured.
const (
	nomadNote = "HashiCorp Nomad 2.0.5 was built from source and ran as one server, with two cores and its log on disk. The nodes were simulated over its RPC, and there were 16 callers. The ranges are those of 2–3 runs"
	latency   = "submit → placed p50 / p99 "
)

func placed(atLeast float64) func(*region.Result) bool {
	return func(r *region.Result) bool { return r.PlacementsPerS >= atLeast }
}

func within(p50, p99 float64) func(*region.Result) bool {
	return func(r *region.Result) bool {
		return r.SubmitToPlacedMS.P50 <= p50 && r.SubmitToPlacedMS.P99 <= p99
	}
}

// full returns the scenarios of the page RESULTS.md.
func full() []scenario {
	out := []scenario{
		{
			args: "--nodes 5000 --jobs 100000 --count 1 --concurrency 64",
			goal: "≥ 25,000 placed /s, ≤ 40 µs of server CPU each", asked: 25_000, callers: 64,
			met: func(r *region.Result) bool {
				return r.PlacementsPerS >= 25_000 && *r.ServerCPUUSPerPlacement <= 40
			},
		},
		{args: "--nodes 5000 --jobs 100000 --count 1 --concurrency 16", goal: "≥ 10,000 placed /s", met: placed(10_000), asked: 10_000, callers: 16},
		{args: "--nodes 5000 --jobs 100000 --count 1 --stream", goal: "≥ 60,000 placed /s", met: placed(60_000), asked: 60_000, callers: 64},
		{
			args:  "--nodes 10000 --jobs 1 --count 100000 --idle 30s --restart",
			goal:  "≥ 250,000 placed /s, ≥ 60,000 acknowledged /s, ≤ 400 MB, idle ≤ 0.12 core, restart ≤ 1 s after election, ≤ 3 s in all",
			asked: 250_000, callers: 64,
			met: func(r *region.Result) bool {
				return r.PlacementsPerS >= 250_000 && r.AcknowledgedPerS >= 60_000 && *r.ServerPeakRSSMB <= 400 &&
					r.Idle.CPUCores <= 0.12 && r.Restart.PlacedAfterElectedMS <= 1000 && r.Restart.PlacedMS <= 3000
			},
		},
		{args: "--nodes 5000 --agents-per-connection 250 --jobs 100000 --count 1 --concurrency 64"},
		{args: "--nodes 5000 --agents-per-connection 250 --jobs 100000 --count 1 --stream"},
		{args: "--nodes 10000 --agents-per-connection 250 --jobs 1 --count 100000 --idle 20s"},
		{args: "--nodes 5000 --jobs 1000 --count 100", goal: "≥ 150,000 placed /s", met: placed(150_000), asked: 150_000, callers: 64},
		{
			args: "--nodes 5000 --jobs 3000 --rate 50", goal: latency + "≤ 0.8 / 3 ms", met: within(0.8, 3),
			nomad: latency + "9.0–11.2 / 21–26 ms",
		},
		{args: "--nodes 5000 --jobs 3000 --rate 50 --servers 3", goal: latency + "≤ 1.5 / 6 ms", met: within(1.5, 6)},
		{args: "--nodes 5000 --jobs 100000 --count 1 --concurrency 64 --servers 3"},
		{args: "--nodes 5000 --jobs 100000 --count 1 --stream --servers 3"},
		{args: "--nodes 10000 --jobs 1 --count 100000 --servers 3 --restart"},
		{args: "--nodes 5000 --jobs 1000 --count 100 --servers 3"},
	}
	return append(out, compared()...)
}

// compared returns the loads at which Nomad was measured, too.
func compared() []scenario {
	var out []scenario
	add := func(jobs, count int, nodes []int, nomad []string) {
		for i, n := range nodes {
			out = append(out, scenario{args: fmt.Sprintf("--nodes %d --jobs %d --count %d", n, jobs, count), nomad: nomad[i]})
		}
	}
	sizes := []int{100, 1000, 5000}
	add(10_000, 1, append(sizes, 10_000), []string{
		"234–335 placed /s, 230–256 acknowledged /s, 4.4–6.5 ms of CPU each",
		"237–319 placed /s, 130–161 acknowledged /s, 4.7–6.3 ms of CPU each",
		"143–203 placed /s, 63–79 acknowledged /s, 7.3–10.3 ms of CPU each", "",
	})
	add(1, 10_000, sizes, []string{"842–935 placed /s", "968–1,149 placed /s", "977–1,055 placed /s"})
	add(100, 100, sizes, []string{"732–907 placed /s", "926–1,007 placed /s", "896–1,046 placed /s"})
	return append(out,
		scenario{args: "--nodes 100 --jobs 500 --rate 50", nomad: latency + "2.8–4.2 / 10–12 ms"},
		scenario{args: "--nodes 1000 --jobs 500 --rate 50", nomad: latency + "4.9–5.5 / 14–22 ms"},
	)
}

// quick is a small set that uses every kind of measurement.
func quick() []scenario {
	return []scenario{
		{args: "--nodes 200 --jobs 1000 --count 1"},
		{args: "--nodes 200 --jobs 1000 --count 1 --stream --concurrency 4"},
		{args: "--nodes 200 --jobs 1 --count 2000 --idle 1s --restart"},
		{args: "--nodes 200 --jobs 100 --rate 50"},
		{args: "--nodes 100 --jobs 200 --servers 3 --restart"},
		{args: "--nodes 100 --jobs 500 --no-ack"},
	}
}
