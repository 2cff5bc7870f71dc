package topo

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
)

func edge(from, to string, p50 time.Duration) topology.Edge {
	return topology.Edge{
		From: from, To: to, State: topology.OK, Source: topology.Measured, P50: p50, P90: 2 * p50, P99: 3 * p50, Min: p50 / 2, Jitter: 1,
		Loss: 0.3, LossOut: 0.1, LossBack: 0.2, Samples: 9, SetAside: 1, Age: time.Second, Method: "udp",
	}
}

// TestEdgeSurvivesConversion: an edge is equal after both conversions. The test also fails
// if a conversion forgets a field.
func TestEdgeSurvivesConversion(t *testing.T) {
	e := edge("a", "b", 70*time.Millisecond)
	e.ReverseReachable, e.Doubt, e.Error = true, "odd", 0.5
	for i, v := 0, reflect.ValueOf(e); i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			t.Fatalf("the test's edge has no %s", v.Type().Field(i).Name)
		}
	}
	if got := EdgeFromProto(EdgeToProto(e)); got != e {
		t.Errorf("got  %+v\nwant %+v", got, e)
	}
	if none := EdgeToProto(topology.Edge{From: "a", To: "b"}); none.GetP50() != nil || none.GetAge() != nil {
		t.Errorf("an edge without a value has one: %v", none)
	}
}

// TestWholeMatrixFitsEarlierRegions: in a federation of more than 1,024 regions the matrix
// has the first 1,024 regions and their round trips.
func TestWholeMatrixFitsEarlierRegions(t *testing.T) {
	regions := make([]topology.Region, 1030)
	for i := range regions {
		regions[i].Name = fmt.Sprintf("r%04d", i)
	}
	m := Compact(topology.NewView(regions, []topology.Edge{edge("r1023", "r0001", 7*time.Millisecond), edge("r1024", "r0001", time.Millisecond)}))
	var got []string
	err := Expand(m, func(from, to string, p50 time.Duration, _ topology.State) {
		got = append(got, fmt.Sprint(from, to, " ", p50))
	})
	if err != nil || len(m.GetRegions()) != 1024 || fmt.Sprint(got) != "[r1023r0001 7ms]" {
		t.Errorf("%d regions, %v, %v", len(m.GetRegions()), got, err)
	}
}

