package deadletters

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/api"
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
