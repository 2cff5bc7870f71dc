package deadletters

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/compact"
	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestListOfAnUnknownRegion: a region that never was is refused. The dead letters of a removed one are listed.
func TestListOfAnUnknownRegion(t *testing.T) {
	st := state.New(state.Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	st.Regions["here"] = &state.Region{Name: "here"}
	ready := make(chan struct{})
	close(ready)
	b := &Book{st: st, ready: ready, cfg: Config{Term: &api.Term{TermConfig: api.TermConfig{Context: context.Background()}}}, order: []*entry{{rec: &nusav1.DeadLetter{Id: "3f9a01bc", Region: "gone"}}}}
	s := &Service{Current: func() *Book { return b }}
	rec := b.order[0].rec
	b.sources = map[sourceKey]*source{sourceOf(rec): {hasSpec: true, labels: map[string]string{"team": "sea"}}}
	for team, want := range map[string]int{"sea": 1, "land": 0} {
		out, err := s.List(t.Context(), &nusav1.ListDeadLettersRequest{Labels: map[string]string{"team": team}})
		if err != nil || len(out.GetDeadLetters()) != want {
			t.Errorf("team %s: %v, %v, want %d", team, out, err, want)
		}
	}
	for region, want := range map[string]int{"": 1, "here": 0, "gone": 1, "nosuch": -1} {
		out, err := s.List(t.Context(), &nusav1.ListDeadLettersRequest{Region: region})
		if want < 0 {
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), `"nosuch" does not exist; there are here`) {
				t.Errorf("%q: %v, %v", region, out, err)
			}
		} else if err != nil || len(out.GetDeadLetters()) != want {
			t.Errorf("%q: %v, %v, want %d", region, out, err, want)
		}
	}
}

// TestLabelsOfASpec: the labels of a stored spec are known to later terms, also if an earlier version stored it.
func TestLabelsOfASpec(t *testing.T) {
	raw, err := proto.Marshal(&nusav1.JobSpec{Name: "frames", Labels: map[string]string{"team": "sea"}})
	if err != nil {
		t.Fatal(err)
	}
	packed, err := compact.Pack(raw)
	if err != nil {
		t.Fatal(err)
	}
	if got := labelsIn(packed); len(got) != 1 || got["team"] != "sea" {
		t.Errorf("%v", got)
	}
	if got := labelsIn([]byte("no spec")); got != nil {
		t.Errorf("%v", got)
	}
}