func TestCompactMatrixExpands(t *testing.T) {
	regions := []topology.Region{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	gone := edge("c", "a", time.Second)
	gone.State = topology.Unreachable
	old := edge("b", "c", 9*time.Second)
	old.State = topology.Stale
	v := topology.NewView(regions, []topology.Edge{
		edge("a", "b", 12*time.Millisecond+340*time.Microsecond), edge("b", "a", 50*time.Microsecond), old, gone,
	})
	m := Compact(v)
	var got []string
	take := func(from, to string, p50 time.Duration, state topology.State) {
		got = append(got, fmt.Sprint(from, to, " ", p50, " ", state))
	}
	if err := Expand(m, take); err != nil {
		t.Fatal(err)
	}
	if want := "[ab 12.3ms ok ba 100µs ok bc 6.5534s stale]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
	fresh := m.GetFresh()
	got, m.Fresh = nil, nil
	if err := Expand(m, take); err != nil {
		t.Fatal(err)
	}
	if want := "[ab 12.3ms stale ba 100µs stale bc 6.5534s stale]"; fmt.Sprint(got) != want {
		t.Errorf("of an earlier version: got %v, want %s", got, want)
	}
	wrong := func(string, string, time.Duration, topology.State) { t.Error("called") }
	for _, m := range []*nusav1.CompactMatrix{
		{Regions: m.GetRegions(), P50: m.GetP50(), Fresh: fresh[:1]}, {Regions: m.GetRegions(), P50: m.GetP50()[1:], Fresh: fresh},
	} {
		if err := Expand(m, wrong); err == nil {
			t.Errorf("a matrix that lacks a byte is taken: %v", m)
		}
	}
}

// TestInvalidRequestsNameTheField: the error of an invalid request names its field.
func TestInvalidRequestsNameTheField(t *testing.T) {
	at := timestamppb.New(time.Unix(1000, 0))
	path := func(r *nusav1.PathRequest) error { _, _, err := ParsePathRequest(r); return err }
	near := func(r *nusav1.NearestRequest) error { _, err := ParseNearestRequest(r, ""); return err }
	check := func(r *nusav1.CheckTopologyRequest) error { _, err := ParseCheckRequest(r); return err }
	history := func(r *nusav1.HistoryRequest) error {
		_, err := ParseHistoryRequest(r, at.AsTime().Add(time.Hour))
		return err
	}
	for _, tc := range []struct {
		err   error
		field string // "" = no error
	}{
		{path(&nusav1.PathRequest{}), ""},
		{path(&nusav1.PathRequest{K: 16, Percentile: 99, MaxRelays: -1, Weights: &nusav1.PathWeights{Cpu: durationpb.New(time.Minute)}}), ""},
		{path(&nusav1.PathRequest{K: -1}), "k"},
		{path(&nusav1.PathRequest{MaxRelays: -2}), "max_relays"},
		{path(&nusav1.PathRequest{Percentile: -50}), "percentile"},
		{path(&nusav1.PathRequest{Weights: &nusav1.PathWeights{Queue: &durationpb.Duration{Nanos: -5}}}), "weights.queue"},
		{path(&nusav1.PathRequest{Weights: &nusav1.PathWeights{Cpu: &durationpb.Duration{Seconds: 1 << 60}}}), "weights.cpu"},
		{near(&nusav1.NearestRequest{Region: "a"}), ""},
		{near(&nusav1.NearestRequest{}), "region"},
		{near(&nusav1.NearestRequest{Region: "a", Location: &nusav1.Location{}}), "region"},
		{near(&nusav1.NearestRequest{Location: &nusav1.Location{Latitude: 91}}), "location"},
		{near(&nusav1.NearestRequest{Region: "a", Limit: 5000}), "limit"},
		{check(&nusav1.CheckTopologyRequest{MinGain: 0.5, Limit: 1000}), ""},
		{check(&nusav1.CheckTopologyRequest{MinGain: 1}), "min_gain"},
		{check(&nusav1.CheckTopologyRequest{Limit: 1001}), "limit"},
		{ValidateToken(strings.Repeat("x", 129)), "token"},
		{history(&nusav1.HistoryRequest{Kind: "node", Trend: true}), ""},
		{history(&nusav1.HistoryRequest{Kind: "node", From: at}), ""},
		{history(&nusav1.HistoryRequest{Kind: "node", From: timestamppb.New(at.AsTime().Add(2 * time.Hour))}), "from"},
		{history(&nusav1.HistoryRequest{Kind: "node", Step: durationpb.New(time.Second)}), "step"},
		{history(&nusav1.HistoryRequest{}), "kind"},
		{history(&nusav1.HistoryRequest{Kind: "pool", Key: strings.Repeat("k", 254)}), "key"},
		{history(&nusav1.HistoryRequest{Kind: "pool", From: at, To: at}), "from"},
		{history(&nusav1.HistoryRequest{Kind: "edge", From: at, To: timestamppb.New(at.AsTime().Add(time.Hour)), Step: durationpb.New(time.Second)}), "step"},
	} {
		if tc.field == "" {
			if tc.err != nil {
				t.Errorf("refused: %v", tc.err)
			}
			continue
		}
		if status.Code(tc.err) != codes.InvalidArgument || !strings.Contains(fmt.Sprint(tc.err), tc.field) {
			t.Errorf("%s: %v", tc.field, tc.err)
		}
	}
	q, err := ParseHistoryRequest(&nusav1.HistoryRequest{Kind: "pool"}, at.AsTime())
	if err != nil || !q.To.Equal(at.AsTime()) || q.To.Sub(q.From) != time.Hour || q.Step != 0 {
		t.Errorf("the last hour: %+v, %v", q, err)
	}
	home, err := ParseNearestRequest(&nusav1.NearestRequest{}, "here")
	if err != nil || home.Region != "here" || home.Percentile != 50 {
		t.Errorf("%+v, %v", home, err)
	}
}

// TestEveryFindingIsConverted: findings of every kind are converted in the order of
// importance, with their totals.
func TestEveryFindingIsConverted(t *testing.T) {
	cut, old := edge("b", "d", 5*time.Millisecond), edge("d", "c", 7*time.Millisecond)
	cut.State, old.State = topology.Unreachable, topology.Stale
	r := topology.Check(topology.NewView([]topology.Region{
		{Name: "a", Location: &topology.Location{Latitude: 1.35, Longitude: 103.8}},
		{Name: "b", Location: &topology.Location{Latitude: 35.7, Longitude: 139.7}}, {Name: "c"}, {Name: "d"},
	}, []topology.Edge{
		edge("a", "b", time.Millisecond), edge("a", "c", 100*time.Millisecond), edge("c", "a", 20*time.Millisecond),
		edge("b", "c", 10*time.Millisecond), edge("d", "b", 5*time.Millisecond), cut, old,
	}), topology.CheckOptions{})
	r.Doubtful = topology.Findings[topology.Doubtful]{Total: 3, List: []topology.Doubtful{{Edge: edge("c", "d", 1)}}}
	out := ReportToProto(r)
	var kinds []string
	for _, f := range out.GetFindings() {
		kinds = append(kinds, f.GetKind())
		if f.GetMessage() == "" {
			t.Errorf("no words: %v", f)
		}
	}
	want := "[impossible location location doubtful one_way unreachable stale asymmetric detour]"
	if got := fmt.Sprint(kinds); got != want && got != strings.Replace(want, "location location", "location", 1) {
		t.Errorf("got %s, want %s", got, want)
	}
	if out.GetTotals()["doubtful"] != 3 || out.GetTotals()["detour"] == 0 || out.GetRegions() != 4 {
		t.Errorf("%v", out.GetTotals())
	}
}

// TestLongUpdatesHaveSeveralMessages: the last message of an update has the token.
func TestLongUpdatesHaveSeveralMessages(t *testing.T) {
	const n = 500
	var regions []topology.Region
	for i := range n {
		regions = append(regions, topology.Region{Name: fmt.Sprintf("r%03d", i)})
	}
	var b WatchLog
	edges, parts := 0, 0
	at, err := b.SendChanges(topology.NewView(regions, nil), 0, WatchPosition{}, "e", "", func(m *nusav1.MatrixResponse) error {
		parts++
		edges += len(m.GetEdges())
		if last := edges == n*(n-1); (m.GetToken() != "") != last || m.GetReset_() != (parts == 1) {
			t.Errorf("part %d: token %q, reset %t", parts, m.GetToken(), m.GetReset_())
		}
		return nil
	})
	if err != nil || parts < 2 || edges != n*(n-1) || at != ParseWatchToken(at.token("e", ""), "e", "") {
		t.Errorf("%d parts, %d edges, at %v, %v", parts, edges, at, err)
	}
	b.DropIdle(time.Hour)
	if b.log != nil {
		t.Error("the change log outlives its last watch")
	}
}
