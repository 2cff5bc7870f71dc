package client

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/job/doc"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// federationOf so many regions on a line, 3 ms apart, with every kind of edge.
func federationOf(n int) *nusav1.MatrixResponse {
	m := &nusav1.MatrixResponse{}
	for i := range n {
		m.Regions = append(m.Regions, fmt.Sprintf("region-%02d", i+1))
	}
	for i, a := range m.Regions {
		for j, b := range m.Regions {
			if i == j {
				continue
			}
			e := edge(a, b, time.Duration(3*max(i-j, j-i))*time.Millisecond, nusav1.EdgeState_EDGE_STATE_OK, nusav1.RTTSource_RTT_SOURCE_MEASURED)
			switch (7*i + 3*j) % 50 {
			case 1:
				e.State = nusav1.EdgeState_EDGE_STATE_STALE
			case 2:
				e.State = nusav1.EdgeState_EDGE_STATE_UNREACHABLE
			case 3:
				e.Source = nusav1.RTTSource_RTT_SOURCE_PREDICTED
			}
			m.Edges = append(m.Edges, e)
		}
	}
	return m
}

// TestMatrixFits: whatever the width, no line of a matrix or list wraps, and
// each says how to see the rest.
func TestMatrixFits(t *testing.T) {
	for _, regions := range []int{2, 8, 9, 20, 51, 200} {
		for _, width := range []int{60, 80, 120, 300} {
			for _, all := range []bool{false, true} {
				var b strings.Builder
				v := view{palette: palette{true}, now: noon, nusa: "nusa", width: width}
				v.matrix(&b, federationOf(regions), latencyOptions{percentile: 50, all: all})
				text := strip(b.String())
				for _, line := range strings.Split(text, "\n")[1:] { // the first says what it is
					if n := len([]rune(line)); n > width && !strings.HasPrefix(line, "region-") {
						t.Errorf("%d regions in %d columns: a line of %d: %s", regions, width, n, line)
					}
				}
				if listed := strings.Contains(text, "NEAREST"); listed == all && listed || listed != strings.Contains(text, "--all") {
					t.Errorf("%d regions in %d columns: a list: %v, all: %v", regions, width, listed, all)
				}
				if last := fmt.Sprintf("region-%02d", regions); !strings.Contains(text, last) {
					t.Errorf("%d regions in %d columns: %s is missing", regions, width, last)
				}
			}
		}
	}
}

// TestLongMatrix: of 1,000 regions, which come in pages, every way to show them
// shows them all.
func TestLongMatrix(t *testing.T) {
	const n = 1000
	f := newFake(t)
	f.federation = federationOf(n)
	run := func(args ...string) (string, int) {
		out, errOut, code := f.run(context.Background(), "", append(args, "--addr", f.addr)...)
		if code != 0 {
			t.Fatalf("%v: exit code %d: %s", args, code, errOut)
		}
		return out, len(f.taken())
	}
	table, asked := run("latency")
	if asked != 10 || strings.Count(table, "\nregion-") != n || !strings.Contains(table, "too wide for a matrix") || !strings.Contains(table, "× unreachable") {
		t.Errorf("asked %d times, %d lines:\n%.500s", asked, strings.Count(table, "\n"), table)
	}
	if !strings.Contains(table, "region-1000  region-999 3.0, region-998 6.0, region-997 9.0 ") {
		t.Errorf("the last line is not right:\n%s", table[len(table)-300:])
	}
	csv, _ := run("latency", "-o", "csv")
	parsed, err := topology.ParseTable(strings.NewReader(csv))
	if d, ok := parsed.RTT("region-1000", "region-01"); err != nil || len(parsed.Regions()) != n || !ok || d != 2997*time.Millisecond {
		t.Errorf("csv: %v, %v: %v", err, len(parsed.Regions()), d)
	}
	f.federation = federationOf(110) // a document is slow to make
	var whole struct {
		Regions []string
		Edges   []struct{ From, To, P50 string }
	}
	text, _ := run("latency", "-o", "json")
	if err := json.Unmarshal([]byte(text), &whole); err != nil || len(whole.Regions) != 110 || len(whole.Edges) != 110*109 || whole.Edges[1].P50 != "0.006s" {
		t.Errorf("json: %v, %d regions, %d edges", err, len(whole.Regions), len(whole.Edges))
	}
	text, _ = run("latency", "-o", "yaml")
	_, edges, found := strings.Cut(text, "\nedges:\n")
	if rows := strings.Split(strings.TrimRight(edges, "\n"), "\n"); !found || len(rows) != 110*109 {
		t.Errorf("yaml: %d edges: %.300s", len(rows), text)
	} else if tree, err := doc.Read([]byte(strings.Join(rows[:10], "\n")), false); err != nil || len(tree) != 1 || len(tree[0].Items) != 10 {
		t.Errorf("yaml: %v", err)
	}
}

// TestCSV: what is written is read back as it was, without what was not
// measured.
func TestCSV(t *testing.T) {
	f := newFake(t)
	for _, c := range []struct {
		args    string
		blanks  int
		p50, gp string // of japaneast to southeastasia, and of eastus to japaneast
	}{
		{"latency -o csv", 5, "68.4ms", ""},
		{"latency -o csv -p 99", 5, "82.08ms", ""},
		{"latency -o csv --guesses", 3, "68.4ms", "158ms"},
	} {
		out, errOut, code := f.run(context.Background(), "", append(strings.Fields(c.args), "--addr", f.addr)...)
		table, err := topology.ParseTable(strings.NewReader(out))
		if code != 0 || err != nil {
			t.Fatalf("%s: exit code %d, %v, %s", c.args, code, err, errOut)
		}
		if _, err := topology.ParseMatrix(strings.NewReader(out)); err != nil {
			t.Error(err)
		}
		if got := 12 - len(table.Edges()); got != c.blanks {
			t.Errorf("%s: %d blanks, want %d", c.args, got, c.blanks)
		}
		if d, ok := table.RTT("japaneast", "southeastasia"); !ok || d.String() != c.p50 {
			t.Errorf("%s: %s, want %s", c.args, d, c.p50)
		}
		if d, ok := table.RTT("eastus", "japaneast"); ok != (c.gp != "") || ok && d.String() != c.gp {
			t.Errorf("%s: a guess is %s, %v; want %q", c.args, d, ok, c.gp)
		}
		if _, ok := table.RTT("southeastasia", "eastus"); ok {
			t.Errorf("%s: an unreachable edge has a round trip", c.args)
		}
	}
}

