package client

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	g, w := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for i := range max(len(g), len(w)) {
		if i >= len(g) || i >= len(w) || g[i] != w[i] {
			t.Fatalf("%s differs at line %d (-update rewrites it):\n got: %q\nwant: %q", path, i+1, at(g, i), at(w, i))
		}
	}
}

func at(lines []string, i int) string {
	if i >= len(lines) {
		return "(end)"
	}
	return lines[i]
}

// TestRendering shows every table from fixed messages, plain and in colour.
func TestRendering(t *testing.T) {
	wide := &nusav1.MatrixResponse{}
	for i := range 10 {
		wide.Regions = append(wide.Regions, fmt.Sprintf("region-%d", i+1))
	}
	in := func(columns int, v view) view { v.width = columns; return v }
	p50 := latencyOptions{percentile: 50}
	type rendering struct {
		name string
		show func(v view, w io.Writer)
	}
	all := []rendering{
		{"job status", func(v view, w io.Writer) { v.jobStatus(w, sampleJob()) }},
		{"job status, the same reasons several times", func(v view, w io.Writer) { v.jobStatus(w, sampleWaiting()) }},
		{"job status, of a region's own", func(v view, w io.Writer) {
			j := sampleWaiting()
			j.Region, j.Status.Message = "eastus", "a: not enough cpu: needs 64 cpu"
			delete(j.Status.Groups, "b")
			delete(j.Status.Groups, "c")
			v.jobStatus(w, j)
		}},
		{"job progress", func(v view, w io.Writer) { fmt.Fprintln(w, v.progress(sampleJob())) }},
		{"job list", func(v view, w io.Writer) { v.jobList(w, []*nusav1.Job{sampleJob()}, "") }},
		{"job status, an update under way", func(v view, w io.Writer) { v.jobStatus(w, sampleUpdate()) }},
		{"job status, a version on its way through regions", func(v view, w io.Writer) { v.jobStatus(w, sampleStaged()) }},
		{"job plan, of such", func(v view, w io.Writer) {
			v.plan(w, planned{name: "default/api", submit: " api.yaml", inTurn: inTurn(sampleTurns(), sampleJob().GetSpec())}, sampleTurns())
		}},
		{"job progress, an update under way", func(v view, w io.Writer) { fmt.Fprintln(w, v.progress(sampleUpdate())) }},
		{"job plan", func(v view, w io.Writer) { v.plan(w, planned{name: "default/api", submit: " api.yaml"}, samplePlan()) }},
		{"job explain", func(v view, w io.Writer) { v.explanation(w, sampleExplanation()) }},
		{"alloc list", func(v view, w io.Writer) { v.allocList(w, sampleAllocs(), true) }},
		{"alloc status", func(v view, w io.Writer) { v.allocStatus(w, sampleAlloc()) }},
		{"region list", func(v view, w io.Writer) { v.regionList(w, sampleRegions()) }},
		{"region status", func(v view, w io.Writer) { v.regionStatus(w, sampleRegions()[0]) }},
		{"region status, disconnected", func(v view, w io.Writer) { v.regionStatus(w, sampleAway()) }},
		{"region list, disconnected", func(v view, w io.Writer) { v.regionList(w, []*nusav1.Region{sampleAway()}) }},
		{"region status without a report", func(v view, w io.Writer) { v.regionStatus(w, sampleRegions()[1]) }},
		{"region status, as another region knows it", func(v view, w io.Writer) {
			v.regionStatus(w, &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: "jakarta"}, Servers: []*nusav1.RegionalServer{{ProbeAddress: "10.2.0.1:7613"}}})
		}},
		{"node list", func(v view, w io.Writer) { v.nodeList(w, sampleNodes(), "") }},
		{"node status", func(v view, w io.Writer) { v.nodeStatus(w, sampleNodes()[0]) }},
		{"node status, lost", func(v view, w io.Writer) { v.nodeStatus(w, sampleNodes()[1]) }},
		{"latency", func(v view, w io.Writer) { v.latency(w, sampleMatrix(), p50) }},
		{"latency p99", func(v view, w io.Writer) { v.latency(w, sampleMatrix(), latencyOptions{percentile: 99}) }},
		{"latency --from japaneast", func(v view, w io.Writer) {
			v.latency(w, sampleMatrix(), latencyOptions{from: "japaneast", percentile: 50})
		}},
		{"latency --from eastus", func(v view, w io.Writer) {
			v.latency(w, sampleMatrix(), latencyOptions{from: "eastus", percentile: 50})
		}},
		{"latency, by a region", func(v view, w io.Writer) { v.latency(w, seenMatrix(lasting(0)), p50) }},
		{"latency, by a region alone", func(v view, w io.Writer) { v.latency(w, seenMatrix(lasting(3*time.Minute)), p50) }},
		{"latency, by a region that was never told", func(v view, w io.Writer) { v.latency(w, seenMatrix(nil), p50) }},
		{"latency --from westus", func(v view, w io.Writer) {
			v.latency(w, sampleMatrix(), latencyOptions{from: "westus", percentile: 50})
		}},
		{"latency of many regions", func(v view, w io.Writer) { v.latency(w, wide, p50) }},
		{"topology show", func(v view, w io.Writer) { v.tree(w, sampleTree(), nodesShown) }},
		{"topology show, by a region", func(v view, w io.Writer) {
			v.tree(w, &nusav1.TopologyTree{Regions: sampleTree().GetRegions(), SeenBy: "japaneast", Alone: lasting(0)}, nodesShown)
		}},
		{"topology nearest, by a region", func(v view, w io.Writer) {
			v.nearest(w, "southeastasia", false, 50, &nusav1.NearestResponse{Regions: sampleNearest().GetRegions(), SeenBy: "japaneast", Alone: lasting(0)})
		}},
		{"topology path, by a region alone", func(v view, w io.Writer) {
			v.paths(w, &nusav1.PathResponse{Paths: samplePaths().GetPaths(), SeenBy: "japaneast", Alone: lasting(3 * time.Minute)})
		}},
		{"topology check, by a region that was never told", func(v view, w io.Writer) {
			v.findings(w, &nusav1.CheckTopologyResponse{Regions: 1, SeenBy: "japaneast"})
		}},
		{"topology nearest", func(v view, w io.Writer) { v.nearest(w, "southeastasia", false, 50, sampleNearest()) }},
		{"topology nearest --location, of some without one", func(v view, w io.Writer) {
			v.nearest(w, "-6.2,106.8", true, 50, &nusav1.NearestResponse{Regions: []*nusav1.NearRegion{
				{Region: "frankfurt", Rtt: lasting(168 * time.Millisecond), Source: nusav1.RTTSource_RTT_SOURCE_ESTIMATED, State: nusav1.EdgeState_EDGE_STATE_OK}, {Region: "singapore"}}})
		}},
		{"topology nearest --location, of regions without one", func(v view, w io.Writer) {
			v.nearest(w, "48.8,2.3", true, 50, &nusav1.NearestResponse{Regions: []*nusav1.NearRegion{{Region: "a"}, {Region: "b"}}})
		}},
		{"topology path", func(v view, w io.Writer) { v.paths(w, samplePaths()) }},
		{"latency in 40 columns", func(v view, w io.Writer) { in(40, v).latency(w, sampleMatrix(), p50) }},
		{"latency in 24 columns", func(v view, w io.Writer) { in(24, v).latency(w, sampleMatrix(), p50) }},
		{"latency --all in 24 columns", func(v view, w io.Writer) {
			in(24, v).latency(w, sampleMatrix(), latencyOptions{percentile: 50, all: true})
		}},
		{"latency of 60 regions", func(v view, w io.Writer) { v.latency(w, federationOf(60), p50) }},
		{"latency --history", func(v view, w io.Writer) { v.manySeries(w, sampleEdges(), []string{"p50_ms", "loss"}) }},
		{"latency --history --to eastus", func(v view, w io.Writer) { v.oneSeries(w, sampleEdges()[0]) }},
		{"topology show, two nodes of many", func(v view, w io.Writer) { v.tree(w, crowdedTree(), 2) }},
		{"topology path, with load", func(v view, w io.Writer) { v.paths(w, sampleWeighed()) }},
		{"topology path over what is stale and what is contradicted", func(v view, w io.Writer) { v.paths(w, sampleDoubted()) }},
		{"topology check", func(v view, w io.Writer) { v.findings(w, sampleCheck()) }},
		{"topology check, nothing", func(v view, w io.Writer) { v.findings(w, &nusav1.CheckTopologyResponse{Regions: 1}) }},
		{"origin list", func(v view, w io.Writer) { v.originList(w, &nusav1.ListOriginsResponse{Records: sampleOrigins()}) }},
		{"origin list, by a region alone", func(v view, w io.Writer) { v.originList(w, &nusav1.ListOriginsResponse{Age: lasting(3 * time.Minute)}) }},
		{"origin resolve", func(v view, w io.Writer) { v.resolved(w, "www.example.com", "southeastasia", sampleResolved()) }},
		{"node history of pools", func(v view, w io.Writer) {
			v.manySeries(w, []*nusav1.HistorySeries{sampleUse()}, []string{"cpu", "memory_used"})
		}},
		{"origin list, as of now", func(v view, w io.Writer) {
			v.originList(w, &nusav1.ListOriginsResponse{Records: sampleOrigins(), Age: lasting(0)})
		}},
		{"node history", func(v view, w io.Writer) { v.oneSeries(w, sampleUse()) }},
	}
	for _, colour := range []bool{false, true} {
		var b strings.Builder
		for _, r := range all {
			fmt.Fprintf(&b, "=== %s\n", r.name)
			r.show(view{palette{colour}, noon, "nusa", 0}, &b)
		}
		text := b.String()
		if strings.Contains(text, "\x1b") != colour {
			t.Errorf("colour is %v, and there are escapes: %v", colour, !colour)
		}
		name := "render.txt"
		if colour {
			name = "render.colour.txt"
			text = strings.ReplaceAll(text, "\x1b", "␛")
		}
		golden(t, name, text)
	}
}

