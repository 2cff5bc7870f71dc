package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/bench/federation"
)

// federationCase is one run of `nusa bench federation`.
type federationCase struct {
	args, goal string
	met        func(*federation.Result) bool
	// rest: the load is too small for rates. The case and its goal are about the server before and after the load.
	rest bool
}

// ofEtcd is the goal for decisions a second, as a share of the jobs that etcd alone stores
// in a second.
const ofEtcd = 0.6

func federationCases(quick bool) []federationCase {
	if quick {
		return []federationCase{{args: "--regions 5 --jobs 2000 --concurrency 64 --idle 500ms --etcd 500ms --parts 2000"}}
	}
	var out []federationCase
	for _, regions := range []int{5, 50, 200, 1000} {
		size := fmt.Sprintf("--rounds 3 --regions %d", regions)
		well, goal := func(*federation.Result) bool { return true }, ""
		if regions == 1000 {
			well, goal = connectedWell, ", "+connectedGoal
		}
		out = append(out, federationCase{
			args: size + " --jobs 20000 --concurrency 64 --idle 20s --parts 20000",
			goal: "≥ 0.6 of etcd alone, offered ≤ 15 / 60 ms, ≤ 100 µs of CPU" + goal,
			met: func(r *federation.Result) bool {
				return r.DecidedPerS >= ofEtcd**r.EtcdJobsPerS && offered(r, 15, 60) && *r.ServerCPUUSPerJob <= 100 && well(r)
			},
		}, federationCase{
			args: size + " --jobs 20000 --concurrency 8 --stream --idle 0 --etcd 1s --parts 20000",
			goal: "≥ 10,000 decided /s and ≥ 0.6 of etcd alone",
			met:  func(r *federation.Result) bool { return r.DecidedPerS >= max(10_000, ofEtcd**r.EtcdJobsPerS) },
		}, federationCase{
			// A few seconds of work: after 1,000 jobs the work after connecting is still a part of the CPU time.
			args: size + " --jobs 5000 --concurrency 1 --idle 0 --etcd 1s --parts 5000",
			goal: "offered ≤ 3 / 10 ms, running ≤ 10 / 30 ms, ≤ 300 µs of CPU",
			met: func(r *federation.Result) bool {
				return offered(r, 3, 10) && r.SubmitToRunningMS.P50 <= 10 && r.SubmitToRunningMS.P99 <= 30 && *r.ServerCPUUSPerJob <= 300
			},
		})
	}
	return append(out, federationCase{
		rest: true,
		args: "--rounds 3 --regions 1000 --jobs 200 --concurrency 1 --idle 30s --etcd 1s --parts 200",
		goal: connectedGoal,
		met:  connectedWell,
	})
}

func offered(r *federation.Result, p50, p99 float64) bool {
	return r.SubmitToOfferedMS.P50 <= p50 && r.SubmitToOfferedMS.P99 <= p99
}

// connectedGoal says what connectedWell checks.
const connectedGoal = "connected in ≤ 4 s with ≤ 20 MB down, ≤ 157 MB (150 MiB) of memory then and idle, idle ≤ 0.05 core and ≤ 500 bytes each way, restart ≤ 3 s"

// connectedWell reports whether a federation of 1,000 regions reaches its goals beside those of the load.
func connectedWell(r *federation.Result) bool {
	return r.ConnectS <= 4 && r.ConnectMB.Down <= 20 && r.ConnectMemory.RSSMB <= 157 && r.Idle.Memory.RSSMB <= 157 &&
		*r.Idle.Cores <= 0.05 && r.Idle.DownBytes <= 500 && r.Idle.UpBytes <= 500 && *r.RestartS <= 3
}

// federationMeasured is a case and the results of its runs.
type federationMeasured struct {
	federationCase
	results []*federation.Result
}

// reached says whether a result reaches the goal; "" without a goal.
func (c federationCase) reached(r *federation.Result) string {
	switch {
	case c.met == nil:
		return ""
	case c.met(r):
		return "yes"
	}
	return "no"
}

