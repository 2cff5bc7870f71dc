package api

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/topo"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestMatrixOfManyRegions: the matrix of 1,000 regions is returned in pages, and
// sent to watches in messages, that fit into gRPC's default limit of 4 MiB. Each
// pair comes once, in order.
func TestMatrixOfManyRegions(t *testing.T) {
	const n, most = 1000, 3 << 20
	now := time.Duration(0)
	st := state.New(state.Beginning{Epoch: "e"}, func() time.Duration { return now })
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("region-%04d", i)
		st.Regions[names[i]] = &state.Region{Name: names[i], Record: &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: names[i]}}}
	}
	st.RegionsChanged()
	for i, from := range names {
		row := &nusav1.LatencyRow{Full: true}
		for j, to := range names {
			if i != j && (i+j)%10 == 0 {
				d := durationpb.New(time.Duration(2+(i^j)%97) * time.Millisecond)
				row.Edges = append(row.Edges, &nusav1.Edge{
					To: to, State: nusav1.EdgeState_EDGE_STATE_OK, P50: d, P90: d, P99: d, Min: d, Jitter: durationpb.New(time.Millisecond),
					Age: durationpb.New(time.Second), Loss: 0.01, Samples: 100, Method: "udp",
				})
			}
		}
		st.Latency.SetRow(from, row, now)
	}
	now += time.Second
	term := NewTerm(TermConfig{State: st})
	api := &topologyAPI{s: &Services{Current: func() *Term { return term }}}
	var got []string // of regions
	edges, pages := 0, 0
	count := func(r *nusav1.MatrixResponse) {
		pages++
		if size := proto.Size(r); size > most {
			t.Errorf("page %d has %d bytes", pages, size)
		}
		for _, e := range r.GetEdges() {
			edges++
			if len(got) == 0 || got[len(got)-1] != e.GetFrom() {
				got = append(got, e.GetFrom())
			}
		}
	}
	for after := ""; ; {
		r, err := api.Matrix(t.Context(), &nusav1.MatrixRequest{After: after})
		if err != nil {
			t.Fatal(err)
		}
		count(r)
		after = r.GetNext()
		if after == "" {
			break
		}
	}
	if edges != n*(n-1) || !slices.Equal(got, names) || pages < 10 || pages > 100 {
		t.Errorf("%d edges of %d rows in %d pages", edges, len(got), pages)
	}
	r, err := api.Matrix(t.Context(), &nusav1.MatrixRequest{From: names[7], After: names[9]})
	if err != nil || len(r.GetEdges()) != n-1 || r.GetEdges()[0].GetFrom() != names[7] || r.GetNext() != "" {
		t.Errorf("one row: %d edges, next %q, %v", len(r.GetEdges()), r.GetNext(), err)
	}
	// The name of a removed region still says where to continue.
	r, err = api.Matrix(t.Context(), &nusav1.MatrixRequest{After: names[997] + "-gone"})
	if err != nil || len(r.GetEdges()) != 2*(n-1) || r.GetNext() != "" {
		t.Errorf("the end: %d edges, next %q, %v", len(r.GetEdges()), r.GetNext(), err)
	}
	if _, err := api.Matrix(t.Context(), &nusav1.MatrixRequest{After: strings.Repeat("x", 1000)}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("after a name of 1,000 bytes: %v", err)
	}

	got, edges, pages = nil, 0, 0
	var last *nusav1.MatrixResponse
	_, err = term.matrixChanges.SendChanges(st.TopologyView(), now, topo.WatchPosition{}, "e", "", func(r *nusav1.MatrixResponse) error {
		if pages > 0 && (last.GetToken() != "" || r.GetReset_()) {
			t.Errorf("message %d: token %q before it, reset %v", pages, last.GetToken(), r.GetReset_())
		}
		count(r)
		last = r
		return nil
	})
	if err != nil || edges != n*(n-1) || !slices.Equal(got, names) || last.GetToken() == "" {
		t.Errorf("a watch: %d edges of %d rows in %d messages, %v", edges, len(got), pages, err)
	}
}
