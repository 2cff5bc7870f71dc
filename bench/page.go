package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/bench/region"
)

// page holds what RESULTS.md shows.
type page struct {
	machine  machine
	began    time.Time
	took     time.Duration
	runs     int
	measured []measured
	ceilings [][]coreLine // before and after the measurements
	// rest has the latencies of paced calls, sessions the cost of a connected agent.
	rest, sessions []coreLine
	core           []coreLine

	predicted []predicted
	questions []coreLine
	agents    []agentMeasured
	// federations has the figures of whole federations, and plans the figures of the pure
	// placer.
	federations []federationMeasured
	plans       []coreLine
}

// machine describes where the figures were measured.
type machine struct {
	cpu, kernel, goVersion, commit string
	cores                          int
	memoryGB                       float64
}

func thisMachine(ctx context.Context) machine {
	m := machine{cpu: "unknown", kernel: "unknown", goVersion: runtime.Version(), commit: "unknown", cores: runtime.NumCPU()}
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if v, found := field(data, "model name"); found {
			m.cpu = v
		}
	}
	if data, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.kernel = strings.TrimSpace(string(data))
	}
	if data, err := os.ReadFile("/proc/meminfo"); err == nil {
		if v, found := field(data, "MemTotal"); found {
			kib, _ := strconv.ParseFloat(strings.TrimSuffix(v, " kB"), 64)
			m.memoryGB = kib * 1024 / 1e9
		}
	}
	if out, err := exec.CommandContext(ctx, "git", "describe", "--tags", "--always", "--dirty").Output(); err == nil {
		m.commit = strings.TrimSpace(string(out))
	}
	return m
}

// field returns a value of a file in /proc with lines "key : value".
func field(data []byte, key string) (string, bool) {
	for line := range bytes.Lines(data) {
		k, v, found := strings.Cut(string(line), ":")
		if found && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v), true
		}
	}
	return "", false
}

// coreLine is the result of one Go benchmark.
type coreLine struct {
	name                string
	ns, perPlace, alloc float64            // perPlace 0 = the benchmark has no placements
	metrics             map[string]float64 // other metrics, by unit
}

// parseCore reads the output of go test -bench.
func parseCore(out []byte) ([]coreLine, error) {
	var lines []coreLine
	for line := range bytes.Lines(out) {
		f := strings.Fields(string(line))
		if len(f) < 4 || !strings.HasPrefix(f[0], "Benchmark") {
			continue
		}
		c := coreLine{name: strings.TrimPrefix(f[0], "Benchmark")}
		if cut := strings.LastIndexByte(c.name, '-'); cut > 0 {
			c.name = c.name[:cut] // without the number of processors
		}
		for i := 2; i+1 < len(f); i += 2 {
			v, err := strconv.ParseFloat(f[i], 64)
			if err != nil {
				return nil, fmt.Errorf("output of go test: %q: %w", line, err)
			}
			switch f[i+1] {
			case "ns/op":
				c.ns = v
			case "ns/placement":
				c.perPlace = v
			case "allocs/op":
				c.alloc = v
			case "B/agent", "stack-B/agent", "p50-ms", "p99-ms":
				if c.metrics == nil {
					c.metrics = map[string]float64{}
				}
				c.metrics[f[i+1]] = v
			}
		}
		lines = append(lines, c)
	}
	if len(lines) == 0 {
		return nil, errors.New("go test ran no benchmark")
	}
	return lines, nil
}

// span formats a figure over all runs. If the runs differ, the text has the lowest and the
// highest value.
func (m measured) span(format func(float64) string, of func(*region.Result) float64) string {
	least, most := math.Inf(1), math.Inf(-1)
	for _, r := range m.results {
		least, most = min(least, of(r)), max(most, of(r))
	}
	if a, b := format(least), format(most); a != b {
		return a + "–" + b
	}
	return format(least)
}