func (o options) federations(ctx context.Context) ([]federationMeasured, error) {
	var out []federationMeasured
	for _, c := range federationCases(o.quick) {
		m := federationMeasured{federationCase: c}
		for range o.runs {
			r, err := measureOne[federation.Result](ctx, o, "federation", c.args)
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(os.Stderr, "  %.0f decided /s, the bare parts %.0f, etcd alone %.0f jobs/s\n", r.DecidedPerS, r.Parts.DecidedPerS, *r.EtcdJobsPerS)
			m.results = append(m.results, r)
		}
		out = append(out, m)
	}
	return out, nil
}

// federationPlans runs the benchmarks of the pure placer.
func federationPlans(ctx context.Context, quick bool) ([]coreLine, error) {
	return goBenchmarks(ctx, quick, "^BenchmarkFederation$", "./global/place")
}

// federationHeading is the heading of the section.
const federationHeading = "## A federation"

// printFederations writes the section about federations. measured is a line that names the
// day and the commit of the figures; it is empty when they are those of the whole page.
func printFederations(w io.Writer, all []federationMeasured, plans []coreLine, measured string) {
	if len(all) == 0 {
		return
	}
	fmt.Fprint(w, "\n"+federationHeading+"\n\n`nusa bench federation …`: emulated regions, and one global server with its etcd on disk.\nA third of the jobs are near a region, and a sixth run in three regions. Decided counts\nslots when regions receive them. Etcd alone stores jobs of four keys for 64 clients, with\none job in a transaction, or 31 jobs with --stream. Share is decided divided by etcd\nalone. Memory is the peak before the restart. Each figure is the median of three rounds.\nThe goals are absolute. Where one is not reached, the bare parts below mostly do not reach\nit on this machine either; ✓ there shows what Nusa adds.\n"+measured+"\n")
	fmt.Fprint(w, "| arguments | decided /s | accepted /s | etcd alone jobs/s | share | submit → offered p50 / p99 ms | submit → running p50 / p99 ms | server CPU µs a job | peak MB | bytes written a job | goal | reached |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, m := range all {
		if m.rest {
			continue
		}
		for _, r := range m.results {
			fmt.Fprintf(w, "| `%s` | %s | %s | %s | %.2f | %s / %s | %s / %s | %s | %s | %s | %s | %s |\n", m.args,
				number(r.DecidedPerS), number(r.AcceptedPerS), number(*r.EtcdJobsPerS), r.DecidedPerS / *r.EtcdJobsPerS,
				short(r.SubmitToOfferedMS.P50), short(r.SubmitToOfferedMS.P99), short(r.SubmitToRunningMS.P50), short(r.SubmitToRunningMS.P99),
				short(*r.ServerCPUUSPerJob), number(*r.ServerPeakRSSMB), number(*r.BytesWrittenPerJob), m.goal, m.reached(r))
		}
	}
	fmt.Fprint(w, "\nAll regions connect at once. The bytes are those until the lists of regions have arrived.\nIdle bytes are those of one region in five seconds. Restart is the time from the start of\nthe process, after a SIGKILL, to its first decision. Memory is that of the server after the\nregions have connected, and idle after the jobs. Within 30 seconds after jobs with near\nrules, each region gets once what it has to probe for them: 5 kB with 200 regions. A few\nregions at a time get the whole matrix: up to 100 bytes for each region in five seconds.\n\n| arguments | connected s | MB down / up | MB of memory then / idle | idle, cores | idle bytes down / up | restart s | goal | reached |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, m := range all {
		for _, r := range m.results {
			if r.Idle != nil {
				goal, reached := "", ""
				if m.rest {
					goal, reached = m.goal, m.reached(r)
				}
				fmt.Fprintf(w, "| `%s` | %s | %s / %s | %s / %s | %s | %s / %s | %s | %s | %s |\n", m.args, short(r.ConnectS), short(r.ConnectMB.Down), short(r.ConnectMB.Up),
					number(r.ConnectMemory.RSSMB), number(r.Idle.Memory.RSSMB), short(*r.Idle.Cores), number(r.Idle.DownBytes), number(r.Idle.UpBytes), short(*r.RestartS), goal, reached)
			}
		}
	}
	printParts(w, all)
	printPlans(w, plans)
}

