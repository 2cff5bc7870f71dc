package network

import (
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/sample"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestWatchHoldsTheLatestValues: the watch has the latest values of every edge, and no
// region that was removed.
func TestWatchHoldsTheLatestValues(t *testing.T) {
	m := &matrixWatch{whole: &nusav1.MatrixResponse{}, at: map[[2]string]int{}}
	m.apply(sample.FederationOf(3))
	ok, measured := nusav1.EdgeState_EDGE_STATE_OK, nusav1.RTTSource_RTT_SOURCE_MEASURED
	m.apply(&nusav1.MatrixResponse{Edges: []*nusav1.Edge{sample.Edge("region-03", "region-01", 99*time.Millisecond, ok, measured)}, Token: "x"})
	m.apply(&nusav1.MatrixResponse{Regions: []string{"region-01", "region-03"}})
	m.apply(&nusav1.MatrixResponse{Edges: []*nusav1.Edge{sample.Edge("region-01", "region-03", 98*time.Millisecond, ok, measured)}})
	if len(m.whole.Edges) != 2 || m.token != "x" {
		t.Fatalf("%d edges, token %q: %v", len(m.whole.Edges), m.token, m.whole)
	}
	for pair, want := range map[[2]string]time.Duration{{"region-03", "region-01"}: 99, {"region-01", "region-03"}: 98} {
		if got := edgesOf(m.whole)[pair].GetP50().AsDuration(); got != want*time.Millisecond {
			t.Errorf("%v: %s, want %d ms", pair, got, want)
		}
	}
	m.apply(&nusav1.MatrixResponse{Reset_: true, Regions: []string{"a", "b"}, Edges: []*nusav1.Edge{sample.Edge("a", "b", time.Second, ok, measured)}})
	if len(m.whole.Edges) != 1 || len(m.whole.Regions) != 2 {
		t.Errorf("after a reset: %v", m.whole)
	}
}

// TestWatchFitsTheWindow: the drawing fits the window, and erases earlier lines.
func TestWatchFitsTheWindow(t *testing.T) {
	m := &matrixWatch{whole: &nusav1.MatrixResponse{}, at: map[[2]string]int{}}
	m.apply(sample.FederationOf(30))
	for _, height := range []int{5, 24, 60} {
		var b strings.Builder
		w := &term.Screen{Writer: &b, Palette: term.Palette{On: true}, Now: sample.Noon, Program: "nusa", Width: 80}
		drawMatrix(w, m, latencyOptions{percentile: 50}, height)
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

// TestChangesAreWords: a watch in a pipe has no legend, so words replace the marks of a
// matrix.
func TestChangesAreWords(t *testing.T) {
	m := sample.Matrix()
	var b strings.Builder
	writeChanges(sample.Screen(&b, false, 0), m, latencyOptions{percentile: 50})
	for _, want := range []string{
		"eastus -> japaneast ~158 ms predicted\n", "eastus -> southeastasia 224? ms stale\n", "japaneast -> eastus 163 ms\n",
		"southeastasia -> eastus unreachable\n", "southeastasia -> westus unknown\n",
		"westus -> japaneast 254! ms, not believed: is more than twice what third regions allow\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, b.String())
		}
	}
}