// TestWatchResumes: a broken watch goes on from the last token, and a reset
// replaces what was known.
func TestWatchResumes(t *testing.T) {
	f := newFake(t)
	out, errOut, code := f.run(context.Background(), "", "latency", "--watch", "--addr", f.addr)
	if code != 0 || !strings.Contains(errOut, "no longer active: going on as soon as") || strings.Count(errOut, "\n") != 1 {
		t.Errorf("exit code %d, %s", code, errOut)
	}
	if !strings.Contains(out, "eastus 170 ms") || !strings.Contains(out, "eastus 180 ms") {
		t.Error(out)
	}
	want := []proto.Message{&nusav1.MatrixRequest{}, &nusav1.MatrixRequest{Token: "2"}}
	got := f.taken()
	if len(got) != 2 || !proto.Equal(got[0], want[0]) || !proto.Equal(got[1], want[1]) {
		t.Errorf("asked %v, want %v", got, want)
	}
	out, _, code = f.run(context.Background(), "", "latency", "--watch", "--from", "japaneast", "--addr", f.addr)
	if code != 0 || !strings.Contains(out, "(a gap: what follows is the whole matrix)") {
		t.Errorf("exit code %d, %s", code, out)
	}
}

// TestEventsResume: a broken watch goes on after the last event, and says that
// there is a gap where it knows of none.
func TestEventsResume(t *testing.T) {
	f := newFake(t)
	out, errOut, code := f.run(context.Background(), "", "events", "--region", "quiet", "--addr", f.addr)
	if code != 0 || errOut != "nusa: this server stops: going on as soon as that is over\nnusa: this server is no longer the master: going on as soon as that is over\n" {
		t.Errorf("exit code %d, %s", code, errOut)
	}
	if !strings.HasPrefix(out, "(a gap: ") || !strings.Contains(out, "job.submitted") {
		t.Error(out)
	}
	for i, token := range []string{"", noToken, "e-7"} {
		if r := f.requests[i].(*nusav1.WatchEventsRequest); r.GetToken() != token || r.GetRegion() != "quiet" {
			t.Errorf("request %d: %v, want token %q", i, r, token)
		}
	}
}

// TestWatchKeeps the latest of every edge, and no region that has gone.
func TestWatchKeeps(t *testing.T) {
	m := &matrixWatch{whole: &nusav1.MatrixResponse{}, at: map[[2]string]int{}}
	m.take(federationOf(3))
	ok, measured := nusav1.EdgeState_EDGE_STATE_OK, nusav1.RTTSource_RTT_SOURCE_MEASURED
	m.take(&nusav1.MatrixResponse{Edges: []*nusav1.Edge{edge("region-03", "region-01", 99*time.Millisecond, ok, measured)}, Token: "x"})
	m.take(&nusav1.MatrixResponse{Regions: []string{"region-01", "region-03"}})
	m.take(&nusav1.MatrixResponse{Edges: []*nusav1.Edge{edge("region-01", "region-03", 98*time.Millisecond, ok, measured)}})
	if len(m.whole.Edges) != 2 || m.token != "x" {
		t.Fatalf("%d edges, token %q: %v", len(m.whole.Edges), m.token, m.whole)
	}
	for pair, want := range map[[2]string]time.Duration{{"region-03", "region-01"}: 99, {"region-01", "region-03"}: 98} {
		if got := edgesOf(m.whole)[pair].GetP50().AsDuration(); got != want*time.Millisecond {
			t.Errorf("%v: %s, want %d ms", pair, got, want)
		}
	}
	m.take(&nusav1.MatrixResponse{Reset_: true, Regions: []string{"a", "b"}, Edges: []*nusav1.Edge{edge("a", "b", time.Second, ok, measured)}})
	if len(m.whole.Edges) != 1 || len(m.whole.Regions) != 2 {
		t.Errorf("after a reset: %v", m.whole)
	}
}

// TestWatchDraws: what is drawn has room, and lines of before are wiped out.
func TestWatchDraws(t *testing.T) {
	m := &matrixWatch{whole: &nusav1.MatrixResponse{}, at: map[[2]string]int{}}
	m.take(federationOf(30))
	for _, height := range []int{5, 24, 60} {
		var b strings.Builder
		v := view{palette: palette{true}, now: noon, nusa: "nusa", width: 80}
		v.drawMatrix(&b, m, latencyOptions{percentile: 50}, height)
		text := b.String()
		if !strings.HasPrefix(text, "\x1b[H") || !strings.HasSuffix(text, "\x1b[J") {
			t.Errorf("%q does not begin at the top and wipe the rest", text[:10])
		}
		if lines := strings.Count(text, "\n"); lines >= height {
			t.Errorf("%d lines in a window of %d", lines, height)
		}
		if cut := strings.Contains(text, "more: make the window higher"); cut != (height < 36) {
			t.Errorf("height %d: cut: %v", height, cut)
		}
	}
}