// printParts writes the figures beside those of the bare parts.
func printParts(w io.Writer, all []federationMeasured) {
	for i, figures := range [][]federation.Figure{federation.LoadFigures, federation.RestFigures} {
		head, rule := "| arguments |", "|---|"
		for _, f := range figures {
			head, rule = head+" "+f.Title+" |", rule+"---|"
		}
		var lines []string
		for _, m := range all {
			for _, r := range m.results {
				if line := ofParts(r, figures); line != "" && (i == 0 && !m.rest || i == 1 && r.Idle != nil) {
					lines = append(lines, fmt.Sprintf("| `%s` |%s\n", m.args, line))
				}
			}
		}
		if len(lines) == 0 {
			continue
		}
		if i == 0 {
			fmt.Fprint(w, partsIntro)
		}
		fmt.Fprintf(w, "\n%s\n%s\n%s", head, rule, strings.Join(lines, ""))
	}
}

const partsIntro = `
### Beside the bare parts

Each run above measures the server and the bare parts in turn, in three rounds, with the
same jobs and regions. The bare parts are the gRPC server and the etcd of a global server
without decisions: they receive, store and send what each global tier must, and do nothing
else (package bench/federation/parts). A cell has the median of Nusa, that of the bare
parts, and the median of the three ratios of the first to the second, with the least and
the greatest. ✓: the median reaches the share 0.6 of the bare parts, so a rate is at least
0.6 of theirs, and a time or a cost at most 1.67 times theirs.
`

// reachesShare reports whether a ratio to the bare parts reaches the share ofEtcd.
func reachesShare(figure string, ratio float64) bool {
	if strings.HasSuffix(figure, "per_s") {
		return ratio >= ofEtcd
	}
	return ratio <= 1/ofEtcd
}

// ofParts returns the cells of a line: the figures, those of the bare parts, and the ratios.
// It returns "" for a result without the bare parts.
func ofParts(r *federation.Result, figures []federation.Figure) string {
	if r.Parts == nil {
		return ""
	}
	line := ""
	for _, f := range figures {
		own, _ := f.Of(r)
		bare, _ := f.Of(r.Parts)
		cell := short(own) + " / " + short(bare)
		if ratio, known := r.Ratios[f.Name]; known {
			cell += fmt.Sprintf(" = %.2f%s", ratio, r.RangeText(f.Name))
			if reachesShare(f.Name, ratio) {
				cell += " ✓"
			}
		}
		line += " " + cell + " |"
	}
	return line
}

// printPlans writes the benchmarks of the pure placer.
func printPlans(w io.Writer, plans []coreLine) {
	const goal, goalMS, name = "≤ 25 ms", 25, "Federation/indexed/pending=1000/regions=1000"
	if len(plans) == 0 {
		return
	}
	fmt.Fprint(w, "\n`go test -bench Federation ./global/place`: one plan of such jobs, without a store.\n\n| benchmark | ms | allocations | goal | reached |\n|---|---|---|---|---|\n")
	for _, c := range plans {
		text, reached := "", ""
		if c.name == name {
			text, reached = goal, "no"
			if c.ns <= goalMS*1e6 {
				reached = "yes"
			}
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s |\n", c.name, short(c.ns/1e6), number(c.alloc), text, reached)
	}
}

// federationsOnly measures the federation alone and replaces its section of the existing
// page.
func (o options) federationsOnly(ctx context.Context) error {
	began, machine := time.Now(), thisMachine(ctx)
	all, err := o.federations(ctx)
	if err != nil {
		return err
	}
	plans, err := federationPlans(ctx, o.quick)
	if err != nil {
		return err
	}
	var section bytes.Buffer
	printFederations(&section, all, plans, fmt.Sprintf("Measured by itself on %s, with Nusa %s.\n", began.Format(time.DateOnly), machine.commit))
	return o.replace(section.Bytes(), federationHeading, agentsHeading)
}
