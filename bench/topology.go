package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/nusa-scheduler/nusa/bench/prediction"
)

// table is a file with a matrix of round trips, and the goals of predictions from it.
type table struct {
	name, format string
	neighbours   int
	// file is a path below the module, or with ofData below the folder $NUSA_DATA.
	file   string
	ofData bool
	// vivaldi is the result of Vivaldi coordinates with 8 dimensions and heights: the
	// median and the p90 of the relative error, and the nearest stretch.
	vivaldi string
	// median, p90 and stretch are the goals: the result must not be greater. A median of 0
	// means no goal.
	median, p90, stretch float64
}

func tables() []table {
	return []table{
		{name: "Azure regions, 2025", format: "matrix", neighbours: 16, file: "topology/wan/data/azure_p50_2025-06.csv",
			vivaldi: "0.079 / 0.42 / 1.1", median: 0.05, p90: 0.25, stretch: 1.1},
		{name: "WonderNetwork cities, 2020", format: "plain", neighbours: 32, file: "wonder-rtt/matrix.csv", ofData: true,
			vivaldi: "0.089 / 0.42 / 2.5", median: 0.05, p90: 0.25, stretch: 1.1},
		{name: "PlanetLab hosts, first slice", format: "plain", neighbours: 32, file: "planetlab-rtt/PlanetLabData_01-09.tar.gz", ofData: true,
			vivaldi: "0.095 / 0.52 / 65", p90: 0.26, stretch: 5},
	}
}

// predicted is a table and its results, one for each seed.
type predicted struct {
	table
	results []*prediction.Result
}

// topologies measures the available tables. One table is part of the project. The others
// are measured if the folder $NUSA_DATA has them.
func (o options) topologies(ctx context.Context) ([]predicted, error) {
	set, seeds := tables(), 5
	if o.quick {
		set, seeds = set[:1], 1
	}
	var out []predicted
	for _, t := range set {
		file := t.file
		if t.ofData {
			file = filepath.Join(os.Getenv("NUSA_DATA"), t.file)
		}
		if _, err := os.Stat(file); t.ofData && err != nil {
			fmt.Fprintf(os.Stderr, "%s: left out: no %s in the folder $NUSA_DATA\n", t.name, t.file)
			continue
		}
		p := predicted{table: t}
		for seed := range seeds {
			r, err := o.topology(ctx, t, file, seed+1)
			if err != nil {
				return nil, fmt.Errorf("nusa bench topology of %s: %w", t.name, err)
			}
			p.results = append(p.results, r)
		}
		out = append(out, p)
	}
	return out, nil
}

func (o options) topology(ctx context.Context, t table, file string, seed int) (*prediction.Result, error) {
	fmt.Fprintf(os.Stderr, "nusa bench topology: %s, seed %d\n", t.name, seed)
	if filepath.Ext(file) == ".gz" {
		unpacked, err := unpackFirst(file)
		if err != nil {
			return nil, err
		}
		defer os.Remove(unpacked)
		file = unpacked
	}
	out, err := command(ctx, o.nusa, "bench", "topology", "-o", "json", "--matrix", file, "--format", t.format,
		"--neighbours", strconv.Itoa(t.neighbours), "--seed", strconv.Itoa(seed))
	if err != nil {
		return nil, err
	}
	r := &prediction.Result{}
	if err := json.Unmarshal(out, r); err != nil {
		return nil, fmt.Errorf("unreadable output: %w", err)
	}
	return r, nil
}

// unpackFirst writes the file whose name is first in the archive to a temporary file, and
// returns the name of that file.
func unpackFirst(archive string) (name string, err error) {
	f, err := os.Open(archive)
	if err != nil {
		return "", err
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		return "", fmt.Errorf("%s: %w", archive, err)
	}
	first, text := "", []byte(nil)
	for in := tar.NewReader(unzipped); ; {
		head, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", archive, err)
		}
		if head.Typeflag != tar.TypeReg || first != "" && head.Name >= first {
			continue
		}
		if text, err = io.ReadAll(io.LimitReader(in, 64<<20)); err != nil {
			return "", fmt.Errorf("%s: %w", archive, err)
		}
		first = head.Name
	}
	out, err := os.CreateTemp("", "nusa-bench-*.txt")
	if err != nil {
		return "", err
	}
	_, err = out.Write(text)
	return out.Name(), errors.Join(err, out.Close())
}

