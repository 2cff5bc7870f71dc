package placer

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// spreading returns a placer that decides with the submits, and equal, empty regions with
// room for a thousand instances of one core each.
func spreading(t *testing.T, regions int) *Placer {
	t.Helper()
	p := newPlacer(t)
	p.Commit.Decide = func(t *state.Tx) func() { return Decide(p, t) }
	all := &nusav1.Resources{CpuMilli: 1_000_000}
	for i := range regions {
		name := fmt.Sprintf("r%02d", i)
		if _, err := p.Commit.Do(t.Context(), func(t *state.Tx) error {
			return t.PutRegion(name, &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: name}, ClusterId: name, FeatureLevel: 1})
		}); err != nil {
			t.Fatal(err)
		}
		p.st.Lock()
		p.st.Regions[name].Session = &state.Session{Wake: func() {}}
		p.st.Regions[name].SetReport(&nusav1.RegionReport{
			NodesReady: 1000, Capacity: all, Free: all,
			Shape: &nusav1.RegionShape{Bins: []*nusav1.ShapeBin{{Nodes: 1000, Free: &nusav1.Resources{CpuMilli: 1000}, Pool: "default"}}},
		}, 0, false)
		p.st.Unlock()
	}
	return p
}

// TestEqualJobsSpread: a thousand equal jobs are decided with their submits, against reports that
// include none of them. They are spread evenly over equal regions. Some share a transaction.
func TestEqualJobsSpread(t *testing.T) {
	for _, regions := range []int{2, 10} {
		for _, together := range []int{1, 25} {
			p := spreading(t, regions)
			for from := 0; from < 1000; from += together {
				if _, err := p.Commit.Do(t.Context(), func(tx *state.Tx) error {
					for i := from; i < from+together; i++ {
						spec := &nusav1.JobSpec{Namespace: "default", Name: fmt.Sprintf("job-%03d", i), Groups: map[string]*nusav1.Group{"web": {
							Count: proto.Int32(1), Tasks: map[string]*nusav1.Task{"t": {Driver: "process", Resources: &nusav1.Resources{CpuMilli: 1000}}}}}}
						if _, err := tx.Submit(state.KeyOf(spec), &nusav1.SubmitRequest{Spec: spec}); err != nil {
							return err
						}
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			}
			got := map[string]int{}
			p.st.Lock()
			for _, j := range p.st.Jobs {
				for s := range j.Slots.All() {
					got[s.Region] += s.Count()
				}
			}
			p.st.Unlock()
			var counts []int
			sum := 0
			for _, n := range got {
				counts, sum = append(counts, n), sum+n
			}
			if len(got) != regions || sum != 1000 || slices.Max(counts)-slices.Min(counts) > 40/regions+2 {
				t.Errorf("%d regions, %d jobs in a transaction: %v", regions, together, got)
			}
		}
	}
}