// TestColourHasNoWidth: the same tables, with the escapes taken out.
func TestColourHasNoWidth(t *testing.T) {
	render := func(on bool) string {
		var b strings.Builder
		v := view{palette{on}, noon, "nusa", 0}
		v.nodeList(&b, sampleNodes(), "")
		v.explanation(&b, sampleExplanation())
		return b.String()
	}
	if got := strip(render(true)); got != render(false) {
		t.Errorf("got:\n%s\nwant:\n%s", got, render(false))
	}
}

// TestStaged: it is told only where a version goes from region to region.
func TestStaged(t *testing.T) {
	slots := func(j *nusav1.Job) []*nusav1.Slot { return j.GetStatus().GetGroups()["web"].GetSlots() }
	in := func(j *nusav1.Job, region string) *nusav1.InstanceCounts {
		return j.GetStatus().GetGroups()["web"].GetRegions()[region]
	}
	for name, c := range map[string]struct {
		change func(*nusav1.Job)
		want   string
	}{
		"on its way": {func(*nusav1.Job) {}, "version 3: done in kobe, nagoya; now in osaka; not yet in sapporo, tokyo"},
		"failed": {func(j *nusav1.Job) { in(j, "osaka").Outdated, in(j, "osaka").Failed = 0, 1 },
			"version 3: done in kobe, nagoya; failed in osaka; not yet in sapporo, tokyo"},
		"the last": {func(j *nusav1.Job) {
			for _, s := range slots(j) {
				s.JobVersion = 3
			}
			in(j, "sapporo").Outdated, in(j, "osaka").Outdated = 0, 0
		}, "version 3: done in kobe, nagoya, osaka, sapporo; now in tokyo"},
		"none is old": {func(j *nusav1.Job) {
			for _, s := range slots(j) {
				s.JobVersion, in(j, s.GetRegion()).Outdated = 3, 0
			}
		}, ""},
		"one region": {func(j *nusav1.Job) { j.Status.Groups["web"].Slots = slots(j)[3:4] }, ""},
		"others are left": {func(j *nusav1.Job) {
			for _, s := range slots(j)[3:] {
				s.Desired = nusav1.SlotDesired_SLOT_DESIRED_STOP
			}
			in(j, "osaka").Outdated = 0
		}, ""},
		"batch jobs": {func(j *nusav1.Job) { j.Spec.Type = nusav1.JobType_JOB_TYPE_BATCH }, ""},
	} {
		j := sampleStaged()
		c.change(j)
		if got := staged(j); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func strip(s string) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(s, "\x1b[")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		_, s, _ = strings.Cut(after, "m")
	}
}

