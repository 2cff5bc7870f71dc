package client

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
	"github.com/nusa-scheduler/nusa/job/doc"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// TestPagedMatrixShowsAllRegions: every form shows all of 1,000 regions, which arrive in pages.
func TestPagedMatrixShowsAllRegions(t *testing.T) {
	const n = 1000
	f := newFake(t)
	f.federation = sample.FederationOf(n)
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
	f.federation = sample.FederationOf(110) // fewer regions, because printing a document is slow
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

// TestCSVIsReadBack: the written table can be read again. Values that were not measured are
// missing in it.
func TestCSVIsReadBack(t *testing.T) {
	f := newFake(t)
	for _, c := range []struct {
		args    string
		blanks  int
		p50, gp string // the edges japaneast to southeastasia, and eastus to japaneast
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

// TestBrokenWatchResumesFromItsToken: a broken watch continues from the last token, and a reset
// replaces the matrix.
func TestBrokenWatchResumesFromItsToken(t *testing.T) {
	f := newFake(t)
	out, errOut, code := f.run(context.Background(), "", "latency", "--watch", "--addr", f.addr)
	if code != 0 || !strings.Contains(errOut, "no longer active: it continues when") || !reconnected.MatchString(errOut) || strings.Count(errOut, "\n") != 2 {
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
	if code != 0 || !strings.Contains(out, "(a gap: the whole matrix follows)") {
		t.Errorf("exit code %d, %s", code, out)
	}
}

// TestBrokenEventsResumeOrReportAGap: a broken watch continues after the last event. If it has
// received no event, it reports a gap.
func TestBrokenEventsResumeOrReportAGap(t *testing.T) {
	f := newFake(t)
	out, errOut, code := f.run(context.Background(), "", "events", "--region", "quiet", "--addr", f.addr)
	const back = "nusa: reconnected after 0s; a gap shows where events are missing\n"
	errOut = reconnected.ReplaceAllString(errOut, "reconnected after 0s")
	if code != 0 || errOut != "nusa: this server stops: it continues when that is over\n"+back+"nusa: this server is no longer the master: it continues when that is over\n"+back {
		t.Errorf("exit code %d, %s", code, errOut)
	}
	if !strings.HasPrefix(out, "(a gap: ") || !strings.Contains(out, "job.submitted") {
		t.Error(out)
	}
	for i, token := range []string{"", foreignToken, "e-7"} {
		if r := f.requests[i].(*nusav1.WatchEventsRequest); r.GetToken() != token || r.GetRegion() != "quiet" {
			t.Errorf("request %d: %v, want token %q", i, r, token)
		}
	}
}

// TestNearestDefaultsToOwnRegion: the default of a regional server is its own region.
func TestNearestDefaultsToOwnRegion(t *testing.T) {
	f := newFake(t)
	f.asRegion = true
	out, errOut, code := f.run(t.Context(), "", "topology", "nearest", "--addr", f.addr)
	if want := "by the matrix as region southeastasia sees it\n\nnearest to southeastasia, p50"; code != 0 || !strings.HasPrefix(out, want) {
		t.Errorf("exit code %d: %s%s", code, out, errOut)
	}
}
