package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/bench/agent"
	"github.com/nusa-scheduler/nusa/bench/federation"
	"github.com/nusa-scheduler/nusa/bench/prediction"
	"github.com/nusa-scheduler/nusa/bench/region"
	"github.com/nusa-scheduler/nusa/bench/report"
	"github.com/nusa-scheduler/nusa/internal/golden"
)

func TestPage(t *testing.T) {
	lines, err := parseCore([]byte(`goos: linux
BenchmarkPlan/one-job=1x10000/nodes=100-2   	 46	 25791377 ns/op	 2579 ns/placement	21691792 B/op	 60050 allocs/op
BenchmarkQuiet/nodes=100-2   	 1	 1712 ns/op	 304 B/op	 3 allocs/op
BenchmarkCeilingAtRest/log=true-2   	 1	 5000000000 ns/op	 0.36 p50-ms	 1 p99-ms
PASS
`))
	if err != nil {
		t.Fatal(err)
	}
	cpu, rss := 38.51, 377.7
	result := func(perS float64) *region.Result {
		return &region.Result{
			PlacementsPerS: perS, AcknowledgedPerS: 12_345, SubmitToPlacedMS: report.Quantiles{P50: 0.7512, P99: 1234},
			ServerCPUUSPerPlacement: &cpu, ServerPeakRSSMB: &rss, EmptyCallsPerS: 60_001, Filesystem: "ext4",
			DiskSyncMS: &report.Quantiles{P50: 0.2, P90: 0.3, P99: 1, Max: 2},
			Idle:       &region.IdleFigures{CPUCores: 0.0312}, Restart: &region.RestartFigures{ElectedMS: 2000, PlacedMS: 2100.4, PlacedAfterElectedMS: 100.4, AgentsBackMS: 2500},
		}
	}
	rate := result(50)
	rate.Rate, rate.Idle, rate.Restart = 50, nil, nil
	of := func(v float64) *float64 { return &v }
	fast := &federation.Result{
		DecidedPerS: 12_345.6, AcceptedPerS: 12_000, EtcdJobsPerS: of(15_000), SubmitToOfferedMS: federation.Pair{P50: 3.21, P99: 9}, SubmitToRunningMS: federation.Pair{P50: 7, P99: 28},
		ServerCPUUSPerJob: of(99.5), ServerPeakRSSMB: of(149), BytesWrittenPerJob: of(3019), ConnectS: 3.9, ConnectMB: federation.Traffic{Down: 19.8, Up: 88.123},
		ConnectMemory: &federation.Memory{RSSMB: 140, OwnMB: 99},
		Idle:          &federation.Idle{Cores: of(0.04), DownBytes: 499, UpBytes: 498, Memory: &federation.Memory{RSSMB: 149, OwnMB: 100}}, RestartS: of(2.9),
	}
	missed, stream := *fast, &federation.Result{}
	slow := &missed
	fast.Parts, fast.Ratios = &missed, map[string]float64{"decided_per_s": 1, "connect_s": 0.9951}
	fast.RatiosOfRounds = map[string][]float64{"decided_per_s": {0.8, 1, 1.2}}
	slow.RestartS, *stream = of(26.9), *fast
	stream.Idle = nil
	p := page{
		machine: machine{cpu: "EPYC", kernel: "6.12", goVersion: "go1.26", commit: "v1", cores: 2, memoryGB: 25.2},
		began:   time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC), took: 61_400 * time.Millisecond, runs: 2,
		measured: []measured{
			{scenario{args: "--nodes 1", goal: "≥ 25,000", met: placed(25_000), asked: 25_000, callers: 64, nomad: "3–4 /s"}, []*region.Result{result(26_000), result(24_999.6)}},
			{scenario{args: "--rate 50", goal: "≤ 0.8 / 3 ms", met: within(0.8, 2000), nomad: "9 ms"}, []*region.Result{rate, rate}},
		},
		rest:     lines[2:],
		sessions: []coreLine{{name: "Sessions/bare", metrics: map[string]float64{"B/agent": 28 << 10, "stack-B/agent": 19 << 10}}},
		ceilings: [][]coreLine{
			{{name: "Ceiling/callers=16/log=true", ns: 50_000}, {name: "Ceiling/callers=64/log=true", ns: 20_000}},
			{{name: "Ceiling/callers=16/log=true", ns: 100_000}, {name: "Ceiling/callers=64/log=true", ns: 19_000}},
		},
		core: lines[:2],
		questions: []coreLine{
			{name: "ThousandRegions/paths/k=5,relays=2", ns: 263_502, alloc: 26}, {name: "ThousandRegions/relays", ns: 2.1e9}, {name: "Questions/changelog", ns: 45.9e6},
		},
		federations: []federationMeasured{{federationCases(false)[9], []*federation.Result{fast}}, {federationCases(false)[12], []*federation.Result{slow, fast}}, {federationCase{args: "--idle 0"}, []*federation.Result{stream}}},
		plans:       []coreLine{{name: "Federation/pending=1/regions=5", ns: 12_345, alloc: 137}, {name: "Federation/indexed/pending=1000/regions=1000", ns: 26e6, alloc: 2_253_808}},
		agents: []agentMeasured{{agentCase{args: "--tasks 2", goal: "≤ 9 ms", met: func(r *agent.Result) bool { return r.StartMS.P50 <= 9 }}, []*agent.Result{{
			StartMS: report.Quantiles{P50: 5.78, P99: 11.1}, Idle: &agent.Idle{RSSMB: 28.6, CPUCores: 0.0012, SupervisorRSSMB: 4, SupervisorPSSMB: 1.04},
			Rested:    &agent.Idle{RSSMB: 33.3, CPUCores: 0.001},
			BatchPerS: 183.2, AgentCPUMSPerTask: 2.77, TaskCPUMS: 5.5, Sizes: []agent.Size{{After: 100, HeldMB: 6, RSSMB: 40, StoreBytes: 262144}, {After: 1000, RSSMB: 41, Goroutines: 3, StoreBytes: 262144}},
		}, {StartMS: report.Quantiles{P50: 9.1}}}}},
		predicted: []predicted{
			{table{name: "A", neighbours: 16, vivaldi: "0.1 / 0.4 / 2", median: 0.05, p90: 0.25, stretch: 1.1}, []*prediction.Result{
				{Regions: 51, MeasuredPairs: 806, UnmeasuredPairs: 1422, MedianRelativeError: 0.0214, P90RelativeError: 0.2, NearestStretch: 1, WithinStatedError: 0.8, FitSeconds: 0.1},
				{MedianRelativeError: 0.0511, P90RelativeError: 0.1, NearestStretch: 1, WithinStatedError: 0.8, FitSeconds: 0.1},
				{MedianRelativeError: 0.03, P90RelativeError: 0.15, NearestStretch: 1, WithinStatedError: 0.8, FitSeconds: 0.1},
			}},
			{table{name: "B", neighbours: 4, vivaldi: "1 / 1 / 1", p90: 0.25, stretch: 5}, []*prediction.Result{{Regions: 2, MedianRelativeError: 1, NearestStretch: 4}}},
		},
	}
	var got bytes.Buffer
	p.print(&got)
	golden.File(t, "testdata/page.md", got.String())
}

func TestNoBenchmark(t *testing.T) {
	if _, err := parseCore([]byte("PASS\n")); err == nil {
		t.Error("a run without benchmarks is no error")
	}
}

func TestReplaceSection(t *testing.T) {
	const next = "## C"
	for page, want := range map[string]string{
		"# P\n\n## A\n\na\n\n## B\n\nold\n\n## C\n\nc\n": "# P\n\n## A\n\na\n\n## B\n\nnew\n\n## C\n\nc\n",
		"# P\n\n## A\n\na\n\n## C\n\nc\n":                "# P\n\n## A\n\na\n\n## B\n\nnew\n\n## C\n\nc\n",
	} {
		got, err := replaceSection([]byte(page), []byte("\n## B\n\nnew\n"), "## B", next)
		if err != nil || string(got) != want {
			t.Errorf("%q becomes %q, %v", page, got, err)
		}
	}
	if _, err := replaceSection([]byte("# P\n"), nil, "## B", next); err == nil {
		t.Error("a page without the section that follows is no error")
	}
}