func TestFit(t *testing.T) {
	p := palette{true}
	line := p.good("running") + "  2 " + p.wait("pending") + " waits: " + strings.Repeat("x", 100)
	for _, c := range []struct {
		line  string
		width int
		want  string
	}{
		{line, 20, "running  2 pending…"},
		{line, 200, strip(line)},
		{line, 1, "…"}, {line, 0, "…"}, {line, -3, "…"},
		{"世界世界", 8, "世界世…"},
		{"世界世界", 9, "世界世界"},
		// What one terminal shows in two columns another shows in six.
		{"👨‍👩‍👧xyz", 6, "…"},
		{"e\u0301xyz", 5, "e\u0301xyz"},
	} {
		if got := strip(fit(c.line, c.width)); got != c.want {
			t.Errorf("%q in %d columns: got %q, want %q", strip(c.line), c.width, got, c.want)
		}
	}
}

// TestDrainOfASilentNode: what it may run waits for it, not for room elsewhere.
func TestDrainOfASilentNode(t *testing.T) {
	n := &nusav1.Node{
		Name: "n1", Draining: true, Allocations: 2, State: nusav1.NodeState_NODE_STATE_LOST,
		Leaving: []*nusav1.LeavingGroup{{Job: "api", Group: "web", Count: 2, Reason: nusav1.Reason_REASON_NODE_LOST}},
	}
	if got := nodeNow(n, "nusa"); strings.Contains(got, "no room") || !strings.Contains(got, "2 allocations to move (") {
		t.Error(got)
	}
	if n.State = nusav1.NodeState_NODE_STATE_READY; !strings.Contains(nodeNow(n, "nusa"), "no room for 2 now") {
		t.Error(nodeNow(n, "nusa"))
	}
}