// spread formats the lowest, the median and the highest value over all seeds.
func (p predicted) spread(digits int, of func(*prediction.Result) float64) string {
	var all []float64
	for _, r := range p.results {
		all = append(all, of(r))
	}
	slices.Sort(all)
	text := func(v float64) string { return strconv.FormatFloat(v, 'f', digits, 64) }
	if least, most := text(all[0]), text(all[len(all)-1]); least != most {
		return least + " · " + text(all[len(all)/2]) + " · " + most
	}
	return text(all[0])
}

// met reports whether the results of all seeds reach all goals.
func (p predicted) met() bool {
	return !slices.ContainsFunc(p.results, func(r *prediction.Result) bool {
		return p.median > 0 && r.MedianRelativeError > p.median || r.P90RelativeError > p.p90 || r.NearestStretch > p.stretch
	})
}

func (p predicted) goal() string {
	median := ""
	if p.median > 0 {
		median = fmt.Sprintf("≤ %.2f / ", p.median)
	}
	return fmt.Sprintf("%s≤ %.2f / ≤ %g", median, p.p90, p.stretch)
}

func printPredicted(w io.Writer, all []predicted) {
	if len(all) == 0 {
		return
	}
	fmt.Fprint(w, "\n## Round trips predicted\n\n`nusa bench topology …`: each region measures a few other regions. The other round\ntrips are predicted. Relative errors are those of the pairs that were not measured. The\nmodel is fitted with several seeds: least · median · greatest figure. Vivaldi's figures\nare for 8 dimensions with heights, without measurements that the model chooses.\n\n")
	fmt.Fprint(w, "| table | regions | neighbours | pairs measured (chosen) | predicted | median error | p90 error | nearest stretch | within stated error | fit, s | Vivaldi | goal | reached |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, p := range all {
		r, reached := p.results[0], "no"
		if p.met() {
			reached = "yes"
		}
		fmt.Fprintf(w, "| %s | %d | %d | %s (%d) | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n",
			p.name, r.Regions, p.neighbours, number(float64(r.MeasuredPairs)), r.AdaptivePairs, number(float64(r.UnmeasuredPairs)),
			p.spread(3, func(r *prediction.Result) float64 { return r.MedianRelativeError }),
			p.spread(3, func(r *prediction.Result) float64 { return r.P90RelativeError }),
			p.spread(2, func(r *prediction.Result) float64 { return r.NearestStretch }),
			p.spread(2, func(r *prediction.Result) float64 { return r.WithinStatedError }),
			p.spread(2, func(r *prediction.Result) float64 { return r.FitSeconds }),
			p.vivaldi, p.goal(), reached)
	}
}

// questions benchmarks queries of a matrix of 1,000 regions.
func questions(ctx context.Context, quick bool) ([]coreLine, error) {
	out, err := goBenchmarks(ctx, quick, "ThousandRegions", "./topology")
	if err != nil {
		return nil, err
	}
	asked, err := goBenchmarks(ctx, quick, "Questions/^(router|changelog|check)$", "./global/uplink")
	return append(out, asked...), err
}

// questionGoals are the goals of some queries, in nanoseconds and as text.
var questionGoals = map[string]struct {
	ns   float64
	text string
}{
	"ThousandRegions/paths/k=5,relays=2": {5e6, "≤ 5 ms"},
	"ThousandRegions/relays":             {2e9, "≤ 2 s"},
}

func printQuestions(w io.Writer, all []coreLine) {
	if len(all) == 0 {
		return
	}
	fmt.Fprint(w, "\n## Questions about 1,000 regions\n\n`go test -bench … ./topology ./global/uplink`, on one core: every pair is measured, or a\nthird of the pairs (Questions). Relays finds the best relay of every pair. Changelog is\nwhat a second of watching costs the global tier, for all watches together.\n\n")
	fmt.Fprint(w, "| benchmark | ms | allocations | goal | reached |\n|---|---|---|---|---|\n")
	for _, c := range all {
		goal, set := questionGoals[c.name]
		reached := ""
		if set {
			reached = "no"
			if c.ns <= goal.ns {
				reached = "yes"
			}
		}
		alloc := ""
		if c.alloc > 0 {
			alloc = number(c.alloc)
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s |\n", c.name, short(c.ns/1e6), alloc, goal.text, reached)
	}
}
