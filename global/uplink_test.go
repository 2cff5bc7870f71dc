package global

import (
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/region"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

// TestRowsAreJudged: only what a probe can have measured, of regions that there
// are, enters the matrix.
func TestRowsAreJudged(t *testing.T) {
	st := newState("e", func() time.Duration { return 0 }, time.Second)
	for _, name := range []string{"alpha", "beta"} {
		st.applyRegion(name, &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: name}}, 1)
	}
	a := &active{st: st}
	s := &session{a: a, region: "alpha", woken: make(chan struct{}, 1)}
	st.regions["alpha"].session = s
	for name, tc := range map[string]struct {
		change func(*nusav1.Edge)
		held   bool
	}{
		"good":     {func(*nusav1.Edge) {}, true},
		"stranger": {func(e *nusav1.Edge) { e.To = "nowhere" }, false},
		"negative": {func(e *nusav1.Edge) { e.P50 = durationpb.New(-1) }, false},
		"absurd":   {func(e *nusav1.Edge) { e.P99 = durationpb.New(time.Hour) }, false},
		"NaN":      {func(e *nusav1.Edge) { e.Loss = math.NaN() }, false},
		"loss":     {func(e *nusav1.Edge) { e.Loss = 1.5 }, false},
	} {
		e := &nusav1.Edge{To: "beta", State: nusav1.EdgeState_EDGE_STATE_OK, P50: durationpb.New(time.Millisecond)}
		tc.change(e)
		a.latency(s, &nusav1.LatencyRow{Full: true, Edges: []*nusav1.Edge{e}})
		st.matrix.picture = nil
		if held := st.topologyView().Edge("alpha", "beta").Source == topology.Measured; held != tc.held {
			t.Errorf("%s: held %t, want %t", name, held, tc.held)
		}
	}
}

// TestAnswersAreBounded: what a region says is stored, so it is cut.
func TestAnswersAreBounded(t *testing.T) {
	a := answerFromProto(&nusav1.SlotAnswer{
		State: nusav1.SlotState_SLOT_STATE_RETURNED, Message: strings.Repeat("é", maxMessage),
		Counts: make([]*nusav1.CountedReason, maxCounts+1),
	})
	if a.State != region.Returned || len(a.Message) > maxMessage+len("…") || !utf8.ValidString(a.Message) || len(a.Counts) != maxCounts {
		t.Errorf("%d bytes, %d counts", len(a.Message), len(a.Counts))
	}
}
