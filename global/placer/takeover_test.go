package placer

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/nusa-scheduler/nusa/global/failover"
	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/state"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// lostJobs is a placer whose region jakarta is lost with n jobs of one instance each, all
// due. The other regions have room for everything.
type lostJobs struct {
	*Placer
	clock  time.Duration
	writes []int // of each transaction
}

func newLostJobs(t testing.TB, n int, others ...string) *lostJobs {
	t.Helper()
	p := &lostJobs{Placer: newPlacer(t)}
	p.st.Clock = func() time.Duration { return p.clock }
	p.st.Sessions = region.Config{Lease: 10 * time.Second, ActiveUntil: time.Hour}
	p.do(t, func(tx *state.Tx) error {
		for _, name := range append([]string{"jakarta"}, others...) {
			if err := tx.PutRegion(name, &nusav1.Region{Definition: &nusav1.RegionDefinition{Name: name}, ClusterId: name, FeatureLevel: 1}); err != nil {
				return err
			}
		}
		return nil
	})
	for first := 0; first < n; first += 25 {
		p.do(t, func(tx *state.Tx) error {
			for i := first; i < min(n, first+25); i++ {
				if err := putOwned(tx, fmt.Sprintf("job-%05d", i)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	p.st.Lock()
	for _, name := range others {
		r := p.st.Regions[name]
		r.Session = &state.Session{Wake: func() {}}
		r.SetReport(&nusav1.RegionReport{NodesReady: 3, SlotsRevision: p.st.Revision, Shape: &nusav1.RegionShape{Bins: []*nusav1.ShapeBin{
			{Nodes: int32(n), Free: &nusav1.Resources{CpuMilli: 100_000, MemoryBytes: 1 << 40, DiskBytes: 1 << 40}, Pool: "default"}}}}, 0, false)
	}
	p.st.Unlock()
	p.do(t, func(tx *state.Tx) error { return tx.DeclareLost("jakarta", state.Loss{Why: "test"}, time.Unix(0, 0)) })
	p.clock = time.Minute
	p.Commit.Observe = func(writes int, _ time.Duration) { p.writes = append(p.writes, writes) }
	return p
}

func (p *lostJobs) do(t testing.TB, prepare func(*state.Tx) error) {
	t.Helper()
	if _, err := p.Commit.Do(context.Background(), prepare); err != nil {
		t.Fatal(err)
	}
}

// putOwned stores a job and its slot, which jakarta owns.
func putOwned(tx *state.Tx, name string) error {
	spec := &nusav1.JobSpec{Namespace: "default", Name: name, Type: nusav1.JobType_JOB_TYPE_SERVICE, Groups: map[string]*nusav1.Group{"web": {
		Count:      proto.Int32(1),
		Disconnect: &nusav1.Disconnect{Region: &nusav1.DisconnectLevel{After: durationpb.New(10 * time.Second), Running: nusav1.Running_RUNNING_KEEP, Replace: proto.Bool(true)}},
		Tasks: map[string]*nusav1.Task{"server": {
			Driver: "process", Resources: &nusav1.Resources{CpuMilli: 100, MemoryBytes: 64 << 20}, KillTimeout: durationpb.New(5 * time.Second),
			Config: &structpb.Struct{Fields: map[string]*structpb.Value{"command": structpb.NewStringValue("/bin/true")}},
		}},
	}}}
	k := state.KeyOf(spec)
	if err := tx.PutJob(k, &nusav1.JobRecord{Job: &nusav1.Job{Spec: spec, Version: 1, Run: 1}}); err != nil {
		return err
	}
	return tx.ChangeSlots([]region.Change{{Slot: region.Slot{
		Namespace: "default", Job: name, Group: "web", To: 1, Region: "jakarta", State: region.Accepted, Desired: region.DesiredRun, JobVersion: 1, Run: 1, Unbound: true,
	}}})
}

// due decides once, as the failover loop does.
func (p *lostJobs) due() failover.Plan {
	p.st.Lock()
	defer p.st.Unlock()
	plan := failover.Decide(p.st.FailoverSnapshot())
	p.st.SetFailover(plan)
	return plan
}

// planAndApply writes the plan of a snapshot, whatever has happened since the snapshot.
func (p *lostJobs) planAndApply(t *testing.T, s place.Snapshot, jobs map[state.JobKey]seen) {
	t.Helper()
	plan := place.MakePlan(s)
	if len(plan.Actions) == 0 {
		t.Fatalf("nothing to write:\n%s", plan)
	}
	if err := p.apply(t.Context(), plan.Actions, jobs, 0); err != nil {
		t.Fatal(err)
	}
}

// owners counts the jobs by the owner of their slot.
func (p *lostJobs) owners() map[string]int {
	p.st.Lock()
	defer p.st.Unlock()
	out := map[string]int{}
	for _, j := range p.st.Jobs {
		for s := range j.Slots.All() {
			out[s.Region]++
		}
	}
	return out
}

// TestManyJobsMoveInFewTransactions: a transaction contains as many takeovers as fit.
func TestManyJobsMoveInFewTransactions(t *testing.T) {
	const n = 2500
	p := newLostJobs(t, n, "seoul", "tokyo")
	p.due()
	if err := p.place(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := p.owners(); got["jakarta"] != 0 || got["seoul"]+got["tokyo"] != n {
		t.Errorf("owners: %v", got)
	}
	if most := n/writesPerCommit + 2; len(p.writes) > most {
		t.Errorf("%d transactions of %v writes, want at most %d", len(p.writes), p.writes, most)
	}
}

// TestTakeoverCarriesAttempts: the attempts that a lost region reported about a slot are in the order to its next owner,
// unless they are about another version. They are forgotten with the job.
func TestTakeoverCarriesAttempts(t *testing.T) {
	for version, want := range map[int64]int{1: 1, 2: 0} {
		p := newLostJobs(t, 1, "seoul")
		k := state.JobKey{Namespace: "default", Name: "job-00000"}
		p.st.Lock()
		p.st.Jobs[k].Summaries.Put("jakarta", &nusav1.JobSummary{Namespace: "default", Job: k.Name, Version: version, Run: 1, Attempts: map[string]*nusav1.GroupAttempts{
			"web": {Instances: []*nusav1.InstanceAttempts{{Index: 0, Failures: 2}, {Index: 7, Failures: 3}}},
		}})
		p.st.Unlock()
		p.due()
		if err := p.place(t.Context()); err != nil {
			t.Fatal(err)
		}
		order := func() *nusav1.SlotOrder {
			p.st.Lock()
			defer p.st.Unlock()
			const key = "default/job-00000/web/0"
			o, _ := p.st.Regions["seoul"].Orders.Get(key)
			return state.SlotOrder(p.st, "seoul", key, o, 0)
		}
		if o := order(); len(o.GetAttempts()) != want || want > 0 && o.GetAttempts()[0].GetFailures() != 2 {
			t.Errorf("version %d: the order has %v", version, o.GetAttempts())
		}
	}
}

// TestRegionThatReturnsKeepsItsSlots: a plan that was made before a lost region connected moves
// nothing. Neither does a plan about an earlier loss.
func TestRegionThatReturnsKeepsItsSlots(t *testing.T) {
	p := newLostJobs(t, 3, "seoul")
	p.due()
	p.do(t, func(tx *state.Tx) error {
		old, _ := tx.Region("jakarta")
		rec := proto.CloneOf(old)
		rec.Lost = nil
		return tx.PutRegion("jakarta", rec)
	})
	p.st.Lock()
	snapshot, jobs := snapshotOf(p.st, []state.JobKey{{Namespace: "default", Name: "job-00000"}, {Namespace: "default", Name: "job-00001"}})
	for i := range snapshot.Regions {
		snapshot.Regions[i].Lost = snapshot.Regions[i].Name == "jakarta" // as the plan saw it
	}
	p.st.Unlock()
	p.planAndApply(t, snapshot, jobs)
	if got := p.owners(); got["jakarta"] != 3 {
		t.Errorf("after the return: %v", got)
	}
	p.do(t, func(tx *state.Tx) error { return tx.DeclareLost("jakarta", state.Loss{Why: "again"}, time.Unix(0, 0)) })
	p.planAndApply(t, snapshot, jobs)
	if got := p.owners(); got["jakarta"] != 3 {
		t.Errorf("by the fence of the first loss: %v", got)
	}
	p.clock += time.Minute // the return counts as a message
	p.due()
	if err := p.place(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := p.owners(); got["seoul"] != 3 {
		t.Errorf("by the fence of the second loss: %v", got)
	}
}

// BenchmarkTakeover moves 20,000 jobs of one instance each.
func BenchmarkTakeover(b *testing.B) {
	for _, regions := range []int{3, 30} {
		b.Run(fmt.Sprintf("regions=%d", regions), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				var others []string
				for i := range regions {
					others = append(others, fmt.Sprintf("r%03d", i))
				}
				p := newLostJobs(b, 20_000, others...)
				b.StartTimer()
				start := time.Now()
				p.due()
				decided := time.Since(start)
				if err := p.place(context.Background()); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(decided.Seconds(), "s/decide")
				b.ReportMetric(float64(len(p.writes)), "transactions")
				if left := p.owners()["jakarta"]; left > 0 {
					b.Fatalf("%d jobs left", left)
				}
			}
		})
	}
}

// TestExplanationNamesTheMove: after a verdict the explanation says where the slots went and why. Its
// table has the verdicts about the regions from which the new one was chosen.
func TestExplanationNamesTheMove(t *testing.T) {
	p := newLostJobs(t, 1, "seoul")
	k := keyOfName("job-00000")
	explain := func() *nusav1.Explanation {
		e, ok := Explain(p.st, k, "")
		if !ok {
			t.Fatal("the job is unknown")
		}
		return e
	}
	if got := explain().GetNote(); strings.Contains(got, "moved") {
		t.Errorf("before the move: %q", got)
	}
	p.due()
	if err := p.place(t.Context()); err != nil {
		t.Fatal(err)
	}
	e := explain()
	if got := e.GetNote(); !strings.Contains(got, "the decision about the latest move; moved: web[0] from jakarta to seoul, because region jakarta is lost") {
		t.Errorf("after the move: %q", got)
	}
	verdicts := e.GetGroups()[0].GetRegions()
	if len(verdicts) != 2 || verdicts[0].GetRegion() != "seoul" || verdicts[0].GetTaken() != 1 || len(verdicts[0].GetTerms()) == 0 ||
		verdicts[1].GetRegion() != "jakarta" || verdicts[1].GetReason() == nusav1.Reason_REASON_UNSPECIFIED {
		t.Errorf("verdicts: %v", verdicts)
	}
}