// number formats a rounded figure with a comma between thousands.
func number(v float64) string {
	s := strconv.FormatFloat(math.Round(v), 'f', -1, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func short(v float64) string {
	if v >= 100 {
		return number(v)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

func (p page) print(w io.Writer) {
	m := p.machine
	fmt.Fprintf(w, "# Measured\n\nWritten by `make bench` on %s, in %s. The load generator and the servers\nshare the processors. The logs of the servers are on disk, with fsync.\n\n", p.began.Format(time.DateOnly), p.took.Round(time.Second))
	fmt.Fprintf(w, "- %d cores, %s, %.0f GB\n- Linux %s, %s\n- Nusa %s\n", m.cores, m.cpu, m.memoryGB, m.kernel, m.goVersion, m.commit)
	if len(p.measured) > 0 {
		if r := p.measured[0].results[0]; r.DiskSyncMS != nil {
			fmt.Fprintf(w, "- %s, write and fsync of 4 KiB: %s\n", r.Filesystem, *r.DiskSyncMS)
		}
	}
	if p.runs > 1 {
		fmt.Fprintf(w, "- a range has the least and the greatest value of %d runs\n", p.runs)
	}
	p.printCeilings(w)
	p.printRegion(w)
	p.printShares(w)
	p.printAfter(w)
	p.printCompared(w)
	printFederations(w, p.federations, p.plans, "")
	printAgents(w, p.agents, "")
	printPredicted(w, p.predicted)
	printQuestions(w, p.questions)
	p.printCore(w)
}

func (p page) printRegion(w io.Writer) {
	if len(p.measured) == 0 {
		return
	}
	fmt.Fprint(w, "\n## A region\n\n`nusa bench region …`. Placed and acknowledged are instances a second, from the first\nsubmit to the last instance. Server CPU is the CPU time of all servers, from the first\nsubmit until all instances are acknowledged, divided by the placements. Memory is the\npeak of the largest server since its start.\n\n")
	fmt.Fprint(w, "| arguments | placed /s | acknowledged /s | submit → placed p50 / p99 ms | server CPU µs each | peak MB | empty calls /s | goal | reached |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, m := range p.measured {
		cpu := m.span(short, func(r *region.Result) float64 { return *r.ServerCPUUSPerPlacement })
		if m.results[0].Rate > 0 {
			cpu = "" // at a fixed rate, most CPU time is for heartbeats
		}
		empty := m.span(number, func(r *region.Result) float64 { return r.EmptyCallsPerS })
		if m.results[0].EmptyCallMS != nil {
			empty = fmt.Sprintf("%s; at this rate %s / %s ms", empty,
				m.span(short, func(r *region.Result) float64 { return r.EmptyCallMS.P50 }),
				m.span(short, func(r *region.Result) float64 { return r.EmptyCallMS.P99 }))
		}
		reached := ""
		if m.met != nil {
			reached = "yes"
			for _, r := range m.results {
				if !m.met(r) {
					reached = "no"
				}
			}
		}
		fmt.Fprintf(w, "| `%s` | %s | %s | %s / %s | %s | %s | %s | %s | %s |\n", m.args,
			m.span(number, func(r *region.Result) float64 { return r.PlacementsPerS }),
			m.span(number, func(r *region.Result) float64 { return r.AcknowledgedPerS }),
			m.span(short, func(r *region.Result) float64 { return r.SubmitToPlacedMS.P50 }),
			m.span(short, func(r *region.Result) float64 { return r.SubmitToPlacedMS.P99 }),
			cpu,
			m.span(number, func(r *region.Result) float64 { return *r.ServerPeakRSSMB }),
			empty, m.goal, reached)
	}
}

// printAfter writes the figures that were measured after the load.
func (p page) printAfter(w io.Writer) {
	if !slices.ContainsFunc(p.measured, func(m measured) bool { return m.results[0].Idle != nil || m.results[0].Restart != nil }) {
		return
	}
	fmt.Fprint(w, "\n### Afterwards\n\nAfter the load the servers are idle and get only heartbeats and statistics. Then the\nmaster is killed with SIGKILL. If it was the only server, it is started again.\n\n")
	fmt.Fprint(w, "| arguments | idle, cores | elected after ms | first placement after ms | of these after the election ms | all agents back after ms |\n|---|---|---|---|---|---|\n")
	for _, m := range p.measured {
		first := m.results[0]
		if first.Idle == nil && first.Restart == nil {
			continue
		}
		idle, restart := "", " | | | "
		if first.Idle != nil {
			idle = m.span(short, func(r *region.Result) float64 { return r.Idle.CPUCores })
		}
		if first.Restart != nil {
			restart = strings.Join([]string{
				m.span(number, func(r *region.Result) float64 { return r.Restart.ElectedMS }),
				m.span(number, func(r *region.Result) float64 { return r.Restart.PlacedMS }),
				m.span(number, func(r *region.Result) float64 { return r.Restart.PlacedAfterElectedMS }),
				m.span(number, func(r *region.Result) float64 { return r.Restart.AgentsBackMS }),
			}, " | ")
		}
		fmt.Fprintf(w, "| `%s` | %s | %s |\n", m.args, idle, restart)
	}
}

// printCompared writes the figures beside Nomad's.
func (p page) printCompared(w io.Writer) {
	if !slices.ContainsFunc(p.measured, func(m measured) bool { return m.nomad != "" }) {
		return
	}
	fmt.Fprintf(w, "\n## Beside Nomad\n\n%s. Its peak memory was 0.4–1.1 GB at 100 nodes,\n0.5–1.3 GB at 1,000 and 1.3–2.2 GB at 5,000 (3.3 GB with clients that pull and acknowledge).\n\n", nomadNote)
	fmt.Fprint(w, "| arguments | Nusa | Nomad |\n|---|---|---|\n")
	for _, m := range p.measured {
		if m.nomad == "" {
			continue
		}
		ours := fmt.Sprintf("%s placed /s, %s acknowledged /s, %s µs of CPU each",
			m.span(number, func(r *region.Result) float64 { return r.PlacementsPerS }),
			m.span(number, func(r *region.Result) float64 { return r.AcknowledgedPerS }),
			m.span(short, func(r *region.Result) float64 { return *r.ServerCPUUSPerPlacement }))
		if m.results[0].Rate > 0 {
			ours = fmt.Sprintf("%s%s / %s ms", latency,
				m.span(short, func(r *region.Result) float64 { return r.SubmitToPlacedMS.P50 }),
				m.span(short, func(r *region.Result) float64 { return r.SubmitToPlacedMS.P99 }))
		}
		fmt.Fprintf(w, "| `%s` | %s | %s |\n", m.args, ours, m.nomad)
	}
}

func (p page) printCore(w io.Writer) {
	if len(p.core) == 0 {
		return
	}
	fmt.Fprint(w, "\n## The scheduler alone\n\n`go test -bench . ./regional/sched`: decisions without a log and a network. For 300\ninstances Nomad's scheduler alone takes 116 µs each at 1,000 nodes and 140 µs at 5,000;\nwith a spread it takes 3.3 ms and 3.7 ms.\n\n")
	fmt.Fprint(w, "| benchmark | µs a placement | µs in all | allocations in all |\n|---|---|---|---|\n")
	for _, c := range p.core {
		each := ""
		if c.perPlace > 0 {
			each = short(c.perPlace / 1000)
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s |\n", c.name, each, short(c.ns/1000), number(c.alloc))
	}
}
