package placer

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestFreshJobsDecideTheSame: random submits, stops, versions, reports and cordons. One placer plans all
// pending jobs after each of them, the other one plans only fresh jobs where it may. Both place the same.
func TestFreshJobsDecideTheSame(t *testing.T) {
	fresh := 0
	rapid.Check(t, func(rt *rapid.T) {
		every, some := newPlacer(t), newPlacer(t)
		both := []*Placer{every, some}
		revision := func(p *Placer, change func(*state.Tx) error) {
			if _, err := p.Commit.Submit(change)(t.Context()); err != nil {
				rt.Fatal(err)
			}
		}
		if rapid.Bool().Draw(rt, "slots with their submits") {
			for _, p := range both {
				p.Commit.Decide = func(t *state.Tx) func() { return Decide(p, t) }
			}
		}
		regions := []string{"a", "b", "c"}
		free := map[string]int64{}
		report := func(name string, milli int64) {
			free[name] = milli
			for _, p := range both {
				p.st.Lock()
				r := p.st.Regions[name]
				r.Session = &state.Session{Wake: func() {}}
				p.st.TakeReport(r, &nusav1.RegionReport{NodesReady: 1, SlotsRevision: p.st.Revision, Shape: &nusav1.RegionShape{Bins: []*nusav1.ShapeBin{
					{Nodes: 1, Free: &nusav1.Resources{CpuMilli: milli}, Pool: "default"}}}})
				p.st.Unlock()
				p.Wake()
			}
		}
		region := func(name string, cordoned bool) {
			for _, p := range both {
				revision(p, func(t *state.Tx) error {
					return t.PutRegion(name, &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: name}, ClusterId: name, FeatureLevel: 1, Cordoned: cordoned})
				})
			}
		}
		for _, name := range regions {
			region(name, false)
			report(name, rapid.Int64Range(0, 4000).Draw(rt, "free"))
		}
		compare := func() {
			for range 4 {
				if err := every.place(t.Context()); err != nil {
					rt.Fatal(err)
				}
			}
			for range 8 {
				some.st.Lock()
				if len(some.st.Fresh) > 0 && len(some.st.Pending) > len(some.st.Fresh) && !needsAll(some) {
					fresh++
				}
				some.st.Unlock()
				if _, err := some.placeNext(t.Context(), false); err != nil {
					rt.Fatal(err)
				}
			}
			if want, got := placed(every), placed(some); want != got {
				rt.Fatalf("with all jobs:\n%swith fresh jobs:\n%s", want, got)
			}
		}
		compare()
		for range rapid.IntRange(1, 25).Draw(rt, "steps") {
			name := regions[rapid.IntRange(0, 2).Draw(rt, "region")]
			job := fmt.Sprint("job-", rapid.IntRange(0, 9).Draw(rt, "job"))
			switch rapid.IntRange(0, 9).Draw(rt, "step") {
			case 0:
				report(name, rapid.Int64Range(0, 4000).Draw(rt, "free"))
			case 1:
				region(name, rapid.Bool().Draw(rt, "cordoned"))
			case 2:
				for _, p := range both {
					revision(p, func(t *state.Tx) error {
						rec, _ := t.Job(keyOfName(job))
						if rec == nil {
							return nil
						}
						stopped := rec.Full()
						stopped.Job.Stopped = true
						return t.PutJob(keyOfName(job), stopped)
					})
				}
			default:
				spec := specOf(job, int32(rapid.IntRange(1, 3).Draw(rt, "count")), rapid.Int64Range(1, 20).Draw(rt, "hundred milli")*100)
				spec.Priority = proto.Int32(int32(rapid.IntRange(0, 2).Draw(rt, "priority")) * 40)
				if rapid.Bool().Draw(rt, "one region") {
					spec.Regions = &nusav1.RegionsSpec{Allow: []*nusav1.RegionSelector{{Name: name}}}
				}
				for _, p := range both {
					revision(p, func(t *state.Tx) error {
						_, err := t.Submit(state.KeyOf(spec), &nusav1.SubmitRequest{Spec: spec})
						return err
					})
				}
			}
			compare()
		}
	})
	if fresh == 0 {
		t.Error("no plan was one of fresh jobs beside others")
	}
	t.Log(fresh, "plans of fresh jobs beside others")
}

// placed returns the slots of all jobs as text.
func placed(p *Placer) string {
	p.st.Lock()
	defer p.st.Unlock()
	var out []string
	for k, j := range p.st.Jobs {
		for _, s := range j.SortedSlots() {
			out = append(out, fmt.Sprintf("%s %s[%d-%d] %s %s version %d\n", k, s.Group, s.From, s.To, s.Region, s.Desired, s.JobVersion))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "")
}

// BenchmarkWaiting submits a job that finds no room, while 2,000 others wait, and plans: all of them, or the
// fresh one.
func BenchmarkWaiting(b *testing.B) {
	for name, all := range map[string]bool{"all": true, "fresh": false} {
		b.Run(name, func(b *testing.B) {
			p := newPlacer(b)
			for i := range 5 {
				name := fmt.Sprint("region-", i)
				if _, err := p.Commit.Do(b.Context(), func(t *state.Tx) error {
					return t.PutRegion(name, &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: name}, ClusterId: name, FeatureLevel: 1})
				}); err != nil {
					b.Fatal(err)
				}
				p.st.Lock()
				r := p.st.Regions[name]
				r.Session = &state.Session{Wake: func() {}}
				p.st.TakeReport(r, &nusav1.RegionReport{NodesReady: 1, SlotsRevision: p.st.Revision, Shape: &nusav1.RegionShape{}})
				p.st.Unlock()
			}
			submit := func(i int) {
				spec := specOf(fmt.Sprint("job-", i), 1, 1000)
				if _, err := p.Commit.Do(b.Context(), func(t *state.Tx) error {
					_, err := t.Submit(state.KeyOf(spec), &nusav1.SubmitRequest{Spec: spec})
					return err
				}); err != nil {
					b.Fatal(err)
				}
			}
			for i := range 2000 {
				submit(i)
			}
			if err := p.place(b.Context()); err != nil {
				b.Fatal(err)
			}
			i := 2000
			for b.Loop() {
				submit(i)
				i++
				if all {
					p.all.Store(true)
				}
				if _, err := p.placeNext(b.Context(), false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
